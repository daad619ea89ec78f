"""Optimisation landscapes of two and four proxies, their minima, Lemma 3.1 and Prop. 3.2.

The planes show what embeddings *feel*: the loss with Delta held constant, which falls along the lines of
force. The forces are the negative gradients that training gives. What the loss *says*, its value in training,
is drawn beside it where it differs: on L_p (dotted) and as a surface.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from softwarp.events import OnEvent, Work
from softwarp.figures import Drawing
from softwarp.report.claims import claim, yes
from softwarp.studies import landscape_figures, planes
from softwarp.studies.planes import Floats, Functions, parse_functions
from softwarp.tables import Cell, Table

PAPER = "Figs. 3, 5, 11, 12"
FUNCTIONS = ("t", "t^2", "sqrt t", "warp(3, 0.65, 1.5)")  # the paper's Fig. 3
PROXIES = {"two": ((0.0, 0.0), (4.0, 0.0)), "four": ((0.0, 0.0), (4.0, 0.0), (4.0, -4.0), (0.0, -4.0))}
RADII = (2.5, 5.0, 7.0)  # radii of the disks of Lemma 3.1
INCREASING = parse_functions(FUNCTIONS[-1])
# This one falls until 2, so Lemma 3.1 does not hold for it.
FALLING = Functions("|t - 2|", lambda t: (t - 2).abs(), lambda t: (t - 2).abs(), lambda t: t)
SQUARES = 96  # squares across the grid on which minima are sought


def main(
    functions: Annotated[
        list[str] | None,
        typer.Argument(help="Such as t, t^2, sqrt t, 0.5t, warp(ALPHA,K1,K2). Default: the paper's."),
    ] = None,
    proxies: Annotated[
        str, typer.Option(help="Places such as '0,0 4,0 0,3', its own proxy first. Default: two, and four.")
    ] = "",
    *,
    output: Path,
    quick: bool,
    on_event: OnEvent | None,
) -> dict[str, Any]:
    """Draw the landscapes of functions, with forces and minima, and test where minima lie.

    \b
    softwarp study landscape
    softwarp study landscape 'warp(2,0.5,2)' 1.1t --proxies '0,0 4,0 0,3'

    Trains nothing.
    """
    texts = functions or list(FUNCTIONS)
    places = {"given": parse_places(proxies)} if proxies else PROXIES
    found = collect(texts, places, pairs=20 if quick else 200, on_event=on_event)
    return {"columns": 65 if quick else 161} | summarise(found)


def parse_places(text: str) -> tuple[tuple[float, float], ...]:
    """Return the places that a text names.

    >>> parse_places("0,0 4,0.5")
    ((0.0, 0.0), (4.0, 0.5))
    """
    try:
        places = tuple((float(x), float(y)) for x, y in (pair.split(",") for pair in text.split()))
    except ValueError:
        places = ()
    if len(set(places)) < 2 or len(set(places)) != len(places):
        raise ValueError(f"--proxies {text!r}: give at least two different places, such as '0,0 4,0'")
    return places


def collect(
    texts: list[str], places: Mapping[str, Any], *, pairs: int, on_event: OnEvent | None = None
) -> dict[str, Any]:
    """Return for each function and set of proxies where embeddings settle, and the same for random pairs."""
    rows = [
        {"function": text, "proxies": name} | judge(parse_functions(text), np.array(proxies))
        for text in texts
        for name, proxies in places.items()
    ]
    errors = []
    bar = Work(on_event, "random pairs", total=pairs)
    for seed in range(pairs):
        errors.append(random_pair(seed))
        bar.advance()
    disks = {"increasing": disk_errors(INCREASING, pairs), "falling": disk_errors(FALLING, pairs)}
    return {"functions": texts, "proxies": dict(places), "rows": rows, "random": errors, "disks": disks}


def judge(functions: Functions, proxies: Floats) -> dict[str, Any]:
    """Return where embeddings settle: on L_p with two proxies, and the minima of the plane.

    `settles` is a distance beyond its own proxy: 0 on it, "infinity" when nothing holds embeddings, None when
    no force acts on the line. `alignment` is the smallest cosine between force and slope of what is felt.
    """
    window = planes.window_of(proxies, functions.alpha)
    line = planes.line_of(functions, proxies, 0.0, planes.FAR)
    plane = planes.plane_of(functions, proxies, window, 65)
    minima = planes.minima_of(functions, proxies, window, SQUARES + 1)
    settles = planes.settles_on_line(functions, proxies) if len(proxies) == 2 else None
    return {
        "settles": "infinity" if settles == math.inf else settles,
        "minima": minima.tolist(),
        "distances": np.linalg.norm(minima - proxies[0], axis=1).tolist(),
        "felt_on_proxy": float(line.felt[0]),
        "said_on_proxy": float(line.said[0]),
        "alignment": _alignment(plane.force, plane.downhill),
    }


def _alignment(force: Floats, downhill: Floats) -> float:
    lengths = np.linalg.norm(force, axis=-1) * np.linalg.norm(downhill, axis=-1)
    some = lengths > 1e-12
    return float(((force * downhill).sum(-1)[some] / lengths[some]).min())


def random_pair(seed: int) -> dict[str, float]:
    """Return how many minima two random proxies and a random warp have, and how far the lowest is from alpha.

    The error is the distance to the point on L_p at alpha beyond its own proxy, in squares of the grid.
    """
    generator = np.random.default_rng(seed)
    proxies = generator.normal(0, 3, (2, 2))
    alpha, k1, k2 = generator.uniform((0.5, 0.1, 1.05), (6.0, 0.95, 2.5)).round(3)
    functions = parse_functions(f"warp({alpha},{k1},{k2})")
    window = planes.window_of(proxies, alpha)
    found = planes.minima_of(functions, proxies, window, SQUARES + 1)
    expected = proxies[0] + alpha * planes.direction_of(proxies)
    square = (window[1] - window[0]) / SQUARES
    error = float(np.linalg.norm(found[0] - expected)) / square if len(found) else math.inf
    return {"minima": len(found), "error": error}


def disk_errors(functions: Functions, disks: int) -> dict[str, float]:
    """Return the largest angle between L_p and the lowest and highest points of random disks, in degrees."""
    generator = np.random.default_rng(0)
    lowest, highest = 0.0, 0.0
    for _ in range(disks):
        proxies, radius = generator.normal(0, 2, (2, 2)), float(generator.uniform(0.5, 8.0))
        angles, _, z = planes.circle_of(functions, proxies, radius)
        lowest = max(lowest, abs(float(angles[z.argmin()])))
        highest = max(highest, math.pi - abs(float(angles[z.argmax()])))
    return {"lowest": math.degrees(lowest), "highest": math.degrees(highest)}


def summarise(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was found, with random pairs in a few numbers, and what the paper claims of it."""
    errors = [each["error"] for each in found["random"]]
    random = {
        "pairs": len(errors),
        "with_one_minimum": sum(each["minima"] == 1 for each in found["random"]),
        "largest_error": max(errors),
        "squares": SQUARES,
    }
    summary = {**found, "random": random}
    return summary | {"claims": claims_of(summary)}


def claims_of(found: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the paper's claims about landscapes, each with its verdict."""
    random = found["random"]
    increasing, falling = found["disks"]["increasing"], found["disks"]["falling"]
    settled = {row["function"]: row["settles"] for row in found["rows"] if row["proxies"] == "two"}
    claims = [
        (
            "a warp has one minimum, at alpha on the line",
            "section 3.1, Prop. 3.2",
            random["with_one_minimum"] == random["pairs"] and random["largest_error"] <= 1,
            f"{random['pairs']} random pairs and warps, at most {random['largest_error']:.2g} squares away",
        ),
        (
            "on every disk the best and the worst point are on the line if f increases",
            "section 3.1, Lemma 3.1",
            max(increasing.values()) < 1,
            f"{random['pairs']} random disks, at most {max(increasing.values()):.2g} degrees away",
        ),
        (
            "and not if f falls somewhere",
            "section 3.1, Lemma 3.1",
            falling["lowest"] > 1,
            f"with |t - 2|, up to {falling['lowest']:.0f} degrees away",
        ),
    ]
    expected = {
        "t": (None, "plateaus outward from the proxy", "section 3.1"),
        "t^2": ("infinity", "its minimum lies at infinity", "section 3.2"),
        "sqrt t": (0.0, "embeddings anchor on their proxy", "section 3.2"),
    }
    claims += [
        (f"{text}: {words}", said, settled[text] == place, f"settles: {_place(settled[text], 2)}")
        for text, (place, words, said) in expected.items()
        if text in settled
    ]
    return [claim(text, yes(held), numbers, said=said) for text, said, held, numbers in claims]


def table(summary: Mapping[str, Any]) -> Table:
    """Return where embeddings settle, a row for each function and set of proxies.

    Distances are from its own proxy; the losses felt and said are those of an embedding on it.
    """
    heads = ("functions", "proxies", "settles at", "minima", "distance", "felt", "said")
    count = {name: len(places) for name, places in summary["proxies"].items()}
    rows = [
        (
            row["function"],
            str(count[row["proxies"]]),
            _place(row["settles"], count[row["proxies"]]),
            str(len(row["minima"])),
            ", ".join(f"{each:.2f}" for each in row["distances"]) or "-",
            f"{row['felt_on_proxy']:.3g}",
            f"{row['said_on_proxy']:.3g}",
        )
        for row in summary["rows"]
    ]
    title = "Where embeddings settle: on L_p, and minima of the plane by their distance from its own proxy"
    return Table(heads, tuple(tuple(map(Cell, row)) for row in rows), title=title, words=2)


def _place(settles: str | float | None, proxies: int) -> str:
    if settles is None:
        return "anywhere" if proxies == 2 else "-"
    return settles if isinstance(settles, str) else f"{settles:.2f}"


def draw(summary: Mapping[str, Any]) -> dict[str, Drawing]:
    """Return the planes of each set of proxies, pairs and all together, surfaces, lemma and proposition."""
    functions = [parse_functions(text) for text in summary["functions"]]
    proxies = {name: np.array(places) for name, places in summary["proxies"].items()}
    columns, rows = int(summary["columns"]), [_flat(row) for row in summary["rows"]]
    first, last, warp = next(iter(proxies.values())), [*proxies.values()][-1], functions[-1]
    drawn = {}
    for name, places in proxies.items():
        key = "landscape" if len(places) == 2 else f"landscape_{name}"
        drawn[key] = landscape_figures.draw_functions(functions, places, columns)
    if len(last) > 2:
        drawn["landscape_pairs"] = landscape_figures.draw_each_pair(warp, last, columns)
    if warp.alpha is not None:
        drawn["landscape_felt_and_said"] = landscape_figures.draw_felt_and_said(warp, first, columns)
    drawn["landscape_surfaces"] = landscape_figures.draw_surfaces(functions, proxies, 65)
    drawn["landscape_proposition"] = landscape_figures.draw_proposition(functions, first[:2])
    disks = [{"function": name, **each} for name, each in summary["disks"].items()]
    lemma = landscape_figures.draw_lemma(INCREASING, FALLING, first[:2], RADII)
    drawings = {name: Drawing(each, rows) for name, each in drawn.items()}
    return drawings | {"landscape_lemma": Drawing(lemma, disks)}


def _flat(row: Mapping[str, Any]) -> dict[str, object]:
    """Return a row for CSV: one column for each number, the lowest minimum alone."""
    x, y = row["minima"][0] if row["minima"] else ("", "")
    rest = {key: value for key, value in row.items() if key not in ("minima", "distances")}
    return rest | {"minima": len(row["minima"]), "x": x, "y": y}
