"""What a study will take: trainings, hours and disk, from a few timed steps."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from softwarp.data.sources import Source, load_source
from softwarp.data.splits import SplitPlan
from softwarp.evaluation import embed_images
from softwarp.losses import build_loss
from softwarp.recipe.schema import Recipe
from softwarp.runs.run import Run
from softwarp.tables import counted
from softwarp.training.job import Job, build_batches, prepare, start_accelerator
from softwarp.training.start import PLACED, REACH_IMAGES
from softwarp.training.step_batches import fit_batches
from softwarp.training.timing import seconds_of
from softwarp.training.train import begin_phase, set_rates, take_step

TIMED = 3  # steps, of which the first loads and allocates: as `seconds_of` makes them
EMBEDDED = 64  # images
OPTIMIZER_COPIES = 3  # weights and what Adam keeps, in a checkpoint
CHECKPOINTS = 2  # an unfinished run has as many


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
        return f"{counted(self.trainings, 'training')}, about {length} for one worker, {disk}"


@dataclass(frozen=True)
class TrainingKind:
    """Trainings of one kind.

    Args:
        times: how many.
        kept: whether model and embeddings are.
    """

    recipe: Recipe
    times: int
    kept: bool = True


@dataclass(frozen=True)
class Sizes:
    """Of what a plan divides: batches of an epoch, classes and images that train, images that are judged."""

    batches: int
    classes: int
    images: int
    judged: int


@dataclass(frozen=True)
class StudyPace:
    """What was timed with one recipe, and what others with the same network need besides.

    Args:
        step: seconds of a training step, decoding included.
        image: seconds to embed an image.
        loss: seconds of that recipe's loss alone, which `step` contains.
        weights: bytes of the model.
    """

    step: float
    image: float
    loss: float
    weights: int
    sizes: dict[SplitPlan, Sizes] = field(default_factory=dict)
    losses: dict[tuple[str, SplitPlan], float] = field(default_factory=dict)

    def sizes_of(self, recipe: Recipe) -> Sizes:
        """Return the sizes that a recipe's plan gives."""
        plan = recipe.evaluation.plan()
        if plan not in self.sizes:
            self.sizes[plan] = _sizes(recipe)
        return self.sizes[plan]

    def step_of(self, recipe: Recipe) -> float:
        """Return the seconds of a step with the recipe's loss."""
        key = recipe.loss.name, recipe.evaluation.plan()
        if key not in self.losses:
            self.losses[key] = _loss_seconds(recipe, self.sizes_of(recipe).classes)
        return max(0.0, self.step + self.losses[key] - self.loss)

    def seconds_of(self, training: TrainingKind) -> float:
        """Return the seconds of all trainings of one kind: starts, steps, looks."""
        recipe, sizes = training.recipe, self.sizes_of(training.recipe)
        epochs = sum(phase.epochs for phase in recipe.phases)
        looks = epochs // recipe.evaluation.every if recipe.evaluation.every else 0
        embedded = (looks + 1 + recipe.evaluation.baseline) * sizes.judged
        embedded += _at_start(recipe, sizes)
        embedded += max(1, epochs) * min(recipe.evaluation.avg_dtp_images, sizes.images)
        return training.times * (sizes.batches * epochs * self.step_of(recipe) + embedded * self.image)


def time_steps(recipe: Recipe, folder: Path) -> StudyPace:
    """Return the pace of a recipe on this machine, from a few steps of its training."""
    recipe = _with_steps_to_time(fit_batches(recipe))
    source = _source(recipe)
    job = prepare(recipe, Run(folder), start_accelerator(recipe, folder), source)
    step, image = _step_seconds(job), _seconds_per_image(job)
    weights = sum(each.numel() * each.element_size() for each in job.model.state_dict().values())
    return StudyPace(step, image, _loss_seconds(recipe, len(source.names)), weights)


def _with_steps_to_time(recipe: Recipe) -> Recipe:
    """The recipe with epochs enough for the steps that are timed: one may have a single step."""
    first = recipe.phases[0].model_copy(update={"epochs": max(TIMED, recipe.phases[0].epochs), "span": None})
    return recipe.model_copy(update={"phases": (first, *recipe.phases[1:])})


def cost_of(trainings: Sequence[TrainingKind], pace: StudyPace) -> Cost:
    """Return what trainings take at this pace."""
    embeddings = [
        4 * pace.sizes_of(each.recipe).judged * each.recipe.model.embedding_size for each in trainings
    ]
    return Cost(
        trainings=sum(each.times for each in trainings),
        seconds=sum(pace.seconds_of(each) for each in trainings),
        kept=sum(t.times * t.kept * (pace.weights + e) for t, e in zip(trainings, embeddings, strict=True)),
        running=OPTIMIZER_COPIES * CHECKPOINTS * pace.weights,
    )


def _at_start(recipe: Recipe, sizes: Sizes) -> int:
    """Training images that are embedded before the first step, for head, proxies and their rate."""
    placed = recipe.model.head_init in PLACED or recipe.loss.proxy_init == "means"
    travels = any(phase.proxy_travel for phase in recipe.phases)
    return sizes.images * placed + min(REACH_IMAGES, sizes.images) * travels


def _sizes(recipe: Recipe) -> Sizes:
    source, recipe = _source(recipe), fit_batches(recipe)
    batches = build_batches(recipe.batches, source.labels, recipe.seed)
    judged = len(source.query_labels) + (0 if source.gallery_labels is None else len(source.gallery_labels))
    return Sizes(len(batches), len(source.names), len(source.labels), judged)


def _source(recipe: Recipe) -> Source:
    return load_source(recipe.data, recipe.evaluation.plan())


def _step_seconds(job: Job) -> float:
    """Seconds that a step takes, decoding included."""
    phase, stream = job.recipe.phases[0], job.stream()
    begin_phase(phase, job)
    set_rates(job, phase, 0)
    return seconds_of(lambda: take_step(job, phase, 0, next(stream)))


def _seconds_per_image(job: Job) -> float:
    items = torch.arange(min(EMBEDDED, len(job.source.query_labels)))
    job.judged.eval()

    def act() -> None:
        embed_images(job.judged, job.source.queries, device=job.accelerator.device, items=items)

    return seconds_of(act) / len(items)


def _loss_seconds(recipe: Recipe, classes: int) -> float:
    """Seconds that the loss alone takes on a batch."""
    batches, size = recipe.batches, recipe.model.embedding_size
    loss = build_loss(recipe.loss.name, classes, size, **recipe.loss.settings)
    count = batches.size or (batches.classes or 1) * (batches.samples or 1)
    labels = torch.arange(count) // (batches.samples or 1) % classes
    embeddings = torch.randn(count, size, requires_grad=True)
    return seconds_of(lambda: loss(embeddings, labels).backward())


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
