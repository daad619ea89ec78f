"""From your own images to a model: the ladder of what may be better than the frozen features, in the time.

Frozen, calibrated, head alone, fine-tuned: each rung is judged by the same held-out training classes, and the
best so far is handed out before the next one begins.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator

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
from softwarp.training.budget import BUDGET, Plan, Workload
from softwarp.training.choice import FROZEN, made_as, why_frozen
from softwarp.training.climb import Climb, climb_on_features, fine_tune, planned_again
from softwarp.training.earlier import check_earlier, clear, places_of
from softwarp.training.features import items_to_calibrate, may_know
from softwarp.training.job import build_batches, prepare, start_accelerator
from softwarp.training.ladder import Ladder
from softwarp.training.networks import Networks, Question, Ranking, pick_network
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


@dataclass(frozen=True)
class Wish:
    """What is asked of a model of own images.

    Args:
        table: of the images.
        folder: of the run.
        given: keys that were set on purpose; a crop, a head or a number of epochs given so is kept.
        budget: seconds for all of it; None for a target of ten minutes.
        networks: those to choose from; None trains that of the recipe.
        ship: whether the model is made once more on all classes, which takes time, too.
        fresh: measures and chooses again, whatever was found before.
    """

    table: ImageTable
    folder: Path
    given: frozenset[str] = frozenset()
    budget: float | None = None
    networks: Networks | None = None
    seeds: int = 1
    ship: bool = False
    fresh: bool = False
    on_event: OnEvent | None = None

    @property
    def keys(self) -> set[str]:
        """The keys that were set on purpose; whole phases set their epochs."""
        return {*self.given, *(["phases.0.epochs"] if self.given & {"phases", "phases.0"} else [])}

    @property
    def seconds(self) -> float:
        """The time that there is."""
        return BUDGET if self.budget is None else self.budget

    @property
    def candidates(self) -> Networks | None:
        """The networks to choose from, with a crop that was given."""
        return self.networks and self.networks.changed(lambda each: _resized(each, self.keys))

    def size(self, recipe: Recipe) -> int | None:
        """Return the size of the embedding; None if it was left open."""
        return recipe.model.embedding_size if "model.embedding_size" in self.given else None

    def source_of(self, recipe: Recipe) -> Source:
        """Return the images as a recipe sees and divides them."""
        return load_source(recipe.data.uncached(), recipe.evaluation.plan(), table=self.table)


def plan_and_choose(recipe: Recipe, wish: Wish, *, hand_out: OnBest = lambda recipe: None) -> Settled:
    """Return the recipe of the final model: the best rung that fits into the budget.

    Args:
        hand_out: called with the recipe of the best model so far, before fine-tuning, which takes long.
    """
    unchecked = _check(recipe)
    recipe = _resized(recipe, wish.keys)
    accelerator = start_accelerator(recipe, wish.folder)
    source = wish.source_of(recipe)
    tell(wish.on_event, source.protocol)
    build_batches(recipe.batches, source.labels, recipe.seed)  # refused now, not after the choice
    _look_back(recipe, wish, source, accelerator, choosing=not unchecked)
    reason = why_frozen(source.labels, choosing=not unchecked)
    ranking = _ranking(recipe, wish, source, unchecked or reason, accelerator.device)
    if ranking and (networks := wish.candidates):
        recipe = networks.recipe_of(ranking.chosen)
        source = wish.source_of(recipe)
    if reason:
        return Settled(made_as(recipe, FROZEN), f"chosen: the frozen features, because {reason}")
    work = _work_on(source, recipe, wish, choosing=not unchecked)
    if ranking:
        work = replace(work, spent=ranking.spent, known=ranking.judged and may_know(recipe))
    asked_epochs = recipe.phases[0].epochs
    plan = _plan(recipe, wish, source, work, accelerator.device)
    climb = Climb(
        recipe=planned(recipe, plan),
        source=source,
        table=wish.table,
        folder=wish.folder / "choice",
        plan=plan,
        work=work,
        size=wish.size(recipe),
        budget=wish.seconds,
        asked=asked_epochs,
        exactly="phases.0.epochs" in wish.keys,
        calibrates=_calibrates(recipe, wish.keys),
        device=accelerator.device,
        networks=ranking.table() if ranking else (),
        on_event=wish.on_event,
    )
    return _unchecked(climb, unchecked) if unchecked else _chosen(climb, wish, hand_out)


def _look_back(
    recipe: Recipe, wish: Wish, source: Source, accelerator: Accelerator, *, choosing: bool
) -> None:
    """Refuse what an earlier command has left in the folder, if it is of another kind; or remove it."""
    networks, folder = wish.candidates, wish.folder
    if not wish.fresh:
        check_earlier(
            recipe,
            folder,
            source.sha256,
            lambda each: asked_of(each, wish.keys, wish.budget),
            choosing=choosing,
            by=networks.recipe_of if networks else None,
            seeds=wish.seeds,
        )
        return
    first = networks.recipe_of(networks.usual) if networks else recipe
    prepare(first, Run(folder), accelerator, source)  # a recipe that is refused removes nothing
    # If this is stopped, the next attempt must not take earlier runs for its own.
    processes.from_main(lambda: _forget(folder))


def _ranking(recipe: Recipe, wish: Wish, source: Source, unable: str, device: torch.device) -> Ranking | None:
    """The network that suits the training classes best, if there are several to choose from."""
    networks = wish.candidates
    if networks is None:
        return None
    return pick_network(
        Question(
            networks=networks,
            asked=_question(recipe, source),
            table=wish.table,
            source=source,
            folder=wish.folder,
            size=wish.size(recipe),
            calibrates=_calibrates(recipe, wish.keys),
            budget=wish.seconds,
            unable=unable,
            device=device,
            on_event=wish.on_event,
        )
    )


def _plan(recipe: Recipe, wish: Wish, source: Source, work: Workload, device: torch.device) -> Plan:
    file = wish.folder / "choice" / "plan.json"
    return processes.from_main(
        lambda: plan_in(recipe, source, work, file, device, wish.keys, wish.budget, wish.fresh)
    )


def _unchecked(climb: Climb, why: str) -> Settled:
    """What is trained as planned, because nothing can judge it."""
    what = what_fits(climb.plan, climb.work, climb.asked, exactly=True)
    tell(climb.on_event, f"expected time: {minutes(climb.plan.seconds)} ({what})")
    tell(climb.on_event, f"batches: {in_words(climb.recipe.batches)}")
    return Settled(climb.recipe, f"not checked against the frozen features, because {why}")


def _chosen(climb: Climb, wish: Wish, hand_out: OnBest) -> Settled:
    """Choose rung by rung, unless there is no time even for features."""
    plan, work = climb.plan, climb.work
    spent = work.spent + plan.measuring
    what = what_fits(plan, work, climb.asked, exactly=climb.exactly)
    tell(climb.on_event, f"expected time: {climb.time()} ({what})")
    asked = _question(climb.recipe, climb.source)
    ladder = Ladder.open(climb.file, asked, budget=climb.budget, fresh=wish.fresh, spent=spent)
    ladder.save(climb.file)
    left = max(0.0, climb.budget - spent)
    if not plan.epochs and wish.budget is not None and work.features(plan.pace) > left:
        frozen, why = made_as(climb.recipe, FROZEN), idle(climb.asked)
        return Settled(frozen, f"chosen: the frozen features, because {why}")
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


def _work_on(source: Source, recipe: Recipe, wish: Wish, *, choosing: bool) -> Workload:
    judged = len(source.query_labels) + (0 if source.gallery_labels is None else len(source.gallery_labels))
    among_all = recipe.evaluation.whole_gallery and not source.closed
    return Workload(
        trained=len(source.labels),
        judged=judged,
        choosing=choosing,
        seeds=wish.seeds,
        observed=min(len(source.labels), recipe.evaluation.avg_dtp_images),
        closed=source.closed,
        distractors=len(items_to_calibrate(source.labels, seed=recipe.seed)) if among_all else 0,
        shipped=len(wish.table.labels) if wish.ship else 0,
    )
