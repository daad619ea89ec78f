"""Puts finished models where the user looks for one: the best so far at every moment, and the final one."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from softwarp import processes
from softwarp.data.readers import ImageTable
from softwarp.events import OnEvent, part_of, tell
from softwarp.recipe.overrides import difference_of, write_out
from softwarp.recipe.schema import Recipe
from softwarp.runs.run import Run
from softwarp.training.earlier import clear, replace_other
from softwarp.training.train import train_recipe


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

    def _train(self, recipe: Recipe, folder: Path) -> None:
        with part_of(self.on_event) as listener:
            train_recipe(recipe, folder, resume=True, table=self.table, on_event=listener)
