"""Which of the networks at hand is trained: ranked by held-out training classes, the fastest first.

A network is worth what the better of its frozen and its calibrated features is worth. Whatever is found is
written to choice/networks.json at once, so a run that was killed takes the same decision.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field

from softwarp import processes
from softwarp.data.readers import ImageTable
from softwarp.data.sources import Source, load_source
from softwarp.events import OnEvent, tell
from softwarp.files import write_json
from softwarp.models.known_weights import PACKAGED, weights_here
from softwarp.models.preparation import check_side
from softwarp.recipe.schema import Recipe
from softwarp.runs.networks import TriedNetwork, chosen_network, in_milliseconds
from softwarp.runs.result import read_json_as
from softwarp.tables import counted
from softwarp.training.backbones import frozen_model, megabytes_of, milliseconds_of
from softwarp.training.budget import decoding_seconds
from softwarp.training.choice import mean_of
from softwarp.training.earlier import network_in
from softwarp.training.features import items_to_calibrate
from softwarp.training.frozen_halves import FrozenHalves
from softwarp.training.own_plan import minutes
from softwarp.training.rungs import Seen, calibrated, frozen

SHARE = 2 / 3  # of the time that is left, that a network's pass over the training images may take


@dataclass(frozen=True)
class Networks:
    """The networks that may be trained.

    Args:
        names: the smallest first.
        recipe_of: the recipe with a network by its name.
        fast: milliseconds that an image may take in the network.
    """

    names: tuple[str, ...]
    recipe_of: Callable[[str], Recipe]
    fast: float | None = None

    def changed(self, change: Callable[[Recipe], Recipe]) -> "Networks":
        """Return the same with changed recipes."""
        return replace(self, recipe_of=lambda name: change(self.recipe_of(name)))

    @property
    def usual(self) -> str:
        """The network that is taken where none can be compared."""
        return PACKAGED if PACKAGED in self.names else self.names[0]


@dataclass(frozen=True)
class Question:
    """What networks are compared by.

    Args:
        asked: what of it must not change between two commands.
        source: the images as they are divided; each network sees them in its own way.
        size: of the embedding of calibrated features; None for as many as there are features.
        calibrates: whether calibrated features are candidates.
        budget: seconds for all of it.
        unable: why the halves of the training classes cannot judge; empty if they can.
    """

    networks: Networks
    asked: dict[str, Any]
    table: ImageTable
    source: Source
    folder: Path
    size: int | None
    calibrates: bool
    budget: float
    unable: str
    device: torch.device
    on_event: OnEvent | None

    @property
    def file(self) -> Path:
        return self.folder / "choice" / "networks.json"


class Ranking(BaseModel):
    """What is known of the networks so far: choice/networks.json."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    version: int = Field(1, alias="schema")
    asked: dict[str, Any]
    budget: float = 0.0
    fast: float | None = None
    decoding: float | None = None  # seconds an image
    tried: dict[str, TriedNetwork]
    chosen: str = ""

    @property
    def spent(self) -> float:
        """The seconds that all of it took."""
        return sum(each.seconds for each in self.tried.values())

    @property
    def judged(self) -> bool:
        """Whether the network that was chosen was judged."""
        return self.tried[self.chosen].value is not None

    @property
    def fastest_first(self) -> list[TriedNetwork]:
        """Networks that could be timed, and are as fast as they have to be."""
        timed = [each for each in self.tried.values() if each.milliseconds is not None]
        limit = float("inf") if self.fast is None else self.fast
        within = [each for each in timed if (each.milliseconds or 0.0) <= limit]
        return sorted(within, key=lambda each: each.milliseconds or 0.0)

    def table(self) -> tuple[TriedNetwork, ...]:
        """Return the networks, the fastest first; none if nothing was compared."""
        timed = [each for each in self.tried.values() if each.milliseconds is not None or each.left_out]
        return tuple(sorted(timed, key=lambda each: each.milliseconds or float("inf")))

    def save(self, file: Path) -> None:
        """Write it down."""
        if processes.is_main():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, self.model_dump(mode="json", by_alias=True))


def networks_at_hand() -> tuple[str, ...]:
    """Return the networks whose weights are on this machine, the smallest first."""
    return tuple(each.origin.name for each in sorted(weights_here(), key=lambda each: each.size))


def has_adapters_package() -> bool:
    """Return whether transformers can be trained by low-rank adapters."""
    return find_spec("peft") is not None


def pick_network(question: Question) -> Ranking:
    """Return the ranking with the network that was chosen, the same in every process."""
    networks, on_event = question.networks, question.on_event
    ranking = processes.from_main(lambda: _begun(question))
    there = ranking.chosen or (next(iter(ranking.tried)) if len(ranking.tried) == 1 else "")
    others = [name for name in networks.names if name not in ranking.tried]
    if there and others:
        tell(
            on_event,
            f"backbone: {there}, which {question.folder} was begun with; a fresh start (--fresh, fresh=True) "
            f"would compare it with {', '.join(others)}",
        )
    if (ranking.budget, ranking.fast) != (question.budget, networks.fast):  # asks what was left out
        ranking.budget, ranking.fast, ranking.chosen = question.budget, networks.fast, ""
        for name, each in ranking.tried.items():
            ranking.tried[name] = each.model_copy(update={"left_out": ""})
    if ranking.chosen:
        return ranking
    if networks.fast is None and len(ranking.tried) == 1:
        (ranking.chosen,) = ranking.tried
        return ranking
    if networks.fast is not None or not question.unable:
        _time(question, ranking)
    if question.unable:
        within = [each.name for each in ranking.fastest_first] or list(ranking.tried)
        ranking.chosen = networks.usual if networks.usual in within else within[0]
        tell(
            on_event, f"backbone: {ranking.chosen}, compared with no other network, because {question.unable}"
        )
        return ranking
    _rank(question, ranking)
    tell(on_event, chosen_network(list(ranking.tried.values()), ranking.chosen))
    return ranking


def _begun(question: Question) -> Ranking:
    """The ranking that is in the folder, or a new one; a folder that holds a run keeps its network."""
    if question.file.is_file():
        found = read_json_as(Ranking, question.file)
        if found.asked == question.asked:
            return found
    kept = network_in(question.folder)
    names = (kept,) if kept else question.networks.names
    return Ranking(asked=question.asked, tried={name: TriedNetwork(name=name) for name in names})


def _time(question: Question, ranking: Ranking) -> None:
    """Time the networks that were not; a ValueError if none is as fast as it has to be."""
    for name, each in list(ranking.tried.items()):
        if each.milliseconds is None:
            _note(question, ranking, _timed(question, ranking, name))
    if not (within := ranking.fastest_first):
        raise ValueError(_why_none(ranking))
    for each in list(ranking.tried.values()):
        if each.milliseconds is not None and each not in within and not each.left_out:
            why = f"it needs {in_milliseconds(each.milliseconds)} ms an image"
            _note(question, ranking, each.model_copy(update={"left_out": why}))


def _rank(question: Question, ranking: Ranking) -> None:
    """Judge the networks that there is time for, the fastest first, and choose the best."""
    for each in ranking.fastest_first:
        if each.value is None and not each.left_out:
            why = _no_time(question, ranking, each)
            found = each.model_copy(update={"left_out": why}) if why else _judged(question, each)
            _note(question, ranking, found)
    ranking.chosen = max(ranking.fastest_first, key=lambda each: each.value or 0.0).name
    ranking.save(question.file)


def _note(question: Question, ranking: Ranking, found: TriedNetwork) -> None:
    """Keep what was found of a network, and say it once it is judged or left out."""
    ranking.tried[found.name] = found
    ranking.save(question.file)
    if found.left_out or found.value is not None:
        tell(question.on_event, f"backbone: {found.sentence()}")


def _timed(question: Question, ranking: Ranking, name: str) -> TriedNetwork:
    """A network's time and size, or why it cannot be had."""

    def look() -> TriedNetwork:
        begun, recipe = time.perf_counter(), question.networks.recipe_of(name)
        check_side(name, recipe.data.crop)
        model = frozen_model(name, recipe.data.crop)
        return TriedNetwork(
            name=name,
            milliseconds=milliseconds_of(model),
            megabytes=megabytes_of(model.network),
            seconds=time.perf_counter() - begun,
        )

    if ranking.spent > question.budget:
        return TriedNetwork(name=name, left_out="there is no time left to time it; give a longer budget")
    try:
        return processes.from_main(look)
    except (ValueError, OSError) as error:
        return TriedNetwork(name=name, left_out=str(error))


def _why_none(ranking: Ranking) -> str:
    timed = [each for each in ranking.tried.values() if each.milliseconds is not None]
    if not timed:
        reasons = "; ".join(each.sentence() for each in ranking.tried.values())
        return f"no network on this machine can be used: {reasons}"
    fastest = min(timed, key=lambda each: each.milliseconds or 0.0)
    return (
        f"no network on this machine needs at most {ranking.fast:g} ms an image; the fastest, "
        f"{fastest.name}, needs {in_milliseconds(fastest.milliseconds)} ms"
    )


def _no_time(question: Question, ranking: Ranking, network: TriedNetwork) -> str:
    """Why there is no time for a pass over the training images; empty if there is."""
    if ranking.decoding is None:
        ranking.decoding = processes.from_main(lambda: decoding_seconds(question.source))
    images = len(items_to_calibrate(question.source.labels, seed=0))
    pace = (network.milliseconds or 0.0) / 1000 + ranking.decoding
    seconds = images * pace / processes.count()
    if seconds <= SHARE * (question.budget - ranking.spent):
        return ""
    return (
        f"one pass over {counted(images, 'image')} would take {minutes(seconds)}, more than two thirds of "
        "the time that is left; give a longer budget"
    )


def _judged(question: Question, network: TriedNetwork) -> TriedNetwork:
    """What the halves of the training classes say of the features of a network."""
    begun, recipe = time.perf_counter(), question.networks.recipe_of(network.name)
    source = load_source(recipe.data.uncached(), recipe.evaluation.plan(), table=question.table)
    seen = FrozenHalves(recipe, source, question.table, question.device, question.on_event)
    halves = seen.halves  # all processes share the work on the features

    def said() -> dict[str, float]:
        found = {"frozen": _best(frozen(halves))}
        if question.calibrates:
            found["calibrated"] = _best(calibrated(halves, seen.scatters, question.size or seen.dimensions))
        return found | {"seconds": network.seconds + time.perf_counter() - begun}

    return network.model_copy(update=processes.from_main(said))


def _best(seen: Seen) -> float:
    """The MAP@R of the best candidate, by what decides."""
    return max(mean_of(each) for each in (seen[1] or seen[0]).values())
