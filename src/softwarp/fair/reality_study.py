"""A reality check from its plan to its table."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softwarp.events import OnEvent, shown, tell
from softwarp.fair.benchmark_result import search_lines
from softwarp.fair.each_loss import judged_once, parse_losses, plan_for_losses, recipe_for_each
from softwarp.fair.reality_check import check_protocol, complete_recipe, reality_tasks
from softwarp.fair.reality_table import RealityCheck, read_reality_check, reality_table
from softwarp.fair.tasks import work
from softwarp.files import write_json
from softwarp.recipe.schema import Recipe
from softwarp.tables import counted, write_table
from softwarp.training.step_batches import Room, fit_batches, room_of
from softwarp.tuning.cost import TrainingKind
from softwarp.tuning.plan import Asked, Recipes, StudyPlan, batch_line
from softwarp.tuning.search import check_steps, fold_runs

TRIALS = 50  # the default, as in the paper
COMPLETE_SIZE = 512  # dimensions of the complete model's embeddings, as in the paper


@dataclass(frozen=True)
class PlannedCheck:
    """A reality check before anything is trained.

    Args:
        whole: what the complete models train on.
    """

    folder: Path
    plan: StudyPlan
    whole: Room
    reproductions: int

    def lines(self) -> tuple[str, str]:
        """Return in words what it takes at most, and which batches it draws."""
        recipes, again = self.plan.recipes, self.reproductions
        first = next(iter(recipes.values()))
        own = _first_fold(first, self.folder)
        part = room_of(own)
        return (
            f"{counted(len(recipes), 'loss', 'losses')} x ({first.evaluation.folds} folds x "
            f"({counted(self.plan.trials, 'trial')} + {counted(again, 'reproduction')}) + "
            f"{counted(again, 'complete model')}), at most: {self.plan.cost}",
            batch_line([("folds", fit_batches(own, part), part), ("complete models", first, self.whole)]),
        )


def plan_reality_check(
    losses: Sequence[str],
    recipe: Recipe,
    folder: Path,
    *,
    trials: int | None = None,
    reproductions: int = 10,
    budget: str | None = None,
    dry_run: bool = False,
) -> PlannedCheck:
    """Return a reality check that fits into the budget, before anything is trained.

    Args:
        losses: names, as in `softwarp.LOSSES`, or your own, FILE.py:CLASS.
        recipe: one that follows the protocol, as `softwarp.load_recipe("reality_check/glyphs.yaml")`.
        folder: of the study; it is refused if it holds another one.
        trials: of the search, for each loss; by default 50, or what fits into the budget.
        reproductions: with the best settings, for each loss.
        budget: the time that all of it may take, for one worker: "10m", "2h".
        dry_run: asks what would fit, whatever the folder holds, and writes nothing.
    """
    check_protocol(recipe)
    recipes = recipe_for_each(recipe, parse_losses(",".join(losses), fewest=1))
    whole = room_of(judged_once(next(iter(recipes.values()))))
    for each in recipes.values():
        check_steps(each, folder, each.evaluation.folds)

    def trainings(recipes: Recipes, number: int) -> list[TrainingKind]:
        """What is trained; phases that end at their plateaus count at their full length."""
        kinds = []
        for each in recipes.values():
            epochs, folds = [phase.epochs for phase in each.phases], each.evaluation.folds
            own = _first_fold(each, folder)
            kinds.append(TrainingKind(own, folds * reproductions))
            kinds.append(TrainingKind(own, folds * number, kept=False))
            kinds.append(TrainingKind(complete_recipe(each, epochs, COMPLETE_SIZE), reproductions))
        return kinds

    known = {
        "kind": "reality check",
        "reproductions": reproductions,
        "complete_size": COMPLETE_SIZE,
        "data": whole.sha256,
    }
    fitted = {name: fit_batches(each, whole) for name, each in recipes.items()}
    plan = plan_for_losses(fitted, trainings, folder, known, Asked(trials, TRIALS, budget, dry_run))
    return PlannedCheck(folder, plan, whole, reproductions)


def run_reality_check(
    planned: PlannedCheck,
    *,
    command: str = "",
    storage: str | None = None,
    on_event: OnEvent | None = None,
) -> RealityCheck:
    """Return what was found, after all trainings; write reality_check.json, .md and .tex.

    The same plan and call resume a study that was stopped.

    Args:
        command: that makes it again.
        storage: database of the searches.
        on_event: called with notes and progress; by default bars on a terminal or in a notebook.
    """
    folder, recipes, trials = planned.folder, planned.plan.recipes, planned.plan.trials
    numbers = {"trials": trials, "reproductions": planned.reproductions, "size": COMPLETE_SIZE}
    with shown(on_event) as listener:
        work(reality_tasks(recipes, **numbers, storage=storage), folder, on_event=listener)
        outcome = read_reality_check(folder, recipes, **numbers, command=command)
        write_json(folder / "reality_check.json", outcome.model_dump(mode="json", by_alias=True))
        write_table(folder / "reality_check", reality_table(outcome))
        for line in search_lines(outcome):
            tell(listener, line)
    return outcome


def _first_fold(recipe: Recipe, folder: Path) -> Recipe:
    return fold_runs(recipe, folder, recipe.evaluation.folds)[0][0]
