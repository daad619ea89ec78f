"""What a study will take: trainings, hours and disk, from a few timed steps."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from softwarp.data.sources import Source, load_source
from softwarp.data.splits import SplitPlan
from softwarp.evaluate import embed_images
from softwarp.job import Job, build_batches, prepare, start_accelerator
from softwarp.losses import build_loss
from softwarp.recipe import Recipe
from softwarp.runs import Run
from softwarp.train import set_rates, start_phase, take_step

TIMED = 3  # steps, of which the first loads and allocates
EMBEDDED = 64  # images
OPTIMIZER_COPIES = 3  # weights and what Adam keeps, in a checkpoint
CHECKPOINTS = 2  # that an unfinished run has


@dataclass(frozen=True)
class Cost:
    """Of many trainings: seconds for one worker, bytes when all are finished, bytes of one while it runs."""

    trainings: int
    seconds: float
    kept: int
    running: int

    def __str__(self) -> str:
        """Return it in words."""
        hours = self.seconds / 3600
        length = f"{hours:.1f} hours" if hours >= 1 else f"{math.ceil(60 * hours)} min"
        disk = f"{_size(self.kept)} of disk, and {_size(self.running)} per worker while it trains"
        return f"{self.trainings} trainings, about {length} for one worker, {disk}"


@dataclass(frozen=True)
class Training:
    """Trainings of one kind.

    Args:
        times: how many.
        looks: evaluations on the way.
        kept: whether model and embeddings are.
    """

    recipe: Recipe
    times: int
    looks: int = 0
    kept: bool = True


def estimate(trainings: Sequence[Training], folder: Path) -> Cost:
    """Return what trainings with the same network will take; the first is timed, of others only the loss."""
    sizes: dict[SplitPlan, Sizes] = {}
    recipe, source = trainings[0].recipe, _source(trainings[0].recipe)
    job = prepare(recipe, Run(folder), start_accelerator(recipe, folder), source)
    step, image = _step_seconds(job), _seconds_per_image(job)
    first, seconds, kept = _loss_seconds(recipe, len(source.names)), 0.0, 0
    weights = sum(each.numel() * each.element_size() for each in job.model.state_dict().values())
    for training in trainings:
        recipe = training.recipe
        plan = recipe.evaluation.plan()
        if plan not in sizes:
            sizes[plan] = _sizes(recipe)
        steps = sizes[plan].batches * sum(phase.epochs for phase in recipe.phases)
        each = step + _loss_seconds(recipe, sizes[plan].classes) - first
        seconds += training.times * (steps * each + (training.looks + 1) * sizes[plan].judged * image)
        embeddings = 4 * sizes[plan].judged * recipe.model.embedding_size
        kept += training.times * training.kept * (weights + embeddings)
    running = OPTIMIZER_COPIES * CHECKPOINTS * weights
    return Cost(sum(training.times for training in trainings), seconds, kept, running)


@dataclass(frozen=True)
class Sizes:
    """Of what a plan divides: batches of an epoch, training classes, images that are judged."""

    batches: int
    classes: int
    judged: int


def _sizes(recipe: Recipe) -> Sizes:
    source = _source(recipe)
    batches = build_batches(recipe.batches, source.labels, recipe.seed)
    judged = len(source.query_labels) + (0 if source.gallery_labels is None else len(source.gallery_labels))
    return Sizes(len(batches), len(source.names), judged)


def _source(recipe: Recipe) -> Source:
    return load_source(plan=recipe.evaluation.plan(), **recipe.data.model_dump(exclude={"workers"}))


def _step_seconds(job: Job) -> float:
    """Seconds that a step takes, decoding included."""
    phase, stream = job.recipe.phases[0], job.stream()
    start_phase(phase, job)
    set_rates(job, phase, 0)
    return _timed(lambda: take_step(job, phase, 0, next(stream)))


def _timed(act: Callable[[], object]) -> float:
    """The shortest of a few calls."""
    taken = []
    for _ in range(TIMED):
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return min(taken)


def _seconds_per_image(job: Job) -> float:
    items = torch.arange(min(EMBEDDED, len(job.source.query_labels)))
    job.judged.eval()

    def act() -> None:
        embed_images(job.judged, job.source.queries, device=job.accelerator.device, items=items)

    return _timed(act) / len(items)


def _loss_seconds(recipe: Recipe, classes: int) -> float:
    """Seconds that the loss alone takes on a batch."""
    batches, size = recipe.batches, recipe.model.embedding_size
    loss = build_loss(recipe.loss.name, classes, size, **recipe.loss.settings)
    count = batches.size or (batches.classes or 1) * (batches.samples or 1)
    labels = torch.arange(count) // (batches.samples or 1) % classes
    embeddings = torch.randn(count, size, requires_grad=True)
    return _timed(lambda: loss(embeddings, labels).backward())


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
