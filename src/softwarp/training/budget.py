"""How long training takes on this machine, and what of it fits into a budget."""

import math
import os
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from softwarp.data.sources import Source
from softwarp.evaluation import evenly_spaced
from softwarp.models.adapters import trained_part
from softwarp.models.embedder import Embedder
from softwarp.recipe.schema import ModelPart
from softwarp.training.timing import seconds_of

BUDGET = 600.0  # seconds, the target without a budget
HOPELESS = 3.0  # times the limit: the smallest crop has half of the pixels, so none will fit
UNITS = {
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), 3600),
}
CROPS = (224, 192, 160, 128)  # multiples of 32, the stride of most networks
TIMED = 16  # images in a timed batch
LOOKS = 4  # a run that chooses is evaluated at least so often, if it has as many epochs
FOLDS = 2  # runs that choose: each half of the training classes is judged once, at the cost of one training
SHARES = (0.25, 0.5, 0.75, 1.0)  # of the way from the weights at the start to the trained ones, judged


def parse_budget(text: str) -> float:
    """Return seconds.

    >>> parse_budget("10m"), parse_budget("90 sec"), parse_budget("1.5 hours"), parse_budget("10min")
    (600.0, 90.0, 5400.0, 600.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)", text.strip().lower())
    seconds = float(found[1]) * UNITS.get(found[2], 0) if found else 0.0
    if not 0 < seconds < math.inf:
        raise ValueError(f"a budget is a time above 0, such as 90s, 10 min or 1.5 hours; got {text!r}")
    return seconds


def parse_fast(text: str) -> float:
    """Return milliseconds.

    >>> parse_fast("20ms"), parse_fast("0.5 s")
    (20.0, 500.0)
    """
    found = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*(ms|s)", text.strip().lower())
    milliseconds = float(found[1]) * (1000 if found[2] == "s" else 1) if found else 0.0
    if not milliseconds > 0:
        raise ValueError(f"fast is the time of an image in the network, such as 20ms; got {text!r}")
    return milliseconds


@dataclass(frozen=True)
class Pace:
    """Seconds per image that trains or is embedded, decoding included, and per checkpoint."""

    train: float
    embed: float
    save: float


@dataclass(frozen=True)
class Workload:
    """How many images are trained on and judged.

    Args:
        trained: images of the training classes.
        judged: images of the classes that the final model is judged on.
        choosing: whether the halves of the training classes judge each other first.
        seeds: number of final models.
        observed: images whose distance to their proxies is measured after every epoch of a final model.
        closed: whether a look also embeds the half that trains, to look held-out images up there.
        spent: seconds that went into choosing a network.
        known: whether the features of the training images are in the cache by now.
        distractors: training images that the judged ones are looked up among, too.
        shipped: images of the model that is made once more on all classes; 0 for none.
    """

    trained: int
    judged: int
    choosing: bool
    seeds: int = 1
    observed: int = 0
    closed: bool = False
    spent: float = 0.0
    known: bool = False
    distractors: int = 0
    shipped: int = 0

    def seconds(self, pace: Pace, epochs: int) -> float:
        """Return how long it takes; a run starts with two passes over its images, for head and rates."""
        choosing = FOLDS * self.fold(pace, epochs, whole_looks(epochs)[0]) if self.choosing and epochs else 0
        return self.spent + self.features(pace) + choosing + self.final(pace, epochs)

    def features(self, pace: Pace) -> float:
        """Return how long the features of the frozen network take, by which the first rungs are judged."""
        return 0.0 if self.known else pace.embed * self.trained * self.choosing

    def fold(self, pace: Pace, epochs: int, every: int) -> float:
        """Return how long one of the runs that choose takes, with a look after so many epochs each."""
        looks = epochs // every * len(SHARES)
        if self.closed:
            looks *= 2
        return self.trained / FOLDS * (pace.train * epochs + pace.embed * (looks + 2)) + pace.save * epochs

    def final(self, pace: Pace, epochs: int) -> float:
        """Return how long the final models take, and the one that is shipped."""
        judged = self.judged * 2 + (self.distractors if epochs else 0)  # without training they are known
        held_out = self.seeds * self._made(pace, epochs, self.trained, judged)
        return held_out + (self._made(pace, epochs, self.shipped, 0) if self.shipped else 0)

    def _made(self, pace: Pace, epochs: int, trained: int, judged: int) -> float:
        """How long one model takes."""
        starts = 2 if epochs else 1
        embedded = trained * starts + judged + self.observed * max(1, epochs)
        return pace.train * trained * epochs + pace.embed * embedded + pace.save * epochs


@dataclass(frozen=True)
class Plan:
    """The side of the crop, the most epochs, the seconds that all of it should take, and the pace.

    Args:
        measuring: the seconds that finding this out took.
    """

    crop: int
    epochs: int
    seconds: float
    pace: Pace
    measuring: float = 0.0


def crops_below(largest: int, step: int = 1) -> list[int]:
    """Return the crops to choose from, largest first: those with at least half the pixels of the largest.

    Lost detail costs more than training gains: a smaller crop to buy epochs would not pay.

    Args:
        step: all are multiples of it, as a backbone's `Sizes` say; 0 if it reads no other crop.

    >>> crops_below(224), crops_below(96), crops_below(224, 14)
    ([224, 192, 160], [96], [224, 182])
    """
    crops = [crop - crop % step for crop in CROPS] if step else []
    return [largest, *(crop for crop in crops if largest**2 / 2 <= crop**2 < largest**2)]


def whole_looks(epochs: int) -> tuple[int, int]:
    """Return the epochs between two evaluations, and the most epochs that end with one.

    >>> whole_looks(18), whole_looks(3)
    ((4, 16), (1, 3))
    """
    every = max(1, epochs // LOOKS)
    return every, epochs - epochs % every


def fit(
    pace_at: Callable[[int], Pace],
    work: Workload,
    *,
    crops: list[int],
    epochs: int,
    fewest: int,
    budget: float | None,
    clock: Callable[[], float] = time.perf_counter,
) -> Plan:
    """Return the largest crop, and at it the most epochs, that fit into the budget.

    Without a budget the crop is the largest, and the fewest epochs are trained however long they take. If a
    budget is too short for the fewest epochs at the smallest crop, nothing is trained.

    Args:
        crops: to choose from, largest first.
        epochs: the most.
        fewest: fewer are not worth it.
        clock: tells the seconds, of which finding this out takes some, too.
    """
    begun = clock()

    def plan(crop: int, count: int, pace: Pace) -> Plan:
        measuring = clock() - begun
        return Plan(crop, count, measuring + work.seconds(pace, count), pace, measuring)

    paces = {}
    for crop in crops:
        paces[crop] = pace = pace_at(crop)
        limit = (BUDGET if budget is None else budget) - (clock() - begun)
        fitting = [count for count in range(fewest, epochs + 1) if work.seconds(pace, count) <= limit]
        if fitting or budget is None:
            return plan(crop, whole_looks(max(fitting, default=fewest))[1], pace)
        if work.seconds(pace, fewest) > HOPELESS * limit:
            break
    return plan(crops[0], 0, paces[crops[0]])


def measure_pace(model: ModelPart, source: Source, crop: int, device: torch.device, folder: Path) -> Pace:
    """Return how long an image and a checkpoint take on this machine.

    A few batches, a few decoded images and a file as large as a checkpoint are timed.

    Args:
        folder: on the disk that checkpoints go to.
    """
    network = Embedder(**model.model_dump()).to(device)  # weights that cannot be had are refused now
    channels = network.backbone.in_channels
    images = torch.randint(256, (TIMED, channels, crop, crop), dtype=torch.uint8, device=device)

    def train() -> None:
        network.train()(images).square().mean().backward()

    @torch.no_grad()
    def embed() -> None:
        network.eval()(images)

    decoding = decoding_seconds(source) / (1 if device.type == "cpu" else min(8, os.cpu_count() or 1))
    trained, embedded = (seconds_of(act) / TIMED + decoding for act in (train, embed))
    return Pace(trained, embedded, _saving_seconds(network, folder))


def _saving_seconds(network: Embedder, folder: Path) -> float:
    """Seconds that a checkpoint takes: the weights now and at the start, and two moments of each."""
    kept = trained_part(network, dict(network.named_parameters())).values()
    weights = torch.cat([each.detach().flatten() for each in kept]).cpu().repeat(4)

    def save() -> None:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(weights.numpy().tobytes())
            os.fsync(file.fileno())

    return seconds_of(save, times=1, before=0)


def decoding_seconds(source: Source) -> float:
    """Seconds that it takes to decode and crop a training image."""
    items = [(item, 0) for item in evenly_spaced(len(source.labels), TIMED).tolist()]
    return seconds_of(lambda: source.train.__getitems__(items), times=1, before=0) / len(items)
