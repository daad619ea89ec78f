"""softwarp.benchmark: which loss is best for these images, planned and run."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from softwarp.events import OnEvent, shown, tell
from softwarp.fair.benchmark import benchmark_tasks, read_benchmark
from softwarp.fair.benchmark_result import Benchmark, benchmark_table, search_lines
from softwarp.fair.each_loss import judged_once, parse_losses, plan_for_losses, recipe_for_each
from softwarp.fair.tasks import work
from softwarp.files import write_json, write_text
from softwarp.recipe.overrides import dump_recipe
from softwarp.recipe.schema import Recipe
from softwarp.tables import counted, write_table
from softwarp.training.choice import FROZEN, made_as
from softwarp.training.step_batches import Room, divide_able, fit_batches, room_of
from softwarp.tuning.cost import TrainingKind
from softwarp.tuning.entry import recipe_of
from softwarp.tuning.plan import Asked, Recipes, StudyPlan, Trainings, batch_line
from softwarp.tuning.search import judged_recipe, room_to_search
from softwarp.tuning.space import with_settings

TRIALS = 10  # the default


@dataclass(frozen=True)
class Planned:
    """A benchmark before anything is trained.

    Args:
        plan: with a recipe for each loss, whose batches the classes can fill.
        frozen: of the features that every loss has to beat.
    """

    folder: Path
    frozen: Recipe
    room: Room
    plan: StudyPlan
    seeds: int

    def lines(self) -> tuple[str, str]:
        """Return in words what it takes, and which batches it draws."""
        cost = (
            f"{counted(len(self.plan.recipes), 'loss', 'losses')} x ({counted(self.plan.trials, 'trial')} + "
            f"{counted(self.seeds, 'seed')}): {self.plan.cost}"
        )
        first = next(iter(self.plan.recipes.values()))
        searched = judged_recipe(first, objective="map@r", prune=True)
        there = room_of(searched)
        return cost, batch_line(
            [("search", fit_batches(searched, there), there), ("final runs", first, self.room)]
        )


def benchmark(
    losses: Sequence[str],
    data: Path | str | Recipe | None = None,
    *changes: str,
    trials: int | None = None,
    seeds: int = 3,
    budget: str | None = None,
    output: Path | str | None = None,
    on_event: OnEvent | None = None,
) -> Benchmark:
    """Return how losses compare on your images: equal search, the same seeds, paired differences.

    Each loss gets the same network, epochs, batches and number of trials on validation classes; what it finds
    is trained with several seeds and judged once on the test classes, beside the frozen features. The same
    call resumes what was stopped.

    Args:
        losses: names, as in `softwarp.LOSSES`, or your own, FILE.py:CLASS; all of them compares every loss
            that the classes allow.
        data: a folder (CLASS/IMAGE), a CSV file (path,label), or a recipe; by default the built-in glyphs.
        changes: KEY=VALUE, as on the command line.
        trials: of the search, for each loss; by default 10, or what fits into the budget.
        budget: the time that all of it may take, for one worker: "10m", "2h".
        output: folder of the study; by default runs/NAME-benchmark.
        on_event: called with notes and progress; by default bars on a terminal or in a notebook.
    """
    name, recipe = recipe_of(data, changes)
    folder = Path("runs") / f"{name}-benchmark" if output is None else Path(output)
    with shown(on_event) as listener:
        planned = plan_benchmark(
            ",".join(losses), recipe, folder, trials=trials, seeds=seeds, budget=budget, on_event=listener
        )
        for line in planned.lines():
            tell(listener, line)
        return run_benchmark(planned, command=f"softwarp.benchmark({list(losses)!r}, ...)", on_event=listener)


def plan_benchmark(
    losses: str,
    recipe: Recipe,
    folder: Path,
    *,
    trials: int | None = None,
    seeds: int = 3,
    budget: str | None = None,
    dry_run: bool = False,
    on_event: OnEvent | None = None,
) -> Planned:
    """Return what fits into the budget; refuse what cannot be compared, before anything is trained.

    Args:
        losses: names with commas between, or all.
        dry_run: asks what would fit, whatever the folder holds.
    """
    base = judged_once(recipe)
    room = room_of(base)
    names = _able(parse_losses(losses), base, everything=losses.strip() == "all", on_event=on_event)
    recipes = {name: fit_batches(each, room) for name, each in recipe_for_each(base, names).items()}
    tell(on_event, room.protocol)
    asked = Asked(trials, TRIALS, budget, dry_run)
    known = {"kind": "benchmark", "data": room.sha256}
    plan = plan_for_losses(recipes, _trainings(seeds), folder, known, asked)
    return Planned(folder, fit_batches(made_as(base, FROZEN), room), room, plan, seeds)


def run_benchmark(
    planned: Planned, *, command: str, storage: str | None = None, on_event: OnEvent | None = None
) -> Benchmark:
    """Return what was found, after all trainings; write benchmark.json, .md and .tex, and best.yaml.

    Args:
        command: that makes it again.
        storage: database of the searches.
    """
    folder, recipes = planned.folder, planned.plan.recipes
    numbers = {"trials": planned.plan.trials, "seeds": planned.seeds}
    tasks = benchmark_tasks(recipes, **numbers, storage=storage, frozen=planned.frozen)
    work(tasks, folder, on_event=on_event)
    outcome = read_benchmark(folder, recipes, **numbers, command=command, frozen=planned.frozen)
    write_json(folder / "benchmark.json", outcome.model_dump(mode="json", by_alias=True))
    write_table(folder / "benchmark", benchmark_table(outcome))
    best = outcome.entries[0]
    write_text(folder / "best.yaml", dump_recipe(with_settings(recipes[best.loss], best.settings)))
    for line in search_lines(outcome):
        tell(on_event, line)
    return outcome


def _able(names: list[str], base: Recipe, *, everything: bool, on_event: OnEvent | None) -> list[str]:
    """The losses that the search has classes enough for; others are left out of all, or refused if named."""
    room = room_to_search(judged_recipe(base, objective="map@r", prune=True))
    able, reasons = divide_able(names, base.batches.accumulate, room)
    if reasons and not (everything and able):
        raise ValueError(f"{'; '.join(reasons)} in the search; leave it out, or add classes")
    for reason in reasons:
        tell(on_event, f"left out: {reason} in the search")
    return able


def _trainings(seeds: int) -> Trainings:
    """What a benchmark with these recipes and so many trials trains."""

    def of(recipes: Recipes, trials: int) -> list[TrainingKind]:
        kinds = []
        for recipe in recipes.values():
            searched = judged_recipe(recipe, objective="map@r", prune=True)
            kinds += [TrainingKind(recipe, seeds), TrainingKind(searched, trials, kept=False)]
        return kinds

    return of
