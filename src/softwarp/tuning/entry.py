"""softwarp.tune: which settings are best for these images, planned and searched on validation classes."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from softwarp.events import OnEvent, shown, tell
from softwarp.files import check_writable, write_json, write_text
from softwarp.recipe.load import DEFAULT, load_recipe
from softwarp.recipe.overrides import dump_recipe
from softwarp.recipe.schema import Recipe
from softwarp.training.own_recipe import recipe_for
from softwarp.training.step_batches import fit_batches, room_of
from softwarp.tuning.cost import TrainingKind
from softwarp.tuning.paper_strategy import search_like_the_paper
from softwarp.tuning.plan import Asked, Recipes, batch_line, fit_study
from softwarp.tuning.search import Study, check_search, check_steps, fold_runs, judged_recipe, search
from softwarp.tuning.space import space_of

TRIALS = 30  # the default


@dataclass(frozen=True)
class Tuned:
    """What was found.

    Args:
        recipe: with the best settings.
        searches: by stage; a search in one stage is called search.
    """

    recipe: Recipe
    searches: dict[str, Study]

    def __repr__(self) -> str:
        found = {name: (study.best.value, study.best.settings) for name, study in self.searches.items()}
        return f"Tuned({found})"


def tune(
    data: Path | str | Recipe | None = None,
    *changes: str,
    space: Mapping[str, str] | None = None,
    trials: int | None = None,
    sampler: str = "tpe",
    objective: str = "map@r",
    folds: int | None = None,
    storage: str | None = None,
    strategy: str | None = None,
    prune: bool = True,
    budget: str | None = None,
    dry_run: bool = False,
    output: Path | str | None = None,
    on_event: OnEvent | None = None,
) -> Tuned:
    """Return the best settings for your images, or of a recipe, by its metric on validation classes.

    Test classes are never loaded. The same call resumes a search that was stopped; several processes with the
    same folder or storage share its trials. `best.yaml` in the folder is the recipe that was found, and
    `trials.json` has all trials.

    Args:
        data: a folder (CLASS/IMAGE), a CSV file (path,label), or a recipe; by default the built-in glyphs.
        changes: KEY=VALUE, as on the command line.
        space: ranges by recipe key, such as {"loss.settings.alpha": "log:1:40"}; "fixed" removes a key.
        trials: of all workers together; by default 30, or what fits into the budget.
        sampler: tpe, gp (Bayesian), random or grid.
        objective: the metric that is searched by.
        folds: judges by the mean over so many folds of the training classes.
        storage: a database that machines share, like postgresql://USER@HOST/NAME.
        strategy: "paper" searches first without the warp, then the warp, then the second phase.
        prune: ends trials early that are below the median.
        budget: the time that all of it may take, for one worker: "10m", "2h".
        dry_run: tells the plan, and searches and writes nothing.
        output: folder of the search; by default runs/NAME-tune.
        on_event: called with notes and progress; by default bars on a terminal or in a notebook.
    """
    if "WORLD_SIZE" in os.environ:
        raise ValueError("a search runs one process per trial; start several without torchrun instead")
    if strategy not in (None, "paper"):
        raise ValueError(f"the strategy of a search is paper, or none is given; got {strategy!r}")
    name, recipe = recipe_of(data, changes)
    folder = Path("runs") / f"{name}-tune" if output is None else Path(output)
    ranges = space_of(recipe, space) if strategy is None else {}
    check_search(recipe, ranges, TRIALS if trials is None else trials, sampler, objective)
    judging: dict[str, Any] = {"objective": objective, "folds": folds, "prune": prune}
    with shown(on_event) as listener:
        recipe, number = _plan(recipe, folder, trials, budget, dry_run, listener, **judging)
        if dry_run:
            return Tuned(recipe, {})
        how = judging | {"trials": number, "sampler": sampler, "storage": storage, "on_event": listener}
        if strategy is None:
            searches = {"search": search(recipe, folder, space=ranges, **how)}
        else:
            searches = search_like_the_paper(recipe, folder, changes=space, **how)
    best = list(searches.values())[-1].best_recipe()
    write_text(folder / "best.yaml", dump_recipe(best))
    write_json(folder / "trials.json", {stage: _rows(study) for stage, study in searches.items()})
    return Tuned(best, searches)


def recipe_of(data: Path | str | Recipe | None, changes: Sequence[str]) -> tuple[str, Recipe]:
    """Return a name for a study on these images, or of this recipe, and what all its trainings begin with."""
    if isinstance(data, Recipe):
        if changes:
            raise ValueError("change a recipe with softwarp.load_recipe(NAME, 'KEY=VALUE')")
        return data.data.name, data
    if data is None:
        return "glyphs", load_recipe(DEFAULT, *changes)
    return Path(data).resolve().name.removesuffix(".csv"), recipe_for(Path(data), changes)


def _plan(
    recipe: Recipe,
    folder: Path,
    trials: int | None,
    budget: str | None,
    dry_run: bool,
    on_event: OnEvent,
    *,
    objective: str,
    folds: int | None,
    prune: bool,
) -> tuple[Recipe, int]:
    """The recipe with epochs, and the number of trials, that fit into the budget; tells what will happen."""

    def first_run(recipe: Recipe) -> Recipe:
        return fold_runs(judged_recipe(recipe, objective=objective, prune=prune), folder, folds)[0][0]

    def trainings(recipes: Recipes, number: int) -> list[TrainingKind]:
        """What is trained, if no trial ends early."""
        return [TrainingKind(first_run(recipes[""]), number * (folds or 1), kept=False)]

    check_steps(judged_recipe(recipe, objective=objective, prune=prune), folder, folds)
    own = first_run(recipe)
    room = room_of(own)
    tell(on_event, room.protocol)
    if not dry_run:
        check_writable(folder)
    number = TRIALS if trials is None else trials
    if budget is not None or dry_run:
        plan = fit_study({"": recipe}, trainings, folder, Asked(trials, TRIALS, budget, dry_run))
        recipe, number = plan.recipes[""], plan.trials
        if not dry_run:
            plan.keep(folder)
        epochs = sum(phase.epochs for phase in recipe.phases)
        each = f"{epochs} epochs{f' x {folds} folds' if folds else ''}"
        tell(on_event, f"{number} trials of {each}: {plan.cost}")
    tell(on_event, batch_line([("search", fit_batches(own, room), room)]))
    return recipe, number


def _rows(study: Study) -> list[dict[str, Any]]:
    return [asdict(trial) | {"folder": trial.folder.name} for trial in study.trials]
