"""Which model is handed out: the frozen one or a trained one, decided on training classes held out.

In a closed set, where new images of the training classes are looked up, also on held-out images of these.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from softwarp.data.class_groups import fold_classes
from softwarp.models.backbones import build_backbone
from softwarp.recipe.schema import Recipe, parse_recipe
from softwarp.runs.choice import Candidate, Choice, Verdict
from softwarp.runs.repeats import t_interval
from softwarp.training.budget import FOLDS, SHARES, whole_looks
from softwarp.training.step_batches import Room, fit_batches

FEWEST_CLASSES = 4  # training classes, so that each half trains on two
FOLD_SEED = 0  # classes are shuffled, because neighbours by name may be of one kind

Values = Mapping[tuple[int, float], Mapping[str, float]]  # MAP@R by epochs and share, by class
FROZEN = (0, 0.0)


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

    Beyond chance: the 95% interval of the difference, over classes, lies above zero. Classes that one of the
    candidates has no value for are left out of all.

    Args:
        values: what held-out classes say.
        images: in a closed set, what held-out images of the training classes say. These then decide, and a
            candidate that is beyond chance worse on held-out classes is none.

    >>> looks = {(0, 0.0): [0.1, 0.2, 0.3], (4, 0.5): [0.3, 0.4, 0.6], (4, 1.0): [0.9, 0.0, 0.9]}
    >>> choice = choose_candidate({key: dict(zip("abc", values)) for key, values in looks.items()})
    >>> choice.best.share, choice.chosen.share
    (1.0, 0.5)
    """
    classes, verdicts = _verdicts(values)
    of_images = {} if images is None else _verdicts(images)[1]
    candidates = [
        Candidate(epochs=key[0], share=key[1], **dict(each), images=of_images.get(key))
        for key, each in verdicts.items()
    ]
    surely = [each for each in candidates if each.surely_better()] or candidates[:1]
    best, chosen = (max(group, key=lambda each: each.deciding.map_at_r) for group in (candidates, surely))
    return Choice(classes=classes, chosen=chosen, best=best, candidates=tuple(candidates))


def _verdicts(values: Values) -> tuple[int, dict[tuple[int, float], Verdict]]:
    """The number of classes that judge all candidates, and what they say of each, the frozen one first."""
    classes = sorted(set.intersection(*(set(each) for each in values.values())))
    wide = torch.float64
    table = {key: torch.tensor([each[name] for name in classes], dtype=wide) for key, each in values.items()}
    return len(classes), {key: _verdict(value, table[FROZEN]) for key, value in sorted(table.items())}


def _verdict(values: torch.Tensor, frozen: torch.Tensor) -> Verdict:
    differences = values - frozen
    interval = t_interval(differences.tolist()) if len(values) > 1 else (-1.0, 1.0)  # MAP@R is within 0..1
    return Verdict(map_at_r=float(values.mean()), difference=float(differences.mean()), interval=interval)


def read_looks(
    histories: Sequence[Sequence[Mapping[str, Any]]], key: str = "interpolations"
) -> dict[tuple[int, float], dict[str, float]]:
    """Return what the runs of all folds saw at their looks; their classes are put together.

    Args:
        key: of the rows: `interpolations` for held-out classes, `held_out_images` for images.

    >>> read_looks([[{"epoch": 3, "interpolations": {"0.0": {"a": 0.5}, "1.0": {"a": 0.7}}}, {"epoch": 4}]])
    {(0, 0.0): {'a': 0.5}, (3, 1.0): {'a': 0.7}}
    """
    found: dict[tuple[int, float], dict[str, float]] = {}
    for row in (row for history in histories for row in history):
        for share, classes in row.get(key, {}).items():
            look = (row["epoch"], float(share)) if float(share) else FROZEN
            found.setdefault(look, {}).update(classes)
    return found


def fold_recipes(recipe: Recipe, classes: int) -> list[Recipe]:
    """Return the runs that choose, one per fold of the `classes` that the recipe trains on."""
    epochs = recipe.phases[0].epochs
    judged = {
        "split": "validation",
        "folds": FOLDS,
        "fold_seed": FOLD_SEED,
        "fold_of": recipe.evaluation.split,
        "every": whole_looks(epochs)[0],
        "interpolations": SHARES,
        "clustering": False,
        "baseline": False,
        "avg_dtp_images": 0,
        "patience": None,
    }
    settings = recipe.model_dump(mode="json")
    settings["optimizer"]["wise_ft"] = None
    evaluation = settings.pop("evaluation") | judged
    folds = [parse_recipe({**settings, "evaluation": evaluation | {"fold": fold}}) for fold in range(FOLDS)]
    room = None if recipe.batches.classes is None else Room(classes // FOLDS, images=0)
    return [fit_batches(each, room) for each in folds]


def trained_as(recipe: Recipe, epochs: int, share: float) -> Recipe:
    """Return the recipe of a model that is trained so long and goes this share of the way.

    The phase's rates do not fall, so its first epochs are the same however many follow. Without epochs these
    are the frozen features as they are: a head of principal directions would favour the training classes.
    """
    if not epochs:
        channels = build_backbone(recipe.model.backbone, pooling=recipe.model.pooling).channels
        plain = {"head": "none", "head_init": "default", "embedding_size": channels, "adapter": None}
        recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update=plain)})
    phase = recipe.phases[0].model_copy(update={"epochs": epochs})
    wise_ft = share if 0 < share < 1 else None
    optimizer = recipe.optimizer.model_copy(update={"wise_ft": wise_ft})
    return recipe.model_copy(update={"phases": (phase,), "optimizer": optimizer})
