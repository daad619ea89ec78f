"""Writes the tables in README.md and docs/faces.md from results/: python tools/readme_tables.py"""

import json
from pathlib import Path
from typing import Any

from softwarp.files import write_text
from softwarp.studies.demo import METRICS
from softwarp.tables import Cell, Row, Table, metric_table

README, FACES = Path("README.md"), Path("docs/faces.md")
RESULTS = Path("results")


def main() -> None:
    """Write the tables into README.md and, once it was measured, into docs/faces.md."""
    write_text(README, with_tables(README.read_text(), RESULTS))
    if (RESULTS / "faces_small.json").exists():
        write_text(FACES, with_faces(FACES.read_text(), RESULTS))


def with_tables(text: str, results: Path) -> str:
    """Return the README, with what is between each pair of markers rebuilt from `results`."""
    for name, table in (("demo", demo_table), ("benchmark_loss", benchmark_table)):
        text = _with_table(text, name, table(json.loads((results / f"{name}.json").read_text())))
    return text


def with_faces(text: str, results: Path) -> str:
    """Return docs/faces.md with the table of small faces rebuilt from `results`."""
    content = json.loads((results / "faces_small.json").read_text())
    return _with_table(text, "faces_small", faces_table(content))


def _with_table(text: str, name: str, table: str) -> str:
    start, end = f"<!-- table: {name} -->\n", f"<!-- end of table: {name} -->"
    before, rest = text.split(start)
    return before + start + table + end + rest.split(end)[1]


def faces_table(content: dict[str, Any]) -> str:
    """Return the accuracies of each loss on three sets of pairs, and where they come from."""
    sets = {"lfw": "LFW", "cfp_ff": "CFP-FF", "cfp_fp": "CFP-FP"}
    rows = [
        (Cell(row["row"].replace("_", " ")), *(Cell(_accuracy(row[name])) for name in sets))
        for row in content["rows"]
    ]
    table, people = Table(("verification accuracy", *sets.values()), tuple(rows)), content["people"]
    note = (
        f"\nPercent, ± deviation over folds, one seed. For LFW {people['trained_for_lfw']} people train, for "
        f"each half of CFP's folds the people of the other half. By `{content['command']}` "
        "([results/faces_small.json](../results/faces_small.json)).\n"
    )
    return table.markdown() + note


def _accuracy(figures: dict[str, float]) -> str:
    return f"{100 * figures['accuracy']:.1f} ± {100 * figures['accuracy_std']:.1f}"


def demo_table(content: dict[str, Any]) -> str:
    """Return mean and deviation over seeds, and where they come from."""
    rows = [Row((row["loss"],), row["mean"], row["deviation"]) for row in content["rows"]]
    table = metric_table(rows, METRICS, ("unseen characters",))
    note = (
        f"\nMean and deviation over {content['seeds']} seeds, by `{content['command']}` "
        "([results/demo.json](results/demo.json)). Hyper-parameters were searched on validation characters "
        "with the same number of trials for each loss "
        "([results/demo_search.json](results/demo_search.json)). AvgDTP is the mean distance from training "
        "embeddings to their own proxy; ProxyNCA++ measures it on the unit sphere.\n"
    )
    return table.markdown() + note


def benchmark_table(content: dict[str, Any]) -> str:
    """Return time (multiples of the bare products) and peak memory of each loss, one column per size."""
    sizes = content["sizes"]
    heads = [f"N={size['samples']:,} C={size['classes']:,} D={size['dimensions']}" for size in sizes]
    rows = [
        (Cell(row["name"]), *(Cell(_figures(size["losses"][index])) for size in sizes))
        for index, row in enumerate(sizes[0]["losses"])
    ]
    table = Table(("forward + backward", *heads), tuple(rows))
    threads = content["environment"]["threads"]
    note = (
        "\nTime as a multiple of the three matrix products that any exact loss needs, and peak memory "
        f"beyond parameters and their gradients. By `make bench` on {threads} CPU threads "
        "([results/benchmark_loss.json](results/benchmark_loss.json)).\n"
    )
    return table.markdown() + note


def _figures(row: dict[str, Any]) -> str:
    time = f"{row['median_ratio']:.2f}x" if "median_ratio" in row else ""
    memory = f"{row['peak_megabytes']:,.0f} MB" if "peak_megabytes" in row else ""
    return ", ".join(filter(None, (time, memory))) or row["status"]


if __name__ == "__main__":
    main()
