"""The halves of the training classes, as a network sees them before it is trained."""

from dataclasses import dataclass
from functools import cached_property

import torch

from softwarp.data.readers import ImageTable
from softwarp.data.sources import Source, load_source
from softwarp.events import OnEvent
from softwarp.models.whitening import ClassScatter
from softwarp.recipe.schema import Recipe
from softwarp.training.choice import fold_recipes
from softwarp.training.features import TrainingFeatures
from softwarp.training.rungs import Half


@dataclass(frozen=True)
class FrozenHalves:
    """Features of the training images by the network of a recipe, computed when they are first asked for.

    All processes have to ask, because they share the work.
    """

    recipe: Recipe
    source: Source
    table: ImageTable
    device: torch.device
    on_event: OnEvent | None

    @cached_property
    def halves(self) -> list[Half]:
        """Features of the halves."""
        features, rows = TrainingFeatures(self.recipe, self.source, self.device, self.on_event).found
        folds = fold_recipes(self.recipe, len(self.source.names), every=1, epochs=1)
        sources = [
            load_source(each.data.uncached(), each.evaluation.plan(), table=self.table) for each in folds
        ]
        return [Half.of(each, rows, features) for each in sources]

    @cached_property
    def scatters(self) -> list[ClassScatter]:
        """Mean and scatter of what each half trains on."""
        return [ClassScatter.of(half.trained, half.labels) for half in self.halves]

    @property
    def dimensions(self) -> int:
        """Of the features."""
        return self.halves[0].trained.shape[1]
