"""What a run needs while it trains: built from its recipe, saved to and restored from a checkpoint."""

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from softwarp import processes
from softwarp.data.images import Batch, load_batches
from softwarp.data.sampling import BalancedBatches, Draws, RandomBatches
from softwarp.data.sources import Source
from softwarp.losses import build_loss
from softwarp.losses.contract import classes_here, start_phase
from softwarp.losses.sharding import ShardedLoss
from softwarp.memory import trim_memory
from softwarp.models.adapters import digest_of_frozen, merged, trained_part
from softwarp.models.embedder import Embedder
from softwarp.models.preparation import check_side
from softwarp.models.sync_batch_norm import sync_batch_norm
from softwarp.recipe.schema import BatchPart, Recipe
from softwarp.runs.class_rows import join_state, split_state
from softwarp.runs.run import Run
from softwarp.training.optimizer import Group, build_optimizer, loss_networks
from softwarp.training.random_state import random_state, set_random_state


@dataclass
class State:
    """How far a run has got and what it remembers; all of it is in the checkpoint."""

    step: int = 0  # batches done, over all phases
    loss: float = 0.0  # sum over the current epoch
    best: float = -math.inf  # of the metric that guides training
    best_epoch: int = 0
    since_best: int = 0  # validations without improvement
    since_drop: int = 0  # the same since a plateau last lowered the rates
    drops: int = 0  # in the current phase
    broken: list[str] = field(default_factory=list)  # images that were skipped
    seconds: float = 0.0  # taken so far
    history: list[dict[str, Any]] = field(default_factory=list)  # the rows of metrics.jsonl
    baseline: dict[str, float] | None = None  # metrics of the untrained model
    proxy_rate: float = 0.0  # in the current phase, before its schedule

    def look(self, value: float, epoch: int) -> bool:
        """Record a validation; return whether it is the best so far."""
        if value > self.best:
            self.best, self.best_epoch, self.since_best, self.since_drop = value, epoch, 0, 0
            return True
        self.since_best += 1
        self.since_drop += 1
        return False


@dataclass
class Job:
    """A run in progress. `network` is the model as accelerate wraps it, `state` how far it has got."""

    recipe: Recipe
    run: Run
    accelerator: Accelerator
    source: Source
    batches: BalancedBatches | RandomBatches
    model: Embedder
    network: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    groups: list[Group]  # of the optimizer, in its order
    average: AveragedModel | None
    state: State
    start: Embedder | None = None  # the model before training, where training or evaluation need it
    tell: Callable[[str], None] = lambda _: None  # shows how the last epoch went
    signalled: Callable[[int], None] = lambda _: None  # hears of Ctrl-C at once, in another thread
    clock: float = field(default_factory=time.perf_counter)  # when `state.seconds` was last right

    @property
    def judged(self) -> Embedder:
        """The model that is evaluated: the moving average of the weights, if one is kept."""
        judged: Embedder = self.average.module if self.average else self.model  # type: ignore[assignment]
        return judged

    def final(self) -> Embedder:
        """Return the model that the run hands out: `judged`, or between the start and it (WiSE-FT).

        Adapters are merged.
        """
        share = self.recipe.optimizer.wise_ft
        if share is not None:
            return self.interpolated(share)
        return merged(self.judged) if self.recipe.model.adapter else self.judged

    @torch.no_grad()
    def interpolated(self, share: float) -> Embedder:
        """Return the model at this share of the way from the start to `judged`, weight by weight."""
        assert self.start is not None
        final, start = merged(self.judged).eval(), self.start.state_dict()
        for name, tensor in final.state_dict().items():
            if tensor.is_floating_point():
                tensor.copy_(torch.lerp(start[name], tensor, share))
        return final

    @property
    def batch_size(self) -> int:
        return self.batches.size

    def stream(self) -> Iterator[Batch]:
        """Return this process's share of every batch still to come."""
        draws = Draws(
            self.batches,
            epochs=sum(phase.epochs for phase in self.recipe.phases),
            start=self.state.step,
            rank=processes.rank() if processes.together() else 0,
            processes=processes.count(),
            pieces=self.recipe.batches.accumulate,
        )
        return load_batches(
            self.source.train,  # type: ignore[arg-type]
            draws,
            workers=self.workers(),
            pin_memory=self.accelerator.device.type == "cuda",
        )

    def workers(self) -> int:
        """Return how many processes decode: none for glyphs, many with a GPU, few with busy CPU cores.

        Reading the cache is so fast that on two cores it is better done between the steps.
        """
        if self.recipe.data.workers is not None or self.recipe.data.name == "glyphs":
            return self.recipe.data.workers or 0
        cores = os.cpu_count() or 1
        if self.accelerator.device.type != "cpu":
            return min(8, cores)
        return min(4, max(cores // 4, 0 if self.recipe.data.cache else 1))

    def sampled(self, labels: Tensor) -> AbstractContextManager[None]:
        """Return a context in which one step sees a sample of the classes, and those of these labels."""
        if self.recipe.loss.sample_rate == 1:
            return nullcontext()
        context: AbstractContextManager[None] = self.loss.sampled(processes.joined(labels), self.optimizer)  # type: ignore[operator]
        return context

    def elapsed(self) -> float:
        """Return the seconds that the run has taken, including those before an interruption."""
        return self.state.seconds + time.perf_counter() - self.clock

    def save(self) -> None:
        """Write the checkpoint: everything that the rest of the run depends on."""
        self.state.seconds, self.clock = self.elapsed(), time.perf_counter()
        if processes.is_main() or self.recipe.loss.sharded:
            parts = {name: self._kept(part) for name, part in self._parts().items()}
            rest = {"state": asdict(self.state), "random": random_state(), "data": self.source.sha256}
            rest["frozen"] = self._frozen
            rows = None
            if self.recipe.loss.sharded:
                parts, rows = split_state(parts, self.loss, self.optimizer)
            self.run.save_checkpoint(parts | rest, rows=rows, num_classes=len(self.source.names))

    def restore(self) -> str:
        """Restore the checkpoint, if there is one; return a note for the user about it.

        Rows that were logged after it are removed.
        """
        checkpoint, note = self.run.load_checkpoint()
        if note:
            processes.wait()  # until all have read it
            if processes.is_main():
                self.run.remove_damaged_checkpoint()
        if checkpoint is not None:
            self.run.check_data(checkpoint["data"], self.source.sha256)
            if self.recipe.loss.sharded:
                rows, device = len(classes_here(self.loss)), self.accelerator.device
                found = self.run.load_rows(checkpoint, len(self.source.names), rows, device)
                checkpoint = join_state(checkpoint, found, self.loss, self.optimizer)
            if checkpoint.get("frozen", "") != self._frozen:
                raise ValueError(
                    f"the pretrained weights of {self.recipe.model.backbone} are others than those that "
                    f"{self.run.folder} was trained from; bring them back, or start afresh (--fresh)"
                )
            for name, part in self._parts().items():
                strict = {"strict": False} if self._adapts(part) else {}
                part.load_state_dict(checkpoint[name], **strict)
            self.state = State(**checkpoint["state"])
            set_random_state(checkpoint["random"])
        if processes.is_main():
            self.run.rewind(self.state.history)
        return note

    @cached_property
    def _frozen(self) -> str:
        """A hash of the pretrained weights, where they are not in the checkpoint."""
        return digest_of_frozen(self.model)

    def _kept(self, part: Any) -> dict[str, Any]:
        """What a checkpoint keeps of a part: of a network with adapters, what is not the pretrained one."""
        state: dict[str, Any] = part.state_dict()
        return trained_part(self.model, state) if self._adapts(part) else state

    def _adapts(self, part: Any) -> bool:
        return self.recipe.model.adapter is not None and isinstance(part, nn.Module) and part is not self.loss

    def _parts(self) -> dict[str, Any]:
        scaler = self.accelerator.scaler
        parts = {"model": self.model, "loss": self.loss, "optimizer": self.optimizer}
        others = {"average": self.average, "scaler": scaler, "start": self.start}
        return parts | {name: part for name, part in others.items() if part is not None}


def prepare(recipe: Recipe, run: Run, accelerator: Accelerator, source: Source) -> Job:
    """Return the job at its start: model and loss built from the seed."""
    batches = build_batches(recipe.batches, source.labels, recipe.seed, source.shards)
    if recipe.data.name != "glyphs":  # they are as large as they are
        check_side(recipe.model.backbone, recipe.data.crop)
    torch.manual_seed(recipe.seed)
    model = Embedder(**recipe.model.model_dump()).to(accelerator.device)
    loss = build_whole_or_sharded(recipe, len(source.names)).to(accelerator.device)
    try_phases(recipe, loss)
    if any(phase.network_learning_rate for phase in recipe.phases) and not loss_networks(loss):
        raise ValueError(f"{recipe.loss.name} trains no network; omit network_learning_rate")
    if processes.count() > 1:
        sync_batch_norm(model)
    built, groups = build_optimizer(recipe.optimizer, model, loss)
    network, optimizer = accelerator.prepare(model, built)
    decay = recipe.optimizer.average
    average = (
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True) if decay else None
    )
    needed = recipe.optimizer.wise_ft or recipe.optimizer.l2_sp or recipe.evaluation.interpolations
    return Job(
        recipe,
        run,
        accelerator,
        source,
        batches,
        model,
        network,
        loss,
        optimizer,
        groups,
        average,
        State(),
        start=merged(model) if needed else None,
    )


def build_whole_or_sharded(recipe: Recipe, num_classes: int) -> nn.Module:
    """Return the loss; a sharded one starts with the same class vectors as a whole one."""
    part, size = recipe.loss, recipe.model.embedding_size
    if not part.sharded:
        return build_loss(part.name, num_classes, size, **part.settings)
    with processes.in_turn():  # each has all classes for a moment
        whole = build_loss(part.name, num_classes, size, **part.settings)
        sharded = ShardedLoss(whole, sample_rate=part.sample_rate, seed=recipe.seed)
        trim_memory()  # of the other classes
    return sharded


def build_batches(
    settings: BatchPart, labels: Tensor, seed: int, shards: Tensor | None = None
) -> BalancedBatches | RandomBatches:
    """Return the batch sampler: random if the recipe gives a size, otherwise by classes."""
    if settings.size is not None:
        return RandomBatches(
            len(labels), size=settings.size, seed=seed, shards=shards, per_epoch=settings.per_epoch
        )
    assert settings.classes is not None
    assert settings.samples is not None
    return BalancedBatches(
        labels,
        classes_per_batch=settings.classes,
        samples_per_class=settings.samples,
        seed=seed,
        independent=settings.draw == "independent",
        per_epoch=settings.per_epoch,
    )


def try_phases(recipe: Recipe, loss: nn.Module) -> None:
    """Raise a ValueError for settings of the loss that a later phase could not set."""
    trial = deepcopy(loss, {id(each): each for each in loss.parameters()})  # without a copy of the proxies
    for number, phase in enumerate(recipe.phases):
        try:
            start_phase(trial, phase.loss_settings)
        except ValueError as error:
            raise ValueError(f"phases.{number}.loss_settings: {error}") from None


def start_accelerator(recipe: Recipe, folder: Path) -> Accelerator:
    """Return accelerate's view of devices, processes and precision."""
    AcceleratorState._reset_state()  # an earlier run in this process may have had another precision
    frozen = any(phase.freeze_backbone for phase in recipe.phases)
    accelerator = Accelerator(
        cpu=not torch.accelerator.is_available(),  # else it would overlook the other processes
        mixed_precision="no" if recipe.precision == "fp32" else recipe.precision,
        log_with=list(recipe.trackers) or None,
        project_dir=folder,
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=frozen)],
    )
    if recipe.precision == "fp16" and accelerator.device.type == "cpu":
        raise ValueError("precision fp16 needs a GPU; on a CPU use precision=bf16, or omit it")
    return accelerator


def start_trackers(accelerator: Accelerator, recipe: Recipe) -> None:
    """Open the trackers that the recipe names; a ValueError names those that are not installed."""
    if recipe.trackers:
        accelerator.init_trackers("softwarp", config={"loss": recipe.loss.name, "seed": recipe.seed})
        missing = set(recipe.trackers) - {tracker.name for tracker in accelerator.trackers}
        if missing and processes.is_main():
            raise ValueError(f"cannot log to {', '.join(sorted(missing))}: pip install it first")
