"""result.json: the outcome of a run, and how JSON files of runs are read back."""

from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from softwarp.tables import figure, figures_table, metric_title

Model = TypeVar("Model", bound=BaseModel)


class Counts(BaseModel):
    """How many classes or images trained, and how many were evaluated."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    train: int
    evaluated: int


class Result(BaseModel):
    """The outcome of a run: result.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    version: Literal[1] = Field(1, alias="schema")  # raise it when a key changes its meaning
    name: str  # the loss
    seed: int
    distance: Literal["euclidean", "cosine"]
    split: Literal["validation", "test"]
    classes: Counts
    images: Counts
    closed: bool = False  # whether the evaluated classes train, too, with other images
    metrics: dict[str, float]
    baseline: dict[str, float] | None = None  # the untrained model's pooled features
    epochs: int
    broken_images: tuple[str, ...] = ()  # skipped in training
    left_out: tuple[str, ...] = ()  # skipped in evaluation
    seconds: float
    data_sha256: str
    pretrained: bool = True  # whether the backbone's weights were, before training
    head: Literal["", "calibrated", "trained"] = ""  # what was made of the features of a frozen backbone
    held_out: "Result | None" = None  # of a shipped model: that of the same without the held-out classes

    @property
    def measured(self) -> "Result":
        """The result with the figures: of a shipped model, that of the one that had not seen all classes."""
        return self.held_out or self

    @property
    def caveat(self) -> str:
        """In words, which model was measured if it was not this one; empty if it was."""
        if self.held_out is None:
            return ""
        counts, what = self.held_out.classes, "classes"
        if self.held_out.closed:
            counts, what = self.held_out.images, "images"
        seen = self.images.train if self.held_out.closed else self.classes.train
        return (
            f"measured on {counts.evaluated:,} held-out {what} by a model that did not see them; this model "
            f"has seen all {seen:,} {what}"
        )

    @property
    def title(self) -> str:
        """What made the embeddings: the loss, unless nothing was trained."""
        if self.epochs or not self.head:
            return self.name if self.epochs else features_title(self.pretrained)
        return "calibrated features" if self.head == "calibrated" else "trained head on frozen features"

    @property
    def headline(self) -> str:
        """What made the embeddings, and what judged them."""
        if self.caveat:
            return f"{self.title}, {self.caveat}"
        if self.closed:
            return f"{self.title}, closed set: {self.images.evaluated} {self.split} images of known classes"
        return f"{self.title}: {self.classes.evaluated} unseen {self.split} classes"

    def __repr__(self) -> str:
        shown, metrics = ("map@r", "recall@1"), self.measured.metrics
        figures = ", ".join(
            f"{metric_title(key)} {figure(key, metrics[key])}" for key in shown if key in metrics
        )
        return f"Result({self.headline}; {figures})"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        metrics, before = self.measured.metrics, self.measured.baseline or {}
        return figures_table(metrics, {}, before, title=self.headline).html()


def features_title(pretrained: bool | str) -> str:
    """Return what to call the features of a backbone that was not trained.

    >>> features_title(True), features_title(False)
    ('frozen features', 'untrained features')
    """
    return "frozen features" if pretrained else "untrained features"


def read_json_as(kind: type[Model], path: Path, *, cure: str = "start afresh (--fresh, fresh=True)") -> Model:
    """Return a JSON file as a pydantic model; a ValueError names what is wrong with it, and the cure."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ValueError(
            f"{path} is not what this version of softwarp writes ({place + ': ' if place else ''}"
            f"{first['msg']}); it was written by another version or edited: {cure}"
        ) from None
