"""What an earlier command left in the folder of a run on own images: resumed, replaced or refused."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from softwarp import processes
from softwarp.events import OnEvent, tell
from softwarp.recipe.overrides import difference_of, write_out
from softwarp.recipe.schema import Recipe
from softwarp.runs.run import Run
from softwarp.tables import counted

# What plan and choice decide, so that it may differ from what an earlier budget left.
SETTLED = (
    "data.crop",
    "data.resize",
    "phases.0.epochs",
    "optimizer.wise_ft",
    "model.adapter",
    "model.head",
    "model.head_init",
    "model.unit_length",
    "model.embedding_size",
    "start",
)
OF_FOLDS = ("evaluation", "batches")


def places_of(folder: Path) -> list[Path]:
    """Return the folders of all runs that own images leave in a folder."""
    return [
        folder,
        *(each for name in ("seed-*", "ship", "choice/f*-*") for each in sorted(folder.glob(name))),
    ]


def clear(*places: Path) -> None:
    """Remove the runs in these folders."""
    for place in places:
        if place.is_dir():
            with Run(place).locked():
                Run(place).clear()


def check_earlier(
    recipe: Recipe,
    folder: Path,
    sha256: str,
    asked: Callable[[Recipe], dict[str, Any]],
    *,
    choosing: bool,
    by: Callable[[str], Recipe] | None = None,
    seeds: int = 1,
) -> None:
    """Raise a ValueError if the folder's runs are others than a budget could have left: before any training.

    Args:
        sha256: of the images as they are now.
        asked: what the plan of a recipe answers; one that answered other crops or epochs is refused.
        choosing: whether a ladder is climbed; a folder that was begun before there was one is refused.
        by: the recipe with a network by its name, where the network is chosen; runs are then compared with
            the recipe of their own network.
    """
    plan, ladder = (folder / "choice" / name for name in ("plan.json", "ladder.json"))
    again = "choose another folder, or start afresh (--fresh, fresh=True)"
    if plan.is_file():
        there, what = _read(plan).get("asked", {}), {"epochs": "phases.0.epochs", "crops": "data.crop"}
        here = asked(_with_network(recipe, network_in(folder), by))
        for key, name in what.items():
            if there.get(key, here[key]) != here[key]:
                was, now = (_either(each[key]) for each in (there, here))
                difference = f"{name} was {was} there and is {now} here"
                raise ValueError(f"{folder} holds a run of another recipe: {difference}; {again}")
    begun = [place for place in places_of(folder) if Run(place).started()]
    if plan.is_file() and choosing and begun and not ladder.is_file():
        raise ValueError(f"{folder} was begun by a version that knew no calibrated features; {again}")
    finals = [folder / f"seed-{seed}" for seed in range(recipe.seed, recipe.seed + seeds)]
    for place in finals if seeds > 1 else [folder]:
        seed = int(place.name.removeprefix("seed-")) if seeds > 1 else recipe.seed
        _check_run(place, recipe.model_copy(update={"seed": seed}), sha256, but=(), by=by)
    for place in sorted(folder.glob("choice/fold-*")):
        _check_run(place, recipe, sha256, but=OF_FOLDS, by=by)
    if ladder.is_file() and begun:
        model = _read(ladder)["asked"]["model"]
        here = _with_network(recipe, model["backbone"], by).model.model_dump(mode="json")
        if difference := difference_of({"model": model}, {"model": here}):
            raise ValueError(f"{folder} holds a run of another recipe: {difference}; {again}")


def _read(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def _either(value: int | list[int]) -> str:
    return " or ".join(map(str, value)) if isinstance(value, list) else str(value)


def _with_network(recipe: Recipe, name: str, by: Callable[[str], Recipe] | None) -> Recipe:
    """The recipe with another network, if networks are chosen from."""
    return recipe if by is None or not name else by(name).model_copy(update={"seed": recipe.seed})


def network_in(folder: Path) -> str:
    """Return the network that the runs in a folder are of; empty if there are none."""
    plan = folder / "choice" / "plan.json"
    if plan.is_file() and (name := _read(plan).get("timed", {}).get("model", {}).get("backbone")):
        return str(name)
    begun = [Run(place) for place in places_of(folder) if Run(place).started()]
    return begun[0].recipe().model.backbone if begun else ""


def _check_run(
    place: Path,
    recipe: Recipe,
    sha256: str,
    but: Sequence[str],
    by: Callable[[str], Recipe] | None,
) -> None:
    run = Run(place)
    if not run.started():
        return
    if by is not None:
        recipe = _with_network(recipe, run.recipe().model.backbone, by)
    run.check_recipe(recipe, but=(*SETTLED, *but))
    if run.finished():
        run.check_data(run.result().data_sha256, sha256)


def replace_other(place: Path, recipe: Recipe, on_event: OnEvent | None) -> None:
    """Remove a run that differs from the recipe, which another budget has left here; say so in a line."""
    processes.from_main(lambda: _replace_other(place, recipe, on_event))  # others might look too late


def _replace_other(place: Path, recipe: Recipe, on_event: OnEvent | None) -> None:
    if not Run(place).started():
        return
    there = Run(place).recipe()
    if difference_of(write_out(there), write_out(recipe)):
        epochs = sum("epoch" in row for row in Run(place).history())
        left = f"{counted(epochs, 'epoch')} at {there.data.crop} px" if epochs else "frozen features"
        tell(on_event, f"{place}: replaces what another budget left there ({left})")
        clear(place)
