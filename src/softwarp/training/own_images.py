"""From your own images to a model: the ladder of what may be better than the frozen features, in the time.

Frozen, calibrated, head alone, fine-tuned: each rung is judged by the same held-out training classes, and the
best so far is handed out before the next one begins.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from softwarp import processes
from softwarp.data.readers import ImageTable
from softwarp.data.sources import Source, load_source
from softwarp.events import OnEvent, tell
from softwarp.files import write_json
from softwarp.models.preparation import check_side
from softwarp.recipe.overrides import check_batches
from softwarp.recipe.schema import Recipe, StartPart
from softwarp.runs.choice import Choice
from softwarp.runs.run import Run
from softwarp.tables import counted
from softwarp.training.budget import (
    BUDGET,
    Workload,
)
from softwarp.training.choice import FROZEN, made_as, why_frozen
from softwarp.training.climb import Climb, climb_on_features, fine_tune, planned_again
from softwarp.training.earlier import check_earlier, clear, places_of
from softwarp.training.features import items_to_calibrate, may_know
from softwarp.training.job import build_batches, prepare, start_accelerator
from softwarp.training.ladder import Ladder
from softwarp.training.networks import Networks, Question, pick_network
from softwarp.training.own_plan import asked_of, cropped, idle, minutes, plan_in, planned, what_fits
from softwarp.training.rungs import SHRINKAGES
from softwarp.training.step_batches import in_words
from softwarp.training.tuned import outlook

OnBest = Callable[[Recipe], None]


class Settled(NamedTuple):
    """The recipe of the final model, a line on how it was chosen, and the choice if there was one."""

    recipe: Recipe
    said: str
    choice: Choice | None = None


def plan_and_choose(
    recipe: Recipe,
    table: ImageTable,
    folder: Path,
    *,
    given: Collection[str] = (),
    budget: float | None = None,
    networks: Networks | None = None,
    seeds: int = 1,
    ship: bool = False,
    fresh: bool = False,
    hand_out: OnBest = lambda recipe: None,
    on_event: OnEvent | None = None,
) -> Settled:
    """Return the recipe of the final model: the best rung that fits into the budget.

    Args:
        table: of the images.
        given: keys that were set on purpose; a crop, a head or a number of epochs given so is kept.
        budget: seconds for all of it.
        networks: those to choose from; None trains that of the recipe.
        ship: whether the model is made once more on all classes, which takes time, too.
        fresh: measures and chooses again, whatever was found before.
        hand_out: called with the recipe of the best model so far, before fine-tuning, which takes long.
    """
    unchecked = _check(recipe)
    choosing, given = not unchecked, set(given)
    networks = networks and networks.changed(lambda each: _resized(each, given))
    recipe = _resized(recipe, given)
    accelerator = start_accelerator(recipe, folder)
    source = load_source(recipe.data.uncached(), recipe.evaluation.plan(), table=table)
    tell(on_event, source.protocol)
    build_batches(recipe.batches, source.labels, recipe.seed)  # refused now, not after the choice
    if given & {"phases", "phases.0"}:
        given.add("phases.0.epochs")
    if not fresh:
        check_earlier(
            recipe,
            folder,
            source.sha256,
            lambda each: asked_of(each, given, budget),
            choosing=choosing,
            by=networks.recipe_of if networks else None,
            seeds=seeds,
        )
    else:
        first = networks.recipe_of(networks.usual) if networks else recipe
        prepare(first, Run(folder), accelerator, source)  # a recipe that is refused removes nothing
        # If this is stopped, the next attempt must not take earlier runs for its own.
        processes.from_main(lambda: _forget(folder))
    size = recipe.model.embedding_size if "model.embedding_size" in given else None
    reason = why_frozen(source.labels, choosing=choosing)
    ranking = networks and pick_network(
        Question(
            networks=networks,
            asked=_question(recipe, source),
            table=table,
            source=source,
            folder=folder,
            size=size,
            calibrates=_calibrates(recipe, given),
            budget=BUDGET if budget is None else budget,
            unable=unchecked or reason,
            device=accelerator.device,
            on_event=on_event,
        )
    )
    if networks and ranking:
        recipe = networks.recipe_of(ranking.chosen)
        source = load_source(recipe.data.uncached(), recipe.evaluation.plan(), table=table)
    if reason:
        return Settled(made_as(recipe, FROZEN), f"chosen: the frozen features, because {reason}")
    work = replace(_work_on(source, recipe, choosing, seeds), shipped=len(table.labels) if ship else 0)
    if ranking:
        known = ranking.judged and may_know(recipe)
        work = replace(work, spent=ranking.spent, known=known)
    file, device = folder / "choice" / "plan.json", accelerator.device
    plan = processes.from_main(lambda: plan_in(recipe, source, work, file, device, given, budget, fresh))
    asked_epochs, recipe = recipe.phases[0].epochs, planned(recipe, plan)
    if not choosing:
        what = what_fits(plan, work, asked_epochs, exactly=True)
        tell(on_event, f"expected time: {minutes(plan.seconds)} ({what})")
        tell(on_event, f"batches: {in_words(recipe.batches)}")
        return Settled(recipe, f"not checked against the frozen features, because {unchecked}")
    climb = Climb(
        recipe=recipe,
        source=source,
        table=table,
        folder=folder / "choice",
        plan=plan,
        work=work,
        size=size,
        budget=BUDGET if budget is None else budget,
        asked=asked_epochs,
        exactly="phases.0.epochs" in given,
        calibrates=_calibrates(recipe, given),
        device=device,
        networks=ranking.table() if ranking else (),
        on_event=on_event,
    )
    tell(
        on_event,
        f"expected time: {climb.time()} ({what_fits(plan, work, asked_epochs, exactly=climb.exactly)})",
    )
    asked = _question(recipe, source)
    ladder = Ladder.open(climb.file, asked, budget=climb.budget, fresh=fresh, spent=work.spent)
    ladder.save(climb.file)
    if not plan.epochs and budget is not None and work.features(plan.pace) > max(0, budget - work.spent):
        return Settled(made_as(recipe, FROZEN), f"chosen: the frozen features, because {idle(asked_epochs)}")
    return _climbed(climb, ladder, hand_out)


def _climbed(climb: Climb, ladder: Ladder, hand_out: OnBest) -> Settled:
    """Climb as far as time allows; before fine-tuning, hand out the best model so far."""
    climb_on_features(climb, ladder)
    climb = planned_again(climb, ladder)
    if not climb.plan.epochs:
        return _settled(climb, ladder.choice(), f"it is not fine-tuned, because {idle(climb.asked)}")
    if not ladder.stopped:
        hand_out(made_as(climb.recipe, ladder.choice().chosen, size=climb.size))
    choice = fine_tune(climb, ladder)
    return _settled(
        climb,
        choice,
        _rising(choice, ladder.stopped, climb.work.final(climb.plan.pace, choice.chosen.epochs)),
    )


def _settled(climb: Climb, choice: Choice, more: str) -> Settled:
    """Write the choice down, and say it."""
    if climb.networks:
        choice = choice.model_copy(
            update={"network": climb.recipe.model.backbone, "networks": climb.networks}
        )
    if processes.is_main():
        write_json(climb.folder / "choice.json", choice.model_dump(mode="json", by_alias=True))
    said = [choice.sentence(), *_at_bound(choice.chosen.start), *([more] if more else [])]
    return Settled(made_as(climb.recipe, choice.chosen, size=climb.size), "\n".join(said), choice)


def _at_bound(start: StartPart | None) -> list[str]:
    """A line if the shrinkage is the least that was tried; the most is a bound by itself."""
    if start is None or start.shrinkage != SHRINKAGES[0]:
        return []
    return [f"shrinkage {start.shrinkage:g} is the least that is tried; a smaller one may be better still"]


def _rising(choice: Choice, stopped: str, final: float) -> str:
    """A line if fine-tuning was still improving when it had to end.

    Args:
        final: seconds that the final models take.
    """
    epochs, short = choice.chosen.epochs, stopped == "time"
    if stopped == "flat" or not (choice.still_rising() or (short and epochs)):
        return ""
    more = "a longer budget" if short else f"more epochs (phases.0.epochs={2 * epochs})"
    guess = outlook(choice, final) if short else ""
    return f"the curve was still rising after {counted(epochs, 'epoch')}; {guess or f'{more} may give more'}"


def _resized(recipe: Recipe, given: Collection[str]) -> Recipe:
    """The recipe with the size that suits a crop that was given."""
    if "data.crop" not in given or "data.resize" in given:
        return recipe
    return recipe.model_copy(update={"data": cropped(recipe, recipe.data.crop)})


def _calibrates(recipe: Recipe, given: Collection[str]) -> bool:
    """Whether the head may be calibrated: not if another one was asked for."""
    other = {"model", "model.head", "model.head_init", "model.norm", "model.unit_length"}
    return recipe.model.norm == "before" and not other & set(given)


def _forget(folder: Path) -> None:
    """Remove all runs of the folder, and what was chosen by them."""
    clear(*places_of(folder))
    for name in ("networks.json", "plan.json", "ladder.json", "choice.json"):
        (folder / "choice" / name).unlink(missing_ok=True)


def _question(recipe: Recipe, source: Source) -> dict[str, Any]:
    """What a ladder is the answer to: the images as they are seen, the network and the seed."""
    evaluation = recipe.evaluation.model_dump(mode="json", include={"split", "test_classes"})
    return {
        "data_sha256": source.sha256,
        "data": recipe.data.model_dump(mode="json", exclude={"root", "workers", "cache", "strict"}),
        "model": recipe.model.model_dump(mode="json"),
        "evaluation": evaluation,
        "seed": recipe.seed,
    }


def _check(recipe: Recipe) -> str:
    """Refuse what cannot be chosen; return why nothing is chosen at all, empty if it is."""
    check_batches(recipe)
    check_side(recipe.model.backbone, recipe.data.crop)
    if len(recipe.phases) > 1:
        raise ValueError(
            f"own images train in one phase, but phases has {len(recipe.phases)}; put them into a recipe"
        )
    if recipe.evaluation.test_classes == "none":
        return "no classes are held out (evaluation.test_classes=none)"
    if recipe.evaluation.fold is not None:
        return "evaluation.fold was given"
    if (schedule := recipe.phases[0].schedule) != "constant":
        raise ValueError(
            f"phases.0.schedule={schedule}: the number of epochs is chosen, so rates stay constant; "
            "for a schedule: softwarp show --data FOLDER > recipe.yaml, and train that recipe"
        )
    return ""


def _work_on(source: Source, recipe: Recipe, choosing: bool, seeds: int) -> Workload:
    judged = len(source.query_labels) + (0 if source.gallery_labels is None else len(source.gallery_labels))
    observed = min(len(source.labels), recipe.evaluation.avg_dtp_images)
    among_all = recipe.evaluation.whole_gallery and not source.closed
    distractors = len(items_to_calibrate(source.labels, seed=recipe.seed)) if among_all else 0
    return Workload(
        len(source.labels), judged, choosing, seeds, observed, source.closed, distractors=distractors
    )
