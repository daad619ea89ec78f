"""train(recipe, folder) -> Run: the training loop."""

import time
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from softwarp import processes
from softwarp.data.images import Batch
from softwarp.data.readers import ImageTable
from softwarp.data.sources import load_source
from softwarp.events import OnEvent, Stopping, Work, part_of, tell
from softwarp.losses import contract
from softwarp.losses.own_file import loss_label
from softwarp.models.embedder import plain_norm
from softwarp.recipe.overrides import check_batches
from softwarp.recipe.phases import Phase
from softwarp.recipe.schema import Recipe
from softwarp.runs.result import Counts, Result
from softwarp.runs.run import Run
from softwarp.training.follow import follow, tell_download
from softwarp.training.job import Job, prepare, start_accelerator, start_trackers
from softwarp.training.judge import (
    Judgement,
    Untrained,
    distance_to_proxy,
    evaluate_job,
    interpolations,
    untrained,
)
from softwarp.training.schedule import factor, stretches, warm_up
from softwarp.training.start import proxy_rate, pull_to_start, start_run
from softwarp.training.stops import asked_to_stop

SMALLEST_SCALE = 2**-10  # the scale of fp16 losses starts at 2**16 and is halved at every skipped step


class BlowUpError(ValueError):
    """A loss or gradient that is not finite; the last good checkpoint is kept."""


class StoppedError(KeyboardInterrupt):
    """Training was asked to stop; everything is in the checkpoint."""


def train_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    table: ImageTable | None = None,
    on_event: OnEvent | None = None,
) -> Run:
    """Return the finished run: trained, and evaluated on unseen classes or, in a closed set, unseen images.

    The seed decides initial weights, batches, augmentation and clustering; two losses with the same seed see
    the same batches and start from the same network. With `resume`, a run of the same recipe in `folder`
    resumes from its checkpoint and, on the same machine, ends with the same weights; a finished run is kept.

    Args:
        table: of the images, if it has been read before.
    """
    for _ in training(recipe, folder, resume=resume, table=table, on_event=on_event):
        pass
    return Run(folder)


def training(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    table: ImageTable | None = None,
    on_event: OnEvent | None = None,
) -> Generator[dict[str, Any], None, None]:
    """Yield the row of each epoch as `train` works, first those before a resume.

    Closing the iterator stops the run there; its checkpoint is kept.
    """
    check_batches(recipe)
    accelerator = start_accelerator(recipe, folder)
    run = Run(folder)
    with processes.ends_with_the_others(), ExitStack() as stack:
        plan = recipe.evaluation.plan()
        with processes.one_first(per_machine=True), part_of(on_event) as listener:  # a cache is made once
            decoding = Work(listener if recipe.data.cache else None, "decoding images into the cache")
            source = load_source(recipe.data, plan, table=table, advance=decoding.advance)
        for note in source.notes:
            tell(on_event, note)
        processes.from_main(lambda: stack.enter_context(run.locked()))
        if resume and run.started():
            run.check_recipe(recipe)
            if run.finished():
                run.check_data(run.result().data_sha256, source.sha256)
                if note := run.older():
                    tell(on_event, note)
                yield from run.history()
                return
        tell_download(recipe, on_event)
        job = prepare(recipe, run, accelerator, source)
        with processes.one_first():  # nothing is written before the whole recipe is known to work
            if processes.is_main() and not (resume and run.started()):
                Run.create(folder, recipe)
        start_trackers(accelerator, recipe)
        if note := job.restore():
            tell(on_event, note)
        if job.state.step == 0:
            start_run(job)
        step_done = follow(job, on_event)
        if on_event is not None and (processes.is_main() or processes.count() > 1):
            job.signalled = lambda signals: on_event(Stopping(signals))
        if recipe.evaluation.baseline and job.state.baseline is None:
            frozen = Untrained(untrained(job), plain_norm)
            whole = recipe.evaluation.whole_gallery
            job.state.baseline = evaluate_job(job, frozen, distance="cosine", whole_gallery=whole).metrics
        yield from job.state.history[:]
        yield from work_through(job, step_done)
        finish(job)
        for tracker in accelerator.trackers:
            tracker.finish()


def work_through(job: Job, advance: Callable[[], None]) -> Iterator[dict[str, Any]]:
    """Train from the job's current step to the end of its last phase, and yield each epoch: the loop."""
    recipe, state, epoch_steps = job.recipe, job.state, len(job.batches)
    stream, saved = job.stream(), time.perf_counter()
    with asked_to_stop(job.accelerator.device, job.signalled) as asked:
        for number, phase, first, last in stretches(recipe.phases, epoch_steps):
            if state.step == first:
                begin_phase(phase, job)
            while state.step < last:
                batch = next(stream)
                set_rates(job, phase, state.step - first)
                value = take_step(job, phase, number, batch)
                state.step += 1
                state.loss += value
                state.broken += [path for path in batch.broken if path not in state.broken]
                advance()
                if state.step % epoch_steps == 0 and not end_epoch(job, phase, number):
                    state.step = last
                    stream = job.stream()
                stop = asked()
                due = time.perf_counter() - saved > 60 * recipe.checkpoint_minutes
                if recipe.loss.sharded:  # all processes save together
                    due = processes.anywhere(due, job.accelerator.device)
                if stop or due or state.step % epoch_steps == 0:
                    job.save()
                    saved = time.perf_counter()
                if stop:
                    raise StoppedError
                if state.step % epoch_steps == 0:
                    yield state.history[-1]


def take_step(job: Job, phase: Phase, number: int, batch: Batch) -> float:
    """Update all weights once; return the loss of the whole batch, the same in every process."""
    accelerator = job.accelerator
    job.network.train()
    job.loss.train()
    if phase.freeze_backbone:
        job.model.backbone.eval()
    job.optimizer.zero_grad()
    images = batch.images.to(accelerator.device, non_blocking=True)
    labels = batch.labels.to(accelerator.device, non_blocking=True)
    with job.sampled(labels):
        return _step(job, phase, number, images, labels)


def _step(job: Job, phase: Phase, number: int, images: Tensor, labels: Tensor) -> float:
    accelerator, pieces, total = job.accelerator, job.recipe.batches.accumulate, 0.0
    for piece in range(pieces):
        own = slice(piece * len(labels) // pieces, (piece + 1) * len(labels) // pieces)
        with accelerator.autocast():
            embeddings = job.network(images[own], freeze_backbone=phase.freeze_backbone)
        everyone = processes.whole_batch(embeddings, labels[own])
        try:
            with accelerator.autocast():
                value = job.loss(*everyone) / pieces
        except ValueError as error:
            if bool(everyone[0].isfinite().all()):
                raise  # the batch does not fit this loss: nothing blew up
            raise _blow_up(job, number, f"the loss says: {error}", *everyone) from None
        if not bool(value.isfinite()):
            raise _blow_up(job, number, f"the loss is {value.item()}", *everyone)
        accelerator.backward(value * job.recipe.loss.weight)
        total += value.item()
    if not gradients_are_finite(job):
        raise _blow_up(job, number, "a gradient is not finite", *everyone)
    trained = [
        each for each in job.model.parameters() if each.grad is not None
    ]  # there are none if only proxies train
    if trained and job.recipe.optimizer.clip_value is not None:  # after the check: it turns inf into a number
        accelerator.clip_grad_value_(trained, job.recipe.optimizer.clip_value)
    if trained and job.recipe.optimizer.clip_norm is not None:
        accelerator.clip_grad_norm_(trained, job.recipe.optimizer.clip_norm)
    job.optimizer.step()
    if accelerator.scaler is not None and accelerator.scaler.get_scale() < SMALLEST_SCALE:
        raise _blow_up(job, number, "gradients are not finite at any scale of fp16", *everyone)
    if not accelerator.optimizer_step_was_skipped:
        if job.recipe.optimizer.l2_sp:
            pull_to_start(job)
        if job.average:
            job.average.update_parameters(job.model)
    return total


def gradients_are_finite(job: Job) -> bool:
    """Return whether this step can be taken, the same in all processes; average what they have in common.

    With fp16 the scaler skips steps that are not finite, and lowers its factor.
    """
    sharded, scaled = job.recipe.loss.sharded, job.recipe.precision == "fp16"
    if not sharded:
        processes.average_gradients(job.loss.parameters())
        if scaled:
            return True
    gradients = [p.grad for p in (*job.model.parameters(), *job.loss.parameters()) if p.grad is not None]
    finite = bool(nn.utils.get_total_norm(gradients, foreach=True).isfinite())
    if sharded:
        finite = not processes.anywhere(not finite, job.accelerator.device)
        if scaled and not finite:
            gradients[0].fill_(torch.nan)  # so that every process skips the step
    return finite or scaled


def begin_phase(phase: Phase, job: Job) -> None:
    """Give the loss its settings and rate for this phase; the optimizer keeps its state."""
    job.state.drops = job.state.since_drop = job.state.since_best = 0
    contract.start_phase(job.loss, phase.loss_settings)
    job.state.proxy_rate = proxy_rate(job, phase)


def set_rates(job: Job, phase: Phase, step: int) -> None:
    """Set the learning rates of backbone, head and loss, `step` batches after the phase's start."""
    head = phase.head_learning_rate or phase.learning_rate
    rates = {
        "backbone": phase.learning_rate,
        "head": head,
        "loss": job.state.proxy_rate,
        "network": phase.network_learning_rate or job.state.proxy_rate,
    }
    now = min(factor(phase, step / len(job.batches), job.state.drops), warm_up(phase, step))
    for group, of in zip(job.optimizer.param_groups, job.groups, strict=True):
        group["lr"] = rates[of.part] * of.factor * now


def end_epoch(job: Job, phase: Phase, number: int) -> bool:
    """Log the epoch and, if the recipe says so, validate; return whether the phase continues."""
    state, settings, steps = job.state, job.recipe.evaluation, len(job.batches)
    epoch = state.step // steps
    row: dict[str, Any] = {"epoch": epoch, "phase": number, "loss": state.loss / steps}
    row["avg_dtp"] = distance_to_proxy(job)
    row |= contract.readings_of(job.loss)
    if settings.split == "validation" and settings.every and epoch % settings.every == 0:
        model = job.final()
        judgement = evaluate_job(job, model, distance=str(job.loss.distance))
        row["validation"] = measured = judgement.metrics
        if settings.interpolations:
            row |= interpolations(job, model, judgement, first=epoch == settings.every)
        if state.look(measured[settings.metric], epoch) and settings.patience and processes.is_main():
            job.run.save_model(model.state_dict())
        if phase.schedule == "plateau" and state.since_drop >= phase.plateau:
            state.drops, state.since_drop = state.drops + 1, 0
    state.broken = sorted({path for each in processes.gather_objects(state.broken) for path in each})
    row |= {"broken_images": len(state.broken), "seconds": job.elapsed()}
    state.loss = 0.0
    state.history.append(row)
    if processes.is_main():
        job.run.log(row)
        seen = f", {settings.metric} {row['validation'][settings.metric]:.4f}" if "validation" in row else ""
        job.tell(f"{loss_label(job.recipe.loss.name)}, epoch {epoch}, loss {row['loss']:.3f}{seen}")
    numbers = {key: value for key, value in row.items() if isinstance(value, int | float)}
    job.accelerator.log(numbers, step=epoch)
    return not (settings.patience and state.since_best >= settings.patience)


def finish(job: Job) -> None:
    """Evaluate, and write model, embeddings, items and, last, the result: then the run is finished."""
    settings, rows, model = job.recipe.evaluation, job.state.history, job.final()
    if settings.patience and job.state.best_epoch:
        model.load_state_dict(job.run.load_model())  # the best on validation
        rows = [row for row in rows if row["epoch"] <= job.state.best_epoch]
    judged = model if job.state.step else Untrained(model.eval(), model.from_pooled)
    judgement = evaluate_job(
        job,
        judged,
        distance=str(job.loss.distance),
        clustering=settings.clustering,
        whole_gallery=settings.whole_gallery,
    )
    distance = rows[-1]["avg_dtp"] if rows else distance_to_proxy(job)  # without an epoch, that of the start
    if processes.is_main():
        job.run.save_model(model.state_dict())
        job.run.save_embeddings(judgement.arrays, judgement.items)
        job.run.write_result(_result(job, judgement, len(rows), distance))
    processes.wait()  # all processes go on once the result is there


def _result(job: Job, judgement: Judgement, epochs: int, distance: float | None) -> Result:
    source, state = job.source, job.state
    return Result(
        name=loss_label(job.recipe.loss.name),
        seed=job.recipe.seed,
        distance=job.loss.distance,
        split=job.recipe.evaluation.split,
        classes=Counts(train=len(source.names), evaluated=len(source.query_labels.unique())),
        images=Counts(train=len(source.labels), evaluated=len(source.query_labels)),
        closed=source.closed,
        metrics=judgement.metrics | ({} if distance is None else {"avg_dtp": distance}),
        baseline=state.baseline,
        epochs=epochs,
        broken_images=tuple(state.broken),
        left_out=tuple(item.file for item in judgement.items if item.row is None),
        seconds=job.elapsed(),
        data_sha256=source.sha256,
        pretrained=bool(job.recipe.model.pretrained),
        head=_head_of(job.recipe),
    )


def _head_of(recipe: Recipe) -> Literal["", "calibrated", "trained"]:
    if recipe.model.head_init != "whitened":
        return ""
    return "trained" if recipe.start.steps else "calibrated"


def _blow_up(job: Job, number: int, what: str, embeddings: Tensor, labels: Tensor) -> BlowUpError:
    """Log the blow-up and return an error that says where it happened; the last checkpoint is kept."""
    bad = labels[~embeddings.detach().isfinite().all(dim=1)]
    classes = sorted({job.source.names[label] for label in bad.tolist()})
    culprits = (
        f"embeddings of {', '.join(classes[:3])} are not finite" if classes else "all embeddings are finite"
    )
    epoch, step = divmod(job.state.step, len(job.batches))
    rates = {of.part: group["lr"] for group, of in zip(job.optimizer.param_groups, job.groups, strict=True)}
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
    if processes.is_main():
        job.run.log(row)
    settings = job.recipe.loss.settings | job.recipe.phases[number].loss_settings
    return BlowUpError(
        f"training blew up in phase {number}, epoch {epoch + 1}, step {step}: {what}; {culprits}. Loss: "
        f"{job.recipe.loss.name} with {settings}; learning rates: {rates}. The "
        f"last good checkpoint is in {job.run.folder}. Lower the learning rates, or raise k1 if the loss has "
        "one"
    )
