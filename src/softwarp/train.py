"""train(recipe, folder) -> Run: the visible loop."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import gather_object
from torch import Tensor, nn

from softwarp.bars import show_bars, tell_download
from softwarp.data.images import Batch
from softwarp.evaluate import embed_images, measure
from softwarp.job import Job, check_data, load_source, prepare, start_accelerator
from softwarp.losses import WarpedSoftmaxLoss
from softwarp.metrics import average_distance_to_proxy
from softwarp.recipe import Phase, Recipe, check_batches
from softwarp.runs import Run
from softwarp.schedule import factor, stretches

if TYPE_CHECKING:
    from rich.progress import Progress


SMALLEST_SCALE = (
    2**-10
)  # of fp16 losses; it starts at 2**16 and is halved with every step that must be skipped


class BlowUpError(ValueError):
    """A loss or gradient that is not finite; the last good checkpoint is kept."""


class StoppedError(KeyboardInterrupt):
    """Training was asked to stop; the checkpoint holds all of it."""


def train(recipe: Recipe, folder: Path, *, resume: bool = False, progress: "Progress | None" = None) -> Run:
    """Return the finished run: trained on the training classes, evaluated on classes never seen.

    The seed decides initial weights, batches, augmentation and clustering; two losses with the same seed see
    the same batches and start from the same network. With `resume`, a run of the same recipe in `folder` goes
    on from its checkpoint and ends, on the same machine, in the very same weights; a finished run stays.
    """
    started = time.perf_counter()
    check_batches(recipe)
    accelerator = start_accelerator(recipe, folder)
    with accelerator.local_main_process_first():  # a cache is made once
        run, source = Run(folder), load_source(recipe, progress)
    if resume and run.started():
        run.check_recipe(recipe)
        if run.finished():
            check_data(run, run.result()["data_sha256"], source)
            return run
    if progress and accelerator.is_main_process:
        tell_download(recipe, progress)
    job = prepare(recipe, run, accelerator, source)
    with accelerator.main_process_first():  # nothing is written before all of the recipe has proved good
        if accelerator.is_main_process and not (resume and run.started()):
            Run.create(folder, recipe)
    job.restore()
    state, epoch_steps = job.state, len(job.batches)
    if recipe.evaluation.baseline and "baseline" not in state.notes:
        state.notes["baseline"] = evaluate(job, job.judged.features, distance="cosine", clustering=False)
    stream, saved = job.stream(), time.perf_counter()
    advance = show_bars(job, progress)
    with _asked_to_stop(job) as asked:
        for number, phase, first, last in stretches(recipe.phases, epoch_steps):
            if state.step == first:
                start_phase(phase, job)
            while state.step < last:
                batch = next(stream)
                set_rates(job, phase, (state.step - first) / epoch_steps)
                value = take_step(job, phase, number, batch)
                state.step += 1
                state.loss += value
                state.broken += [path for path in batch.broken if path not in state.broken]
                advance()
                if state.step % epoch_steps == 0 and not end_epoch(job, phase, number, started):
                    state.step = last
                    stream = job.stream()
                stop = asked()
                due = time.perf_counter() - saved > 60 * recipe.checkpoint_minutes
                if stop or due or state.step % epoch_steps == 0:
                    state.seconds, started = (
                        state.seconds + time.perf_counter() - started,
                        time.perf_counter(),
                    )
                    job.save()
                    saved = started
                if stop:
                    raise StoppedError
    finish(job, started)
    accelerator.end_training()
    return run


def take_step(job: Job, phase: Phase, number: int, batch: Batch) -> float:
    """Change all weights once; return the loss, which is that of the whole batch in every process."""
    accelerator, pieces = job.accelerator, job.recipe.batches.accumulate
    job.network.train()
    job.loss.train()
    if phase.freeze_backbone:
        job.model.backbone.eval()
    job.optimizer.zero_grad()
    images = batch.images.to(accelerator.device, non_blocking=True)
    labels = batch.labels.to(accelerator.device, non_blocking=True)
    total = 0.0
    for piece in range(pieces):
        own = slice(piece * len(labels) // pieces, (piece + 1) * len(labels) // pieces)
        with accelerator.autocast():
            embeddings = job.network(images[own], freeze_backbone=phase.freeze_backbone)
        everyone = _gather(job, embeddings, labels[own])
        try:
            with accelerator.autocast():
                value = job.loss(*everyone) / pieces
        except ValueError as error:
            if bool(everyone[0].isfinite().all()):
                raise  # the batch cannot serve this loss: nothing blew up
            raise _blow_up(job, number, f"the loss says: {error}", *everyone) from None
        if not bool(value.isfinite()):
            raise _blow_up(job, number, f"the loss is {value.item()}", *everyone)
        accelerator.backward(value)
        total += value.item()
    _share_loss_gradients(job)
    if job.recipe.precision != "fp16":  # there the scaler skips such steps and lowers its factor
        gradients = [p.grad for p in (*job.model.parameters(), *job.loss.parameters()) if p.grad is not None]
        if not bool(nn.utils.get_total_norm(gradients, foreach=True).isfinite()):
            raise _blow_up(job, number, "a gradient is not finite", *everyone)
    if job.recipe.optimizer.clip_value is not None:  # after the look: it would turn inf into a number
        accelerator.clip_grad_value_(job.model.parameters(), job.recipe.optimizer.clip_value)
    job.optimizer.step()
    if accelerator.scaler is not None and accelerator.scaler.get_scale() < SMALLEST_SCALE:
        raise _blow_up(job, number, "gradients are not finite at any scale of fp16", *everyone)
    if job.average and not accelerator.optimizer_step_was_skipped:
        job.average.update_parameters(job.model)
    return total


def start_phase(phase: Phase, job: Job) -> None:
    """Set the loss's warp for this phase; the optimizer keeps its state."""
    job.state.drops = job.state.since_drop = job.state.since_best = 0
    if phase.loss_settings and isinstance(job.loss, WarpedSoftmaxLoss):
        job.loss.set_warp(**phase.loss_settings)


def set_rates(job: Job, phase: Phase, epoch: float) -> None:
    """Set the learning rates of backbone, head and loss, `epoch` epochs after the phase's start."""
    head = phase.head_learning_rate or phase.learning_rate
    rates = (phase.learning_rate, head, phase.proxy_learning_rate)
    for group, rate in zip(job.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate * factor(phase, epoch, job.state.drops)


def end_epoch(job: Job, phase: Phase, number: int, started: float) -> bool:
    """Log the epoch, look at the validation classes where the recipe says so; return whether to go on."""
    state, settings, steps = job.state, job.recipe.evaluation, len(job.batches)
    epoch = state.step // steps
    row: dict[str, Any] = {"epoch": epoch, "phase": number, "loss": state.loss / steps}
    row["avg_dtp"] = distance_to_proxy(job)
    if settings.split == "validation" and settings.every and epoch % settings.every == 0:
        measured = evaluate(job, job.judged, distance=str(job.loss.distance), clustering=False)
        row["validation"] = measured
        if settings.metric not in measured:
            raise ValueError(f"evaluation.metric {settings.metric!r} is not one of {', '.join(measured)}")
        if state.look(measured[settings.metric], epoch) and settings.patience:
            job.run.save_model(job.judged.state_dict())
        if phase.schedule == "plateau" and state.since_drop >= phase.plateau:
            state.drops, state.since_drop = state.drops + 1, 0
    state.broken = sorted(set(gather_object(state.broken)))
    row["broken_images"] = len(state.broken)
    row["seconds"] = state.seconds + time.perf_counter() - started
    state.loss = 0.0
    if job.accelerator.is_main_process:
        job.run.log(row)
        seen = f", {settings.metric} {row['validation'][settings.metric]:.4f}" if "validation" in row else ""
        job.tell(f"{job.recipe.loss.name}, epoch {epoch}, loss {row['loss']:.3f}{seen}")
    job.accelerator.log(
        {key: value for key, value in row.items() if isinstance(value, int | float)}, step=epoch
    )
    return not (settings.patience and state.since_best >= settings.patience)


def finish(job: Job, started: float) -> None:
    """Evaluate, and write model, embeddings and result: the run is done when the result is there."""
    recipe = job.recipe
    if recipe.evaluation.patience and job.state.best_epoch:
        job.judged.load_state_dict(job.run.load_model())  # the best that validation saw
    measured = evaluate(
        job, job.judged, distance=str(job.loss.distance), clustering=recipe.evaluation.clustering, keep=True
    )
    if job.accelerator.is_main_process:
        _write(job, measured, started)
    job.accelerator.wait_for_everyone()  # the result is there for all


def _write(job: Job, measured: dict[str, float], started: float) -> None:
    recipe, state = job.recipe, job.state
    job.run.save_model(job.judged.state_dict())
    last = job.run.history()[-1]
    if recipe.evaluation.patience and state.best_epoch:
        last = next(row for row in job.run.history() if row["epoch"] == state.best_epoch)
    job.run.write_result(
        {
            "name": recipe.loss.name,
            "distance": job.loss.distance,
            "split": recipe.evaluation.split,
            "classes": {
                "train": len(job.source.names),
                "evaluated": len(job.source.query_labels.unique()),
            },
            "images": {"train": len(job.source.labels), "evaluated": len(job.source.query_labels)},
            "metrics": measured | {"avg_dtp": last["avg_dtp"]},
            **state.notes,
            "epochs": sum(row["epoch"] <= last["epoch"] for row in job.run.history()),
            "broken_images": state.broken,
            "seconds": state.seconds + time.perf_counter() - started,
            "data_sha256": job.source.sha256,
        }
    )


def evaluate(
    job: Job, model: Callable[[Tensor], Tensor], *, distance: str, clustering: bool, keep: bool = False
) -> dict[str, float]:
    """Return the metrics on the classes that the recipe evaluates; `keep` writes their embeddings."""
    source, device, workers = job.source, job.accelerator.device, job.workers()
    job.judged.eval()
    queries, query_items = embed_images(model, source.queries, device=device, workers=workers)
    labels = source.query_labels[query_items]
    left_out = source.queries.paths_without(query_items)
    gallery, gallery_labels = None, None
    if source.gallery is not None and source.gallery_labels is not None:
        gallery, items = embed_images(model, source.gallery, device=device, workers=workers)
        gallery_labels = source.gallery_labels[items]
        left_out += source.gallery.paths_without(items)
    job.state.notes["evaluation_left_out"] = left_out
    if keep and job.accelerator.is_main_process:
        job.run.save_embeddings(queries, labels, gallery, gallery_labels)
    metrics: dict[str, float] = measure(
        queries,
        labels,
        gallery=gallery,
        gallery_labels=gallery_labels,
        families=("retrieval", "clustering") if clustering else ("retrieval",),
        ks=job.recipe.evaluation.ks,
        distance=distance,
        seed=job.recipe.seed,
    )["metrics"]
    return metrics


def distance_to_proxy(job: Job) -> float | None:
    """Return AvgDTP in the space where the loss measures, None for a loss without one proxy a class."""
    proxies, count = getattr(job.loss, "proxies", None), len(job.source.labels)
    observed = min(job.recipe.evaluation.avg_dtp_images, count)
    if not isinstance(proxies, Tensor) or proxies.shape[0] != len(job.source.names) or not observed:
        return None
    items = torch.linspace(0, count - 1, observed).long()
    job.judged.eval()
    embeddings, seen = embed_images(
        job.judged, job.source.plain, device=job.accelerator.device, items=items, workers=job.workers()
    )
    proxies = proxies.detach().float().cpu()
    if job.loss.distance == "cosine":
        embeddings, proxies = nn.functional.normalize(embeddings), nn.functional.normalize(proxies)
    return average_distance_to_proxy(embeddings, job.source.labels[seen], proxies)


def _gather(job: Job, embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the embeddings and labels of all processes, so that the loss sees the whole batch.

    Only this process's embeddings carry a gradient; it is multiplied by the number of processes because the
    gradients of the model's weights are averaged over them afterwards.
    """
    processes, rank = job.accelerator.num_processes, job.accelerator.process_index
    if processes == 1:
        return embeddings, labels
    parts = list(job.accelerator.gather(embeddings.detach()).chunk(processes))
    embeddings.register_hook(lambda gradient: gradient * processes)
    parts[rank] = embeddings
    return torch.cat(parts), job.accelerator.gather(labels)


def _share_loss_gradients(job: Job) -> None:
    """Average them over processes: equal but for rounding, which must not drift apart."""
    if job.accelerator.num_processes > 1:
        for parameter in job.loss.parameters():
            if parameter.grad is not None:
                parameter.grad = job.accelerator.reduce(parameter.grad, "mean")


def _blow_up(job: Job, number: int, what: str, embeddings: Tensor, labels: Tensor) -> BlowUpError:
    """Return an error that says where it happened, log it, and leave the last checkpoint as it is."""
    bad = labels[~embeddings.detach().isfinite().all(dim=1)]
    classes = sorted({job.source.names[label] for label in bad.tolist()})
    culprits = (
        f"embeddings of {', '.join(classes[:3])} are not finite" if classes else "no embedding stands out"
    )
    epoch, step = divmod(job.state.step, len(job.batches))
    rates = [group["lr"] for group in job.optimizer.param_groups]
    row = {
        "event": "blow_up",
        "what": what,
        "phase": number,
        "epoch": epoch + 1,
        "step": step,
        "classes": classes,
        "loss": job.recipe.loss.model_dump() | {"phase": job.recipe.phases[number].loss_settings},
        "learning_rates": rates,
    }
    if job.accelerator.is_main_process:
        job.run.log(row)
    settings = job.recipe.loss.settings | job.recipe.phases[number].loss_settings
    return BlowUpError(
        f"training blew up in phase {number}, epoch {epoch + 1}, step {step}: {what}; {culprits}. Loss "
        f"{job.recipe.loss.name} with {settings}, learning rates of backbone, head and proxies {rates}. The "
        f"last good checkpoint is in {job.run.folder}. Lower the "
        "learning rates, or raise k1 if the loss has one"
    )


@contextmanager
def _asked_to_stop(job: Job) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether Ctrl-C or a termination has come: training stops between steps.

    A second Ctrl-C stops at once. All processes of a run agree.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # only there signals can be caught
        yield asked.is_set
        return

    def note(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    def agreed() -> bool:
        if job.accelerator.num_processes == 1:
            return asked.is_set()
        flag = torch.tensor(float(asked.is_set()), device=job.accelerator.device)
        return bool(job.accelerator.reduce(flag, "sum") > 0)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield agreed
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
