"""The batches of one step of a study: those of the recipe, lowered to the classes that this step trains on.

A search trains on half of the training classes, a fold on all but one fold, the final model on all of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from softwarp.data.sources import load_source
from softwarp.losses import build_loss, card_of
from softwarp.recipe.schema import BatchPart, Recipe


@dataclass(frozen=True)
class Room:
    """How many classes and images a step trains on, a hash of its images, and its protocol in a line."""

    classes: int
    images: int
    sha256: str = ""
    protocol: str = ""


def room_of(recipe: Recipe) -> Room:
    """Return what the recipe trains on, by its plan of classes."""
    source = load_source(recipe.data.uncached(), recipe.evaluation.plan())
    return Room(len(source.names), len(source.labels), source.sha256, source.protocol)


def fit_batches(recipe: Recipe, room: Room | None = None) -> Recipe:
    """Return the recipe with batches that the images it trains on can fill; none gets larger.

    Args:
        room: what it trains on, if that is known already.
    """
    room = room or room_of(recipe)
    batches, pieces = recipe.batches, recipe.batches.accumulate
    if batches.classes is None:
        assert batches.size is not None
        key, wanted, there, what = "size", batches.size, room.images, "images"
    else:
        key, wanted, there, what = "classes", batches.classes, room.classes, "classes"
    if there < pieces:
        raise ValueError(f"{there} {what} train, too few for batches.accumulate={pieces} pieces; lower it")
    fitted = min(wanted, there - there % pieces)
    return recipe.model_copy(update={"batches": batches.model_copy(update={key: fitted})})


def in_words(batches: BatchPart) -> str:
    """Return what a batch holds.

    >>> in_words(BatchPart(classes=3, samples=4)), in_words(BatchPart(size=32))
    ('3 classes x 4 images', '32 images')
    """
    if batches.size:
        return f"{batches.size} images"
    return f"{batches.classes} class{'es' * (batches.classes != 1)} x {batches.samples} images"


def why_not(loss: str, accumulate: int, room: Room) -> str:
    """Return why a loss cannot be trained on so few classes; empty if it can.

    >>> why_not("triplet", 1, Room(1, 9)), why_not("triplet", 1, Room(2, 9))
    ('triplet needs 2 classes in a batch, but only 1 trains', '')
    """
    needed, pieces = card_of(loss).min_classes, f" ({accumulate} pieces)" * (accumulate > 1)
    trains = f"only {room.classes} train{'s' * (room.classes == 1)}"
    if needed * accumulate > room.classes:
        return f"{loss} needs {needed * accumulate} classes in a batch{pieces}, but {trains}"
    try:
        build_loss(loss, room.classes, 16)
    except ValueError as error:
        return f"{loss}: {error}"
    return ""


def divide_able(losses: Iterable[str], accumulate: int, room: Room) -> tuple[list[str], list[str]]:
    """Return the losses that so few classes can train, and for each of the others why they cannot."""
    reasons = {loss: why_not(loss, accumulate, room) for loss in losses}
    able = [loss for loss, reason in reasons.items() if not reason]
    return able, [reason for reason in reasons.values() if reason]
