"""Labels that visitors correct: kept in a CSV file beside the index until `softwarp index apply` reads it."""

import shlex

from fastapi import APIRouter, HTTPException

from softwarp.files import printable
from softwarp.index.corrections import Corrections
from softwarp.index.index import Index
from softwarp.serve import answers, lookup
from softwarp.serve.live import LiveIndex
from softwarp.serve.lookup import Id


def label_routes(live: LiveIndex, corrections: Corrections) -> APIRouter:
    """Return the routes under /api that correct labels; the index itself does not change."""
    routes = APIRouter(prefix="/api")

    def put(number: int, name: str | None) -> answers.Corrected:
        index = live.now()
        item = lookup.image_of(index, number)
        label = None if name is None else _class_name(index, name)
        read(corrections)
        try:
            corrections.put(item.path, label)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise HTTPException(507, f"{corrections.path.name} cannot be written: {reason}") from None
        shown = dict(lookup.picture(item))
        return answers.Corrected(**shown, corrected=None if label is None else printable(label))

    @routes.put("/images/{number}/label")
    def correct(number: Id, label: answers.NewLabel) -> answers.Corrected:
        """Correct the label of an image, in the list beside the index."""
        return put(number, label.name)

    @routes.delete("/images/{number}/label")
    def take_back(number: Id) -> answers.Corrected:
        """Take the correction of an image back."""
        return put(number, None)

    @routes.get("/labels")
    def pending() -> answers.CorrectionList:
        """How many corrections are waiting to be applied, and the command that applies them."""
        index, given = live.now(), read(corrections)
        labels = index.store.labels_of(given)
        waiting = [path for path, label in labels.items() if label != given[path]]
        command = f"softwarp index apply {shlex.quote(index.folder.resolve().name)}"
        return answers.CorrectionList(
            count=len(waiting), file=printable(corrections.path.name), command=printable(command)
        )

    return routes


def read(corrections: Corrections) -> dict[str, str]:
    """Return the corrections, or answer that somebody has edited the file so that it cannot be read."""
    try:
        return corrections.read()
    except ValueError as error:
        cause = str(error).replace(str(corrections.path), corrections.path.name)
        raise HTTPException(409, printable(cause)) from None


def _class_name(index: Index, name: str) -> str:
    """The class of that name: one of the index as it is shown, or a new one of plain text."""
    name = name.strip()
    known = {printable(each): each for each in index.store.classes()}
    if name in known:
        return known[name]
    if not name or not name.isprintable():
        raise HTTPException(422, "class: give a name without control characters")
    return name
