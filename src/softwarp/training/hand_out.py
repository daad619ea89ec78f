"""Puts finished models where the user looks for one: the best so far at every moment, and the final one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from softwarp import processes
from softwarp.data.readers import ImageTable
from softwarp.events import OnEvent, part_of, tell
from softwarp.recipe.overrides import difference_of, write_out
from softwarp.recipe.schema import Recipe
from softwarp.runs.result import Result
from softwarp.runs.run import Run
from softwarp.training.earlier import clear, replace_other
from softwarp.training.train import train_recipe

SHIP = "ship"  # the folder, in that of the run, of the model that has seen all classes


def check_ships(recipe: Recipe) -> None:
    """Raise a ValueError unless classes are held out by which the shipped model's figures are known."""
    against = {
        "evaluation.test_classes=none": recipe.evaluation.test_classes == "none",
        "evaluation.fold": recipe.evaluation.fold is not None,
        "data.max_classes": recipe.data.max_classes is not None,
    }
    for key in (name for name, given in against.items() if given):
        raise ValueError(
            "--ship (ship=True) measures a model on held-out classes and then makes it on all of them; omit "
            f"it, or {key}"
        )


def on_all_classes(recipe: Recipe) -> Recipe:
    """Return the recipe with all classes and images to train on, and nothing to judge."""
    nothing = {"baseline": False, "whole_gallery": False, "every": 0, "patience": None}
    evaluation = recipe.evaluation.model_copy(update={"test_classes": "none", **nothing})
    return recipe.model_copy(update={"evaluation": evaluation})


@dataclass
class HandOut:
    """The folders that models are handed out in, by seed.

    A model that takes the place of a finished one is trained apart, so there is a model at every moment.
    """

    table: ImageTable
    folder: Path
    places: Mapping[int, Path]
    on_event: OnEvent | None
    ours: set[Path] = field(default_factory=set)  # handed out by this command

    def for_now(self, recipe: Recipe) -> None:
        """Hand out the best model so far, unless there is a model that was fine-tuned."""
        for seed, place in self.places.items():
            run = Run(place)
            if not run.started() or (run.finished() and not run.result().epochs):
                self.finally_(recipe.model_copy(update={"seed": seed}), run)
        named = next(iter(self.places.values()))
        tell(self.on_event, f"until fine-tuning is done, {named} holds the best model so far")

    def finally_(self, recipe: Recipe, run: Run) -> bool:
        """Hand out the model of a recipe; return whether it was there before this command."""
        before = run.finished() and run.folder not in self.ours
        if run.finished() and difference_of(write_out(run.recipe()), write_out(recipe)):
            before = False
            apart = Run(self.folder / "choice" / f"final-{recipe.seed}")
            replace_other(apart.folder, recipe, self.on_event)
            self._train(recipe, apart.folder)
            processes.from_main(lambda: run.take(apart))
            processes.from_main(lambda: clear(apart.folder))
        else:
            replace_other(run.folder, recipe, self.on_event)
            self._train(recipe, run.folder)
        self.ours.add(run.folder)
        return before

    def ship(self, recipe: Recipe, measured: Run) -> Run:
        """Return a model made once more, on all classes; it keeps the figures of the measured one."""
        run = Run(self.folder / SHIP)
        tell(self.on_event, f"the same once more on all classes, in {run.folder}")
        self.finally_(on_all_classes(recipe), run)
        processes.from_main(lambda: _keep_figures(run, measured.result()))
        return run

    def say_if_outdated(self, recipe: Recipe) -> None:
        """Tell of a shipped model that was made in another way than the one that is chosen now."""
        run = Run(self.folder / SHIP)
        if run.finished() and difference_of(write_out(run.recipe()), write_out(on_all_classes(recipe))):
            again = "to make it again, ship it again (--ship, ship=True)"
            tell(self.on_event, f"{run.folder} was made in a way that was chosen before; {again}")

    def _train(self, recipe: Recipe, folder: Path) -> None:
        with part_of(self.on_event) as listener:
            train_recipe(recipe, folder, resume=True, table=self.table, on_event=listener)


def _keep_figures(run: Run, held_out: Result) -> None:
    result = run.result()
    if result.held_out != held_out:
        run.write_result(result.model_copy(update={"held_out": held_out}))
