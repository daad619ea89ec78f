"""What a run is: validated data, model, loss, batches, optimizer, phases and evaluation."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError


class Part(BaseModel):
    """A piece of a recipe. A key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataPart(Part):
    name: Literal["glyphs"] = "glyphs"
    max_classes: int | None = Field(None, ge=2, description="use no more training and evaluation classes")


class ModelPart(Part):
    backbone: str = "small_conv"
    embedding_size: int = Field(128, ge=1)


class LossPart(Part):
    name: str
    settings: dict[str, float | str] = {}


class BatchPart(Part):
    classes: int = Field(32, ge=1, description="classes in a batch")
    samples: int = Field(4, ge=1, description="samples of each class in a batch")


class OptimizerPart(Part):
    """Adam. The authors use eps = 1, which makes it nearly SGD with momentum."""

    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.0, ge=0)
    clip_value: float | None = Field(10.0, gt=0, description="clip of gradients by value, model only")


class Phase(Part):
    """A stretch of training; `warp` changes parameters of the warped softmax at its start."""

    epochs: int = Field(ge=1)
    learning_rate: float = Field(gt=0)
    proxy_learning_rate: float = Field(gt=0)
    warp: dict[str, float] = {}


class EvaluationPart(Part):
    split: Literal["validation", "test"] = "validation"
    ks: tuple[int, ...] = (1, 2, 4, 8)


class Recipe(Part):
    data: DataPart = DataPart()
    model: ModelPart = ModelPart()
    loss: LossPart
    batches: BatchPart = BatchPart()
    optimizer: OptimizerPart = OptimizerPart()
    phases: tuple[Phase, ...] = Field(min_length=1)
    evaluation: EvaluationPart = EvaluationPart()
    seed: int = Field(0, ge=0)


def parse_recipe(settings: Any, source: str = "recipe") -> Recipe:
    """Return the validated recipe; a ValueError lists all that is wrong, with the nearest known keys.

    >>> parse_recipe({"loss": {"nane": "warped_softmax"}, "phases": []})
    Traceback (most recent call last):
    ...
    ValueError: recipe: loss.name: Field required
    recipe: loss.nane: no such key; did you mean name?
    recipe: phases: Tuple should have at least 1 item after validation, not 0
    """
    try:
        return Recipe.model_validate(settings)
    except ValidationError as error:
        lines = [f"{source}: {_explain(problem)}" for problem in error.errors()]
        raise ValueError("\n".join(lines)) from None


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a YAML file."""
    try:
        settings = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not valid YAML: {error}") from None
    return parse_recipe(settings, path.name)


def dump_recipe(recipe: Recipe) -> str:
    """Return the recipe as YAML, every default written out."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False)


def _explain(problem: Any) -> str:
    place = ".".join(map(str, problem["loc"]))
    if problem["type"] != "extra_forbidden":
        return f"{place}: {problem['msg']}"
    parts = (DataPart, ModelPart, LossPart, BatchPart, OptimizerPart, Phase, EvaluationPart, Recipe)
    known = {name for part in parts for name in part.model_fields}
    near = get_close_matches(str(problem["loc"][-1]), known, n=1)
    return f"{place}: no such key" + (f"; did you mean {near[0]}?" if near else "")
