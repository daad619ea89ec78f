"""All that a run needs while it trains, built from its recipe and saved to and restored from a checkpoint."""

import os
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate import Accelerator, DistributedDataParallelKwargs
from accelerate.state import AcceleratorState
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from softwarp.data.images import Batch, load_batches
from softwarp.data.sampling import BalancedBatches, Draws
from softwarp.data.sources import Source, glyph_source, image_source
from softwarp.losses import build_loss
from softwarp.losses.contract import start_phase
from softwarp.models.embedder import Embedder
from softwarp.models.sync_batch_norm import sync_batch_norm
from softwarp.recipe import OptimizerPart, Recipe, check_root
from softwarp.runs import Run, random_state, set_random_state
from softwarp.schedule import State

if TYPE_CHECKING:
    from rich.progress import Progress


@dataclass
class Job:
    """A run under way. `network` is the model as accelerate wraps it, `state` how far it is."""

    recipe: Recipe
    run: Run
    accelerator: Accelerator
    source: Source
    batches: BalancedBatches
    model: Embedder
    network: nn.Module
    loss: nn.Module
    optimizer: torch.optim.Optimizer
    average: AveragedModel | None
    state: State
    tell: Callable[[str], None] = lambda _: None  # shows how the last epoch went

    @property
    def judged(self) -> Embedder:
        """The model that is evaluated: the moving average of the weights, where one is kept."""
        judged: Embedder = self.average.module if self.average else self.model  # type: ignore[assignment]
        return judged

    @property
    def batch_size(self) -> int:
        return self.recipe.batches.classes * self.recipe.batches.samples

    def stream(self) -> Iterator[Batch]:
        """Return this process's share of every batch still to come."""
        draws = Draws(
            self.batches,
            epochs=sum(phase.epochs for phase in self.recipe.phases),
            start=self.state.step,
            rank=self.accelerator.process_index,
            processes=self.accelerator.num_processes,
            pieces=self.recipe.batches.accumulate,
        )
        return load_batches(
            self.source.train,  # type: ignore[arg-type]
            draws,
            workers=self.workers(),
            pin_memory=self.accelerator.device.type == "cuda",
        )

    def workers(self) -> int:
        """Return how many processes decode: none for glyphs, many beside a GPU, few beside busy cores.

        From the cache it takes so little time that on two cores it is quicker done between the steps.
        """
        if self.recipe.data.workers is not None or self.recipe.data.name == "glyphs":
            return self.recipe.data.workers or 0
        cores = os.cpu_count() or 1
        if self.accelerator.device.type != "cpu":
            return min(8, cores)
        return min(4, max(cores // 4, 0 if self.recipe.data.cache else 1))

    def save(self) -> None:
        """Write the checkpoint: all that the rest of the run depends on."""
        if self.accelerator.is_main_process:
            parts = {name: part.state_dict() for name, part in self._parts().items()}
            rest = {"state": asdict(self.state), "random": random_state(), "data": self.source.sha256}
            self.run.save_checkpoint(parts | rest)

    def restore(self) -> None:
        """Go back to the checkpoint, if there is one; rows that were logged after it are taken back."""
        checkpoint = self.run.load_checkpoint()
        if checkpoint is not None:
            check_data(self.run, checkpoint["data"], self.source)
            for name, part in self._parts().items():
                part.load_state_dict(checkpoint[name])
            self.state = State(**checkpoint["state"])
            set_random_state(checkpoint["random"])
        if self.accelerator.is_main_process:
            self.run.cut_history(self.state.step // len(self.batches))

    def _parts(self) -> dict[str, Any]:
        scaler = self.accelerator.scaler
        parts = {"model": self.model, "loss": self.loss, "optimizer": self.optimizer}
        return parts | {
            name: part for name, part in (("average", self.average), ("scaler", scaler)) if part is not None
        }


def prepare(recipe: Recipe, run: Run, accelerator: Accelerator, source: Source) -> Job:
    """Return the job at its start: model and loss built from the seed."""
    batches = BalancedBatches(
        source.labels,
        classes_per_batch=recipe.batches.classes,
        samples_per_class=recipe.batches.samples,
        seed=recipe.seed,
    )
    torch.manual_seed(recipe.seed)
    model = Embedder(**recipe.model.model_dump()).to(accelerator.device)
    loss = build_loss(
        recipe.loss.name, len(source.names), recipe.model.embedding_size, **recipe.loss.settings
    ).to(accelerator.device)
    try_phases(recipe, loss)
    if accelerator.num_processes > 1:
        sync_batch_norm(model)
    network, optimizer = accelerator.prepare(model, build_optimizer(recipe.optimizer, model, loss))
    decay = recipe.optimizer.average
    average = (
        AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True) if decay else None
    )
    return Job(recipe, run, accelerator, source, batches, model, network, loss, optimizer, average, State())


def try_phases(recipe: Recipe, loss: nn.Module) -> None:
    """Raise a ValueError for settings of the loss that a later phase could not set."""
    trial = deepcopy(loss)
    for number, phase in enumerate(recipe.phases):
        try:
            start_phase(trial, phase.loss_settings)
        except ValueError as error:
            raise ValueError(f"phases.{number}.loss_settings: {error}") from None


def check_data(run: Run, sha256: str, source: Source) -> None:
    """Raise a ValueError unless the run was made from these images."""
    if sha256 != source.sha256:
        raise ValueError(
            f"{run.folder} holds a run on other images (files or labels have changed since); choose another "
            "--output, or start anew with --fresh"
        )


def load_source(recipe: Recipe, progress: "Progress | None" = None) -> Source:
    """Return what the recipe's data part names, divided as its evaluation part says."""
    data, protocol = recipe.data, recipe.evaluation.split
    if data.name == "glyphs":
        return glyph_source(protocol=protocol, max_classes=data.max_classes)
    check_root(recipe)
    assert data.root is not None
    task = (
        progress.add_task("decoding images into the cache", total=None) if progress and data.cache else None
    )
    source = image_source(
        data.name,
        Path(data.root).expanduser(),
        protocol=protocol,
        transform=data.train_transform,
        resize=data.resize,
        crop=data.crop,
        scale=data.scale,
        max_classes=data.max_classes,
        cache=data.cache,
        strict=data.strict,
        advance=(lambda: progress.advance(task)) if progress and task is not None else None,
    )
    if progress and task is not None:
        progress.remove_task(task)
    return source


def build_optimizer(settings: OptimizerPart, model: Embedder, loss: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer by name, with a group each for backbone, head and loss; rates come later."""
    owned = (model.backbone_parameters(), model.head_parameters(), loss.parameters())
    groups: list[dict[str, Any]] = [{"params": list(parameters)} for parameters in owned]
    decay = settings.weight_decay
    if settings.name == "sgd":
        return torch.optim.SGD(
            groups, lr=0.0, momentum=settings.momentum, nesterov=settings.nesterov, weight_decay=decay
        )
    if settings.name == "rmsprop":
        return torch.optim.RMSprop(
            groups, lr=0.0, eps=settings.eps, momentum=settings.momentum, weight_decay=decay
        )
    kind = torch.optim.Adam if settings.name == "adam" else torch.optim.AdamW
    return kind(groups, lr=0.0, eps=settings.eps, weight_decay=decay)


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
    if recipe.trackers:
        accelerator.init_trackers("softwarp", config={"loss": recipe.loss.name, "seed": recipe.seed})
        missing = set(recipe.trackers) - {tracker.name for tracker in accelerator.trackers}
        if missing and accelerator.is_main_process:
            raise ValueError(f"{', '.join(sorted(missing))} cannot be logged to: pip install it first")
    return accelerator
