"""Which model is handed out: the frozen one or another, decided on training classes held out.

In a closed set, where new images of the training classes are looked up, also on held-out images of these.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from softwarp.data.class_groups import fold_classes
from softwarp.models.backbones import build_backbone
from softwarp.recipe.schema import Recipe, StartPart, parse_recipe
from softwarp.runs.choice import Candidate, Choice, Verdict
from softwarp.runs.repeats import simultaneous_intervals
from softwarp.training.budget import FOLDS, SHARES
from softwarp.training.step_batches import Room, fit_batches

FEWEST_CLASSES = 4  # training classes, so that each half trains on two
FOLD_SEED = 0  # classes are shuffled, because neighbours by name may be of one kind


class Way(NamedTuple):
    """How a candidate is made: epochs, share of the way from its start, and how its head was calibrated."""

    epochs: int = 0
    share: float = 0.0
    start: StartPart | None = None


Values = Mapping[Way, Mapping[str, float]]  # MAP@R by class
FROZEN = Way()


def why_frozen(labels: torch.Tensor, *, choosing: bool) -> str:
    """Return why nothing is trained on these labels; empty if something is.

    Args:
        choosing: whether the halves of the classes judge each other.

    >>> why_frozen(torch.tensor([0, 0, 1, 1, 2]), choosing=True)
    '2 training classes with two images or more are too few to tell whether training helps; 4 are needed'
    """
    several = labels.bincount() > 1  # a single image has nothing to find
    if int(several.sum()) < FEWEST_CLASSES:
        return (
            f"{int(several.sum())} training classes with two images or more are too few to tell whether "
            f"training helps; {FEWEST_CLASSES} are needed"
        )
    folds = fold_classes(np.arange(len(several)), folds=FOLDS, seed=FOLD_SEED) if choosing else []
    if all(bool(several[fold].any()) for fold in folds):
        return ""
    return "in one half of the training classes each has a single image and cannot judge; add images"


def choose_candidate(values: Values, images: Values | None = None) -> Choice:
    """Return the candidate of highest MAP@R that beats the frozen one beyond chance, or else the frozen one.

    Beyond chance: the 95% interval of the difference, over classes, lies above zero, and it is wide enough to
    hold for all candidates at once. Classes that one of them has no value for are left out of all.

    Args:
        values: what held-out classes say.
        images: in a closed set, what held-out images of the training classes say. These then decide, and a
            candidate that is beyond chance worse on held-out classes is none.

    >>> looks = {Way(): [0.1, 0.2, 0.3], Way(4, 0.5): [0.3, 0.4, 0.6], Way(4, 1.0): [0.9, 0.0, 0.9]}
    >>> choice = choose_candidate({key: dict(zip("abc", values)) for key, values in looks.items()})
    >>> choice.best.share, choice.chosen.share
    (1.0, 0.5)
    """
    classes, verdicts = _verdicts(values)
    of_images = {} if images is None else _verdicts(images)[1]
    candidates = [
        Candidate(**key._asdict(), **dict(each), images=of_images.get(key)) for key, each in verdicts.items()
    ]
    surely = [each for each in candidates if each.surely_better()] or candidates[:1]
    best, chosen = (max(group, key=lambda each: each.deciding.map_at_r) for group in (candidates, surely))
    return Choice(classes=classes, chosen=chosen, best=best, candidates=tuple(candidates))


def mean_of(values: Mapping[str, float]) -> float:
    """Return the MAP@R of a candidate: each class counts alike."""
    return sum(values.values()) / len(values)


def _verdicts(values: Values) -> tuple[int, dict[Way, Verdict]]:
    """The number of classes that judge all candidates, and what they say of each, the frozen one first."""
    classes = sorted(set.intersection(*(set(each) for each in values.values())))
    ways = list(dict.fromkeys((FROZEN, *values)))
    table = np.array([[values[way][name] for name in classes] for way in ways])
    differences = table - table[0]
    if len(classes) > 1:
        intervals = [(0.0, 0.0), *simultaneous_intervals(differences[1:])]
    else:
        intervals = [(-1.0, 1.0)] * len(ways)  # MAP@R is within 0..1
    rows = zip(table.mean(1).tolist(), differences.mean(1).tolist(), intervals, strict=True)
    verdicts = [Verdict(map_at_r=value, difference=gain, interval=interval) for value, gain, interval in rows]
    return len(classes), dict(zip(ways, verdicts, strict=True))


def read_looks(
    histories: Sequence[Sequence[Mapping[str, Any]]],
    key: str = "interpolations",
    *,
    start: StartPart | None = None,
) -> dict[Way, dict[str, float]]:
    """Return what the runs of all folds saw at their looks; their classes are put together.

    Args:
        key: of the rows: `interpolations` for held-out classes, `held_out_images` for images.
        start: of the heads that they began with.

    >>> read_looks([[{"epoch": 3, "interpolations": {"0.5": {"a": 0.5}, "1.0": {"a": 0.7}}}, {"epoch": 4}]])
    {Way(epochs=3, share=0.5, start=None): {'a': 0.5}, Way(epochs=3, share=1.0, start=None): {'a': 0.7}}
    """
    found: dict[Way, dict[str, float]] = {}
    for row in (row for history in histories for row in history):
        for share, classes in row.get(key, {}).items():
            found.setdefault(Way(row["epoch"], float(share), start), {}).update(classes)
    return found


def fold_recipes(recipe: Recipe, classes: int, *, every: int, epochs: int) -> list[Recipe]:
    """Return the runs that choose, one per fold of the `classes` that the recipe trains on.

    Args:
        every: epochs between two looks.
        epochs: how many they may train.
    """
    judged = {
        "split": "validation",
        "folds": FOLDS,
        "fold_seed": FOLD_SEED,
        "fold_of": recipe.evaluation.split,
        "every": every,
        "interpolations": SHARES,
        "clustering": False,
        "baseline": False,
        "whole_gallery": False,
        "avg_dtp_images": 0,
        "patience": None,
    }
    settings = recipe.model_dump(mode="json")
    settings["optimizer"]["wise_ft"] = None
    settings["phases"][0]["epochs"] = epochs
    evaluation = settings.pop("evaluation") | judged
    folds = [parse_recipe({**settings, "evaluation": evaluation | {"fold": fold}}) for fold in range(FOLDS)]
    room = None if recipe.batches.classes is None else Room(classes // FOLDS, images=0)
    return [fit_batches(each, room) for each in folds]


def made_as(recipe: Recipe, way: Way | Candidate, *, size: int | None = None) -> Recipe:
    """Return the recipe of a model that is made in this way.

    The phase's rates do not fall, so its first epochs are the same however many follow. The frozen features
    are taken as they are: a head of principal directions would favour the training classes.

    Args:
        size: of the embedding of a calibrated head; by default as many as there are features.
    """
    changes: dict[str, object] = {}
    channels = build_backbone(recipe.model.backbone, pooling=recipe.model.pooling).channels
    if way.start is not None:
        changes = {"head_init": "whitened", "unit_length": True, "embedding_size": size or channels}
    elif not way.epochs:
        changes = {"head": "none", "head_init": "default", "embedding_size": channels}
    if not way.epochs:
        changes["adapter"] = None
    phase = recipe.phases[0].model_copy(update={"epochs": way.epochs})
    wise_ft = way.share if way.epochs and way.share < 1 else None
    return recipe.model_copy(
        update={
            "model": recipe.model.model_copy(update=changes),
            "start": way.start or StartPart(),
            "phases": (phase,),
            "optimizer": recipe.optimizer.model_copy(update={"wise_ft": wise_ft}),
        }
    )
