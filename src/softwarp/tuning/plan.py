"""What fits into a budget, planned before any training: trials first, then epochs."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from softwarp.files import write_json
from softwarp.recipe.overrides import difference_of
from softwarp.recipe.schema import Recipe
from softwarp.tables import counted
from softwarp.training.budget import parse_budget
from softwarp.training.step_batches import Room, in_words
from softwarp.tuning.cost import Cost, StudyPace, TrainingKind, cost_of, time_steps

FEWEST = 5  # trials that still are a search, before epochs are cut
Recipes = Mapping[str, Recipe]
Trainings = Callable[[Recipes, int], list[TrainingKind]]  # of a study with so many trials; the first is timed


class Asked(NamedTuple):
    """What a plan answers.

    Args:
        trials: as they were given; None takes the usual number, or fewer if the budget is short.
        dry_run: asks what would fit, whatever the folder holds.
    """

    trials: int | None
    usual: int
    budget: str | None = None
    dry_run: bool = False


@dataclass(frozen=True)
class StudyPlan:
    """The recipes and the number of trials that fit into a budget, what they take, and what was asked."""

    recipes: dict[str, Recipe]
    trials: int
    cost: Cost
    asked: dict[str, Any]

    def keep(self, folder: Path) -> None:
        """Write what was found for a budget; resumed, a study keeps it: no two measurements agree exactly."""
        if self.asked["budget"] is None:
            return
        file, epochs = folder / "plan.json", _epochs(next(iter(self.recipes.values())))
        found = {"asked": self.asked, "trials": self.trials, "epochs": epochs}
        if not file.is_file():
            write_json(file, found)
        elif json.loads(file.read_text()) != found:
            raise ValueError(f"another process has just planned {folder}; give the same command again")


def fit_study(recipes: Recipes, trainings: Trainings, folder: Path, asked: Asked) -> StudyPlan:
    """Return what fits into the budget; without one, the study as it was asked for."""
    trials, usual, budget, dry_run = asked
    limit = None if budget is None else parse_budget(budget)
    most = _epochs(next(iter(recipes.values())))
    question = {"budget": limit, "trials": trials, "epochs": most}
    kept = None if dry_run else _kept(folder, question)
    pace = time_steps(trainings(recipes, trials or usual)[0].recipe, folder)
    if kept is not None:
        return _first_that_fits(recipes, trainings, pace, [(kept["epochs"], kept["trials"])], None, question)
    numbers = [trials] if trials else list(range(usual, 0, -1))
    enough = [number for number in numbers if trials or number >= FEWEST]
    ways = [(most, number) for number in enough]
    ways += [(epochs, enough[-1]) for epochs in range(most - 1, 0, -1)]
    ways += [(1, number) for number in numbers if number < enough[-1]]
    plan = _first_that_fits(recipes, trainings, pace, ways, limit, question)
    if limit is not None and plan.cost.seconds > limit:
        raise ValueError(
            f"a budget of {budget} is too short: one epoch and {counted(plan.trials, 'trial')} are "
            f"{plan.cost}; give a longer one"
        )
    return plan


def _kept(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an earlier command found for the same question; another one is refused at once."""
    file = folder / "plan.json"
    if not file.is_file():
        if asked["budget"] is not None and any((*folder.glob("study.json"), *folder.glob("*/study.json"))):
            raise ValueError(
                f"{folder} holds a study that was made without a budget; omit it, or choose another folder"
            )
        return None
    found: dict[str, Any] = json.loads(file.read_text())
    if difference := difference_of(found["asked"], dict(asked)):
        raise ValueError(
            f"{folder} holds a study that a budget gave {found['trials']} trials and {found['epochs']} "
            f"epochs: {difference}; give what it had (budget in seconds), or choose another folder"
        )
    return found


def _first_that_fits(
    recipes: Recipes,
    trainings: Trainings,
    pace: StudyPace,
    ways: Sequence[tuple[int, int]],  # epochs and trials, the best first
    limit: float | None,
    asked: dict[str, Any],
) -> StudyPlan:
    """The first way that fits, or the last one if none does."""
    for epochs, number in ways:
        chosen = {name: _shortened(each, epochs) for name, each in recipes.items()}
        cost = cost_of(trainings(chosen, number), pace)
        if limit is None or cost.seconds <= limit:
            break
    return StudyPlan(chosen, number, cost, asked)


def _epochs(recipe: Recipe) -> int:
    """The epochs of the longest phase."""
    return max(phase.epochs for phase in recipe.phases)


def _shortened(recipe: Recipe, epochs: int) -> Recipe:
    """The recipe with a longest phase of so many epochs, and the others shortened in proportion."""
    most = _epochs(recipe)
    if epochs == most:
        return recipe
    phases = tuple(
        phase.model_copy(update={"epochs": max(1, phase.epochs * epochs // most) if phase.epochs else 0})
        for phase in recipe.phases
    )
    evaluation = recipe.evaluation.model_copy(update={"every": min(recipe.evaluation.every, epochs)})
    return recipe.model_copy(update={"phases": phases, "evaluation": evaluation})


def batch_line(steps: Sequence[tuple[str, Recipe, Room]]) -> str:
    """Return the batches of each step and the classes that it trains on.

    Args:
        steps: name, recipe with its batches fitted, and what it trains on.
    """
    parts = [
        f"{name} {in_words(recipe.batches)}, from {room.classes} classes ({room.images} images)"
        for name, recipe, room in steps
    ]
    return f"batches: {'; '.join(parts)}"
