"""How losses over ranked lists are tried: with wide temperatures, so that random batches do not saturate."""

from support import references_rank as references
from support import references_surrogates as surrogates
from support.loss_cases import Case

CASES: dict[str, Case] = {
    "smooth_ap": Case(
        references.smooth_ap,
        mutants=(
            ("1 - lists.mean((0.5 + before", "1 - lists.mean((1.0 + before"),
            ("with_query=True", "with_query=False"),
        ),
        settings={"temperature": 0.1},
    ),
    "roadmap": Case(
        references.roadmap,
        mutants=(("+ 0.5 * (x > 0)", "+ 0.4 * (x > 0)"), ("(same & ~itself)", "same.logical_not()")),
        settings={"temperature": 0.1, "slope": 3.0, "knee": 0.2, "calibration_weight": 0.7},
    ),
    "softbin_ap": Case(
        references.softbin_ap,
        mutants=(("positive.cumsum(1) /", "positive /"), ("torch.linspace(1, -1,", "torch.linspace(1, 0,")),
        settings={"bins": 7},
    ),
    "blackbox_ap": Case(
        references.blackbox_ap,
        mutants=(
            ("(within / ranks * positive)", "(1 / ranks * positive)"),
            ("- margin * (same", "+ margin * (same"),
        ),
        settings={"margin": 0.5},
        surrogate=surrogates.blackbox_ap,
    ),
    "blackbox_recall": Case(
        references.blackbox_recall,
        mutants=(("(ranks - within)", "(ranks)"), ("log1p(torch.log1p(count))", "log1p(count)")),
        surrogate=surrogates.blackbox_recall,
    ),
    "recall_at_k": Case(
        references.recall_at_k,
        mutants=(
            ("rank = 0.5 + ", "rank = 1.5 + "),
            ("with_query=False", "with_query=True"),
            ("False, query_ranked=query_ranked)", "False, query_ranked=True)"),
        ),
        settings={"rank_temperature": 0.1, "cutoffs": (1, 2, 4)},
    ),
    "contextual": Case(
        references.contextual,
        mutants=(("closeness + tolerance", "closeness - tolerance"), ("narrow * narrow.T", "narrow")),
        surrogate=surrogates.contextual,
    ),
    "osap": Case(
        references.osap,
        mutants=(("1 + slope * x", "slope * x"), ("negative & (x < 0)", "negative & (x > 0)")),
        settings={"temperature": 0.1, "scale": 8.0, "after_weight": 0.5},
    ),
}
