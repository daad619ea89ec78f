"""A finished search -> the parts of a report: history, importances, slices and parallel coordinates."""

import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from softwarp.figures import COLOURS, panels_of, svg, tidy
from softwarp.losses.own_file import loss_label
from softwarp.recipe.schema import parse_recipe
from softwarp.report.page import Illustration, Section
from softwarp.tables import Cell, Table, figure, metric_title
from softwarp.tuning.samplers import distribution
from softwarp.tuning.search import Study, Trial
from softwarp.tuning.space import Parameter, number_of, on_bounds, parse_parameter

MARKS = {"complete": ("o", COLOURS[1]), "pruned": ("v", "#999999"), "blew up": ("x", COLOURS[0])}
SHOWN = 10  # trials in the table
FEWEST = 4  # complete trials; fewer say nothing about importances
COLOUR_MAP = "viridis"


def search_parts(studies: Mapping[str, Study], best: str) -> list[Section]:
    """Return the parts of one search, or of several that follow one another.

    Args:
        best: the recipe that was found, as YAML.
    """
    first = next(iter(studies.values()))
    about = Section(
        title=f"Search: {loss_label(first.recipe.loss.name)} on {first.recipe.data.name}",
        text="Every value is measured on validation classes; test classes were never loaded. Values of "
        "the best trial are optimistic, because it is the best of many: judge it once on test classes.",
        folded={"best recipe": best},
    )
    if len(studies) == 1:
        return [about, *_parts(first, "", "")]
    several = (_parts(study, f"{title}: ", f"{title.replace(' ', '-')}-") for title, study in studies.items())
    return [about, *chain.from_iterable(several)]


def _parts(study: Study, title: str, prefix: str) -> list[Section]:
    more = f"; the table shows the {SHOWN} best" if len(study.trials) > SHOWN else ""
    shares = importances(study)
    importance = Section(
        title="Importances",
        figures=[draw_importances(f"{prefix}importances", shares)] if shares else (),
        note="Share of the variance of complete trials that each parameter explains alone (fANOVA). With "
        "few trials this is a hint.",
        level=3,
    )
    return [
        Section(
            title=f"{title}{len(study.trials)} trials",
            text=f"{states(study)}{more}.",
            tables=[trials_table(study)],
            note="; ".join(bound_sentences(study)),
        ),
        Section(title="History", figures=[draw_history(f"{prefix}history", study)], level=3),
        *([importance] if shares else []),
        Section(
            title="Slices",
            figures=[draw_slices(f"{prefix}slices", study)],
            note="The best trial is circled; grey triangles were pruned, crosses blew up.",
            level=3,
        ),
        Section(
            title="Parallel coordinates",
            figures=[draw_parallel(f"{prefix}parallel", study)],
            note="A line per trial, each axis from the low to the high end of its range; the best is thick, "
            "pruned ones are grey.",
            level=3,
        ),
    ]


def read_searches(folder: Path) -> dict[str, Study]:
    """Return the searches of a folder that `softwarp tune` has finished, by title."""
    rows = json.loads((folder / "trials.json").read_text())
    whole = (folder / "study.json").is_file()
    places = [folder] if whole else sorted(path.parent for path in folder.glob("*/study.json"))
    return {
        title: _read_search(place, trials)
        for (title, trials), place in zip(rows.items(), places, strict=True)
    }


def _read_search(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Study:
    about = json.loads((folder / "study.json").read_text())
    trials = [Trial(**{**row, "folder": folder / row["folder"]}) for row in rows]
    space = {key: parse_parameter(text) for key, text in about["space"].items()}
    return Study(parse_recipe(about["recipe"]), space, about["objective"], tuple(trials))


def states(study: Study) -> str:
    """Return how many trials ended in which way, in words."""
    counts = {state: sum(trial.state == state for trial in study.trials) for state in MARKS}
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count)


def trials_table(study: Study) -> Table:
    """Return the best trials: how they ended, their value and their settings."""
    names = short_names(list(study.space))
    rows = [
        (*_ended(trial), _reached(study, trial), *(Cell(short_value(trial.settings[key])) for key in names))
        for trial in study.trials[:SHOWN]
    ]
    heads = ("trial", "state", metric_title(study.objective), *names.values())
    return Table(heads, tuple(rows), words=2)


def short_table(study: Study) -> Table:
    """Return the same for a terminal, where a column per key has no room."""
    names = short_names(list(study.space))
    rows = []
    for trial in study.trials[:SHOWN]:
        settings = ", ".join(f"{name} {short_value(trial.settings[key])}" for key, name in names.items())
        rows.append((*_ended(trial), Cell(settings), _reached(study, trial)))
    return Table(("trial", "state", "settings", metric_title(study.objective)), tuple(rows), words=3)


def _ended(trial: Trial) -> tuple[Cell, Cell]:
    return Cell(str(trial.number)), Cell(trial.state)


def _reached(study: Study, trial: Trial) -> Cell:
    return Cell(figure(study.objective, trial.value), best=trial is study.best)


def short_names(keys: list[str]) -> dict[str, str]:
    """Return the last word of each key; as much more as tells two keys apart.

    >>> short_names(["phases.0.epochs", "loss.settings.k1", "phases.1.loss_settings.k1"]).values()
    dict_values(['epochs', 'settings.k1', 'loss_settings.k1'])
    """
    names = {}
    for key in keys:
        words, count = key.split("."), 1
        while sum(f".{other}".endswith("." + ".".join(words[-count:])) for other in keys) > 1:
            count += 1
        names[key] = ".".join(words[-count:])
    return names


def short_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def bound_sentences(study: Study) -> list[str]:
    """Return a sentence for each best value that is on a bound of its range: the optimum may lie beyond."""
    return [
        f"the best {key} ({short_value(study.best.settings[key])}) is on the {end} bound of "
        f"{study.space[key]}; widen it with --space {key}=..."
        for key, end in on_bounds(study.space, study.best.settings).items()
    ]


def rising_sentences(study: Study) -> list[str]:
    """Return a sentence if the best trial was still getting better at its end: more epochs may give more."""
    looks = [value for _, value in study.best.looks]
    if len(looks) < 2 or looks[-1] <= max(looks[:-1]):
        return []
    epochs = study.best.looks[-1][0]
    return [
        f"the curve of the best trial was still rising at its last look, after {epochs} epochs; more "
        "(phases.0.epochs=...) may give more"
    ]


def importances(study: Study) -> dict[str, float]:
    """Return how much of the variance each key explains, by fANOVA, largest first; empty for few trials."""
    import optuna

    trials = [trial for trial in study.trials if trial.state == "complete"]
    if len(trials) < FEWEST or len({trial.value for trial in trials}) < 2:
        return {}
    scratch = optuna.create_study(direction="maximize")
    for trial in trials:
        drawn = {
            key: trial.settings[key] if each.kind == "choice" else _drawn(each, trial.settings[key])
            for key, each in study.space.items()
        }
        ranges = {key: distribution(each) for key, each in study.space.items()}
        scratch.add_trial(optuna.create_trial(params=drawn, distributions=ranges, value=trial.value))
    evaluator = optuna.importance.FanovaImportanceEvaluator(n_trees=64, max_depth=64, seed=0)
    return dict(optuna.importance.get_param_importances(scratch, evaluator=evaluator))


def _drawn(parameter: Parameter, value: object) -> float:
    number = min(max(number_of(value), parameter.low), parameter.high)  # type: ignore[arg-type]
    return int(number) if parameter.kind == "int" else number


def draw_history(name: str, study: Study) -> Illustration:
    """Return the value of each trial in the order they were drawn, and the best so far as a line."""
    drawing = Figure(figsize=(10, 3.2), layout="constrained")
    axes = drawing.subplots()
    trials = sorted(study.trials, key=lambda trial: trial.number)
    for state, (mark, colour) in MARKS.items():
        if some := [(trial.number, 100 * trial.value) for trial in trials if trial.state == state]:
            axes.scatter(*zip(*some, strict=True), marker=mark, color=colour, label=state, zorder=3)
    line = [100 * value or math.nan for value in study.course()]  # no line before the first complete trial
    axes.step([t.number for t in trials], line, where="post", color=COLOURS[2], label="best so far")
    axes.set(xlabel="trial", ylabel=metric_title(study.objective))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower right")
    tidy(axes)
    return Illustration(name, svg(drawing), _numbers(study))


def draw_importances(name: str, shares: Mapping[str, float]) -> Illustration:
    """Return a bar per key."""
    drawing = Figure(figsize=(7, 0.5 + 0.35 * len(shares)), layout="constrained")
    axes = drawing.subplots()
    keys = list(shares)[::-1]
    axes.barh(keys, [shares[key] for key in keys], color=COLOURS[1])
    for place, key in enumerate(keys):
        axes.text(shares[key], place, f" {shares[key]:.0%}", va="center", fontsize=9)
    axes.set(xlim=(0, min(1.1, 1.15 * max(shares.values()))), xticks=[])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    return Illustration(name, svg(drawing), [{"key": key, "share": share} for key, share in shares.items()])


def draw_slices(name: str, study: Study) -> Illustration:
    """Return a panel per key: the value of each trial over that key alone."""
    drawing, panels = panels_of(len(study.space), min(3, len(study.space)), height=2.8)
    for panel, (key, parameter) in zip(panels, study.space.items(), strict=True):
        for trial in study.trials:
            mark, colour = MARKS[trial.state]
            place = _position(parameter, trial, key), 100 * trial.value
            panel.scatter(*place, marker=mark, color=colour, s=18, clip_on=False)
        place = _position(parameter, study.best, key), 100 * study.best.value
        panel.scatter(*place, s=90, facecolors="none", edgecolors=COLOURS[0], clip_on=False)
        if parameter.kind == "choice":
            panel.set_xticks(range(len(parameter.choices)), [str(choice) for choice in parameter.choices])
        elif parameter.logarithmic:
            panel.set_xscale("log")
        if parameter.kind != "choice":
            panel.set_xlim(parameter.low, parameter.high)
        panel.set_xlabel(key, fontsize=9)
        tidy(panel)
    panels[0].set_ylabel(metric_title(study.objective))
    return Illustration(name, svg(drawing), _numbers(study))


def _position(parameter: Parameter, trial: Trial, key: str) -> float:
    value = trial.settings[key]
    return parameter.choices.index(value) if parameter.kind == "choice" else number_of(value)


def draw_parallel(name: str, study: Study) -> Illustration:
    """Return a line per trial across all keys, each from its low to its high end; the best in front."""
    drawing = Figure(figsize=(10, 4.2), layout="constrained")
    axes = drawing.subplots()
    values = [100 * trial.value for trial in study.trials if trial.state == "complete"]
    scale = Normalize(min(values), max(values)) if values else Normalize(0, 1)
    colours = matplotlib.colormaps[COLOUR_MAP]
    for trial in reversed(study.trials):
        places = [each.place(trial.settings[key]) for key, each in study.space.items()]
        whole = trial.state == "complete"
        axes.plot(
            places,
            color=colours(scale(100 * trial.value)) if whole else "#bbbbbb",
            linewidth=2.5 if trial is study.best else 1,
            alpha=0.9 if whole else 0.4,
        )
    names = short_names(list(study.space))
    axes.set_xticks(range(len(names)), list(names.values()), fontsize=9)
    axes.set(yticks=[], ylim=(-0.12, 1.12))
    for place, parameter in enumerate(study.space.values()):
        axes.axvline(place, color="#666666", linewidth=0.8)
        ends = (f"{parameter.low:.3g}", f"{parameter.high:.3g}")
        if parameter.kind == "choice":
            ends = (str(parameter.choices[0]), str(parameter.choices[-1]))
        axes.text(place, -0.03, ends[0], ha="center", va="top", fontsize=8)
        axes.text(place, 1.03, ends[1], ha="center", va="bottom", fontsize=8)
    axes.spines[:].set_visible(False)
    bar = drawing.colorbar(ScalarMappable(scale, COLOUR_MAP), ax=axes, label=metric_title(study.objective))
    bar.outline.set_visible(False)
    return Illustration(name, svg(drawing), _numbers(study))


def _numbers(study: Study) -> list[dict[str, object]]:
    return [
        {"trial": trial.number, "state": trial.state, study.objective: trial.value, **trial.settings}
        for trial in study.trials
    ]
