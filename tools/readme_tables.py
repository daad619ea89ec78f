"""Writes the tables in the README and in docs/ from results/: python tools/readme_tables.py"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from automatic_warp import LOSSES, STARTS
from freshness import note

from softwarp.fair.benchmark_result import Benchmark, benchmark_table, search_lines
from softwarp.fair.benchmark_result import search_table as search_of_each
from softwarp.fair.reality_table import RealityCheck, category_table, figures_of
from softwarp.files import write_text
from softwarp.studies.demo import METRICS
from softwarp.tables import Cell, Row, Table, counted, metric_table
from softwarp.training.backbones_result import Backbones, JudgedBackbone

RESULTS = Path("results")


def main() -> None:
    """Write the tables into the pages that have them."""
    for page, names in PAGES.items():
        write_text(Path(page), with_tables(Path(page).read_text(), RESULTS, names))


def with_tables(text: str, results: Path, names: tuple[str, ...]) -> str:
    """Return the text, with what is between the markers of each table rebuilt from `results`."""
    for name in names:
        start, end = f"<!-- table: {name} -->\n", f"<!-- end of table: {name} -->"
        before, rest = text.split(start)
        after = rest.split(end)[1]
        file = results / f"{name}.json"  # not measured yet: no table
        content = json.loads(file.read_text()) if file.exists() else None
        table = "" if content is None else TABLES[name](content) + note(name, content)
        text = before + start + table + end + after
    return text


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
        f"([results/demo.json](results/demo.json)). {_differences(content.get('differences', {}))}"
        "Hyper-parameters were searched on validation characters with the same number of trials for each "
        "loss ([results/automatic_warp.json](results/automatic_warp.json)). AvgDTP is the mean distance from "
        "training embeddings to their own proxy; ProxyNCA++ measures it on the unit sphere.\n"
    )
    return table.markdown() + note


def _differences(found: dict[str, Any]) -> str:
    """Return a sentence on how the warped softmax differs from each of the others."""
    parts = [
        f"{_points(each['map@r'])} points of MAP@R from {title} (95% interval "
        f"{' to '.join(_points(end) for end in each['interval'])})"
        for title, each in found.items()
    ]
    return f"Paired by seed, the warped softmax differs by {' and '.join(parts)}. " if parts else ""


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def losses_table(content: dict[str, Any]) -> str:
    """Return the table of a benchmark and the command that made it."""
    outcome = Benchmark.model_validate(content)
    return f"{benchmark_table(outcome).markdown()}\n`{outcome.command}`\n{_searched(outcome)}"


def reality_check_table(content: dict[str, Any]) -> str:
    """Return the table of a reality check and the command that made it."""
    outcome = RealityCheck.model_validate(content)
    rows = {entry.title: figures_of(entry) for entry in outcome.entries}
    shown = category_table(rows, outcome.sizes).markdown()
    return f"{shown}\n`{outcome.command}`\n{_searched(outcome)}"


def _searched(outcome: Benchmark | RealityCheck) -> str:
    """What the search of each loss gave, and which may have ended too early; empty if that was not kept."""
    found = search_of_each(outcome)
    lines = "".join(f"\n{line}.\n" for line in search_lines(outcome))
    return f"\n{found.title}:\n\n{found.markdown()}{lines}" if found.rows else ""


def search_table(content: dict[str, Any]) -> str:
    """Return how softwarp's indexes compare with bare faiss, a row per kind, and embedding with the model."""
    heads = ("index", "vectors", "build", "a batch of 200", "one query", "own memory", "recall@10")
    rows = tuple(
        (
            Cell(f"`{kind}`"),
            Cell(f"{content[kind]['rows']:,} x {content[kind]['dimensions']}"),
            Cell(f"{content[kind]['build']['time_ratio']:.2f}x"),
            *(Cell(_pace(content[kind]["search"][name])) for name in ("batch", "single")),
            Cell(
                " / ".join(
                    f"{content[kind]['memory'][who]['own_megabytes']}" for who in ("softwarp", "faiss")
                )
            ),
            Cell(f"{content[kind]['search']['recall@10']:.3f}"),
        )
        for kind in ("flat", "hnsw", "ivfpq")
    )
    embedding = content["embedding"]
    note = (
        "\nTime as a multiple of bare faiss with the same settings, and softwarp's queries per second; own "
        "memory in megabytes, softwarp's / faiss's, without mapped files. `softwarp embed` takes "
        f"{embedding['tensors']['time_ratio']:.2f}x the bare forward pass on ready tensors, "
        f"{embedding['files']['time_ratio']:.2f}x from JPEG files. By `python benchmarks/search.py` "
        "([results/benchmark_search.json](../results/benchmark_search.json)).\n"
    )
    return Table(heads, rows).markdown() + note


def _pace(row: dict[str, Any]) -> str:
    return f"{row['time_ratio']:.2f}x, {row['softwarp_queries_per_second']:,.0f} per second"


def serve_table(content: dict[str, Any]) -> str:
    """Return answers per second and waiting times, in words."""
    served, bare = content["served"], content["bare_model"]
    search, thumbnail = served["search"], served["thumbnail"]
    return (
        f"{served['clients']} clients for a minute on two cores, which they share with the server: "
        f"{search['answers']:,} searches by photograph, {served['errors']} errors, "
        f"{search['per_second']:.0f} per second where the model alone embeds "
        f"{bare['images_per_second']:.0f}. Half were answered within "
        f"{search['p50_milliseconds'] / 1000:.1f} s ({content['p50_of_least_possible']:.1f} times as long as "
        f"the bare model takes for a queue of {served['clients']}), "
        f"99% within {search['p99_milliseconds'] / 1000:.1f} s; thumbnails meanwhile took "
        f"{thumbnail['p50_milliseconds']:.0f} ms. By `python benchmarks/serve.py` "
        "([results/benchmark_serve.json](../results/benchmark_serve.json)).\n"
    )


def automatic_table(content: dict[str, Any]) -> str:
    """Return the automatic and the tuned losses from both starts, a table per data set."""
    parts = []
    for data, title in (("glyphs", "glyphs, test characters"), ("cub", "CUB, classes 51 to 100")):
        found, every = content[data], [f"{row} from {start}" for row in LOSSES for start in STARTS]
        names = [name for name in every if name in found["rows"]]
        rows = [Row((name,), *(found["rows"][name][key] for key in ("mean", "deviation"))) for name in names]
        table = metric_table(rows, ("recall@1", "map@r", "avg_dtp"), (title,))
        trials = {len(search["trials"]) for search in found.get("searches", {}).values()}
        searched = f"; each search had {'/'.join(map(str, trials))} trials" if trials else ""
        missing = f"; rows not trained yet: {len(every) - len(names)}" if names != every else ""
        parts.append(
            f"{table.markdown()}\nMean and deviation over {found['seeds']} seeds{searched}{missing}. "
            f"By `{found['command']}` "
            "([results/automatic_warp.json](../results/automatic_warp.json)).\n"
        )
    return "\n".join(parts)


def cases_table(content: dict[str, Any]) -> str:
    """Return MAP@R of the automatic warp beside the best fixed setting of a search, a row per case."""
    rows = tuple(
        (
            Cell(row["case"]),
            *(Cell(f"{100 * row[key]:.1f}") for key in ("automatic", "best_fixed")),
            Cell(_points(row["difference"])),
        )
        for row in content["rows"]
    )
    heads = ("MAP@R on validation characters", "automatic", "best fixed", "difference")
    trials = len(content["rows"][0]["trials"])
    return (
        Table(heads, rows).markdown()
        + f"\nThe best of {trials} trials of scale, alpha and proxy rate as plain numbers, judged on these "
        f"classes, so it is flattered. One seed. By `{content['command']}` "
        "([results/automatic_cases.json](../results/automatic_cases.json)).\n"
    )


def folders_table(content: dict[str, Any]) -> str:
    """Return what the default gave on small folders, beside the frozen features."""
    rows = tuple(
        (
            Cell(row["folder"].replace("_", " ")),
            Cell(f"{row['images']:,}"),
            Cell(f"{row['crop']} px"),
            Cell(f"{100 * row['frozen']:.1f}"),
            Cell(f"{100 * sum(row['trained']) / len(row['trained']):.1f}"),
            Cell(" to ".join(_points(end) for end in row["interval"])),
            Cell(f"{row['minutes']:.0f}"),
        )
        for row in content["rows"]
    )
    heads = (
        "folder",
        "images",
        "crop",
        "MAP@R frozen",
        "trained",
        "95% interval of the difference",
        "minutes",
    )
    return (
        Table(heads, rows).markdown()
        + f"\nTest classes, default settings, mean over {content['seeds']} seeds; interval over classes, "
        f"paired. Minutes are those of all seeds together. By `{content['command']}` "
        "([results/own_folders.json](../results/own_folders.json)).\n"
    )


def frozen_table(content: dict[str, Any]) -> str:
    """Return what each pooling of frozen networks retrieves, and where that comes from."""
    rows = []
    for row in content["rows"]:
        figures = (
            f"{100 * row[norm][metric]:.1f}"
            for norm in ("plain", "layer_norm")
            for metric in ("recall@1", "map@r")
        )
        rows.append(
            (Cell(row["network"]), Cell(row["pooling"]), Cell(str(row["channels"])), *map(Cell, figures))
        )
    heads = (
        "network",
        "pooling",
        "channels",
        "Recall@1",
        "MAP@R",
        "layer norm: Recall@1",
        "layer norm: MAP@R",
    )
    note = (
        f"\nCUB's classes 101 to 120, {content['images']:,} images at {content['side']} px, cosine, without "
        f"training. By `{content['command']}` "
        "([results/frozen_features.json](../results/frozen_features.json)).\n"
    )
    return Table(heads, tuple(rows)).markdown() + note


def backbones_table(content: dict[str, Any]) -> str:
    """Return the networks that `softwarp backbones` compared."""
    rows = tuple(JudgedBackbone(**row) for row in content["rows"])
    table = Backbones(rows, content["judged"], content["images"]).table().markdown()
    threads = content["environment"]["threads"]
    return table + (
        f"\n{content['images']:,} images of CUB's classes 101 to 120, none held out, in "
        f"{content['minutes']:.0f} minutes in all. In brackets 95% intervals over classes. ms: an image in "
        f"the network, {counted(threads, 'thread')}. By `{content['command']}` "
        "([results/backbones_cub.json](../results/backbones_cub.json)).\n"
    )


def speed_table(content: dict[str, Any]) -> str:
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
        "([results/benchmark_loss.json](../results/benchmark_loss.json)).\n"
    )
    return table.markdown() + note


def _figures(row: dict[str, Any]) -> str:
    time = f"{row['median_ratio']:.2f}x" if "median_ratio" in row else ""
    memory = f"{row['peak_megabytes']:,.0f} MB" if "peak_megabytes" in row else ""
    return ", ".join(filter(None, (time, memory))) or row["status"]


def sharded_table(content: dict[str, Any]) -> str:
    """Return what a step with divided classes takes, a row per number of classes, and its memory."""
    rows = tuple(
        (
            Cell(f"{row['classes']:,}"),
            *(Cell(f"{row[f'{who}_seconds']:.2f}") for who in ("sharded", "unsharded", "bare")),
            *(Cell(f"{row[f'sharded_over_{what}']:.2f}") for what in ("unsharded", "bare")),
        )
        for row in content["curve"]
    )
    heads = (
        *("classes", "sharded, s", "unsharded, s", "products, s"),
        *("processor time over unsharded", "over products"),
    )
    memory, most, sampled = content["memory"], content["most_classes"], content["sampled"]
    per_rank = ", ".join(f"{row['trained_per_rank']:,.0f} MB with {row['ranks']}" for row in memory)
    return (
        Table(heads, rows).markdown()
        + "\nSeconds per step of two processes, of one process with all classes and of the three bare matrix "
        "products, both on one core; then ratios of processor time, summed over processes. Memory per "
        f"process at {memory[0]['classes']:,} classes, by the number of processes: {per_rank}. "
        f"{most['classes']:,} classes with {most['ranks']} processes take "
        f"{most['all_ranks'] / 1000:.1f} GB in all. With "
        f"`sample_rate={sampled['sample_rate']:g}`, a step at {sampled['classes']:,} classes takes "
        f"{sampled['sampled_over_tenth']:.2f} times the processor time of one at "
        f"{sampled['classes'] * sampled['sample_rate']:,.0f} without sampling. By `{content['command']}` "
        "([results/benchmark_sharded.json](../results/benchmark_sharded.json)).\n"
    )


def training_table(content: dict[str, Any]) -> str:
    """Return in words what a step of training takes beside the bare network."""
    low, high = content["half_of_all_ratios_lie_in"]
    kept = content["times_faster_with_freed_memory_kept"]["bare_forward_backward"]
    return (
        f"A step of `{content['recipe']}` on {content['machine']['cores']} cores, with decoding, "
        "augmentation, loss, guards and optimizer, takes "
        f"{content['ratio_to_bare_forward_backward']:.2f} times as long as a bare forward and backward pass "
        f"of its backbone on ready tensors (half of all ratios lie between {low:.2f} and {high:.2f}): "
        f"{content['images_per_second']:.0f} images per second. The bare passes are {kept:.1f} times as fast "
        "with freed memory kept as without. By `python benchmarks/training.py --data CUB_200_2011` "
        "([results/benchmark_training.json](../results/benchmark_training.json)).\n"
    )


TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "demo": demo_table,
    "benchmark_loss": speed_table,
    "benchmark_sharded": sharded_table,
    "benchmark_training": training_table,
    "benchmark_glyphs": losses_table,
    "reality_check_glyphs": reality_check_table,
    "benchmark_search": search_table,
    "benchmark_serve": serve_table,
    "automatic_warp": automatic_table,
    "automatic_cases": cases_table,
    "own_folders": folders_table,
    "frozen_features": frozen_table,
    "backbones_cub": backbones_table,
    "faces_small": faces_table,
}
PAGES = {
    "README.md": ("demo",),
    "docs/performance.md": ("benchmark_loss", "benchmark_sharded", "benchmark_training"),
    "docs/fair.md": ("benchmark_glyphs", "reality_check_glyphs"),
    "docs/loss.md": ("automatic_warp", "automatic_cases"),
    "docs/training.md": ("own_folders", "frozen_features", "backbones_cub"),
    "docs/searching.md": ("benchmark_search",),
    "docs/serve.md": ("benchmark_serve",),
    "docs/faces.md": ("faces_small",),
}

if __name__ == "__main__":
    main()
