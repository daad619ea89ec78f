"""Rows of studies as `summarise_variants` makes them, by hand."""


def row(deviation=0.001, seeds=2, curve=(), blew_up=(), **metrics):
    """A row with these means; `recall` stands for recall@1."""
    names = {name.replace("recall", "recall@1").replace("map_r", "map@r"): v for name, v in metrics.items()}
    return {
        "mean": names,
        "deviation": dict.fromkeys(names, deviation),
        "seeds": {name: [value] * seeds for name, value in names.items()},
        "blew_up": {str(seed): "inf" for seed in blew_up},
        "avg_dtp_by_epoch": [
            {"epoch": place, "mean": value, "deviation": 0.0} for place, value in enumerate(curve)
        ],
        "seconds": 1.0,
    }


ABOUT = {"seeds": 2, "split": "validation", "classes": {"train": 5, "evaluated": 7}}


def verdicts(claims):
    return [each["verdict"] for each in claims]
