"""The ladder of candidates, from the frozen features up, and how far it has been climbed: choice/ladder.json.

A rung that was climbed is written down, so a run that was killed takes the same decisions again.
"""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from softwarp import processes
from softwarp.files import write_json
from softwarp.recipe.overrides import dump_recipe
from softwarp.recipe.schema import Recipe, StartPart
from softwarp.runs.choice import Choice, Rung, RungName
from softwarp.runs.result import read_json_as
from softwarp.training.choice import Values, Way, choose_candidate

Seen = tuple[Values, Values]  # MAP@R by class: of held-out classes and, in a closed set, of held-out images


class Look(BaseModel):
    """A candidate, and the MAP@R of the classes that judged it."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    epochs: int
    share: float
    start: StartPart | None
    classes: dict[str, float]
    images: dict[str, float]


class Climbed(BaseModel):
    """One thing that was tried, the seconds that it took, and the candidates that it gave."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    rung: RungName
    what: str
    seconds: float
    looks: tuple[Look, ...]


class Ladder(BaseModel):
    """What the halves of the training classes have said so far."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    version: int = Field(1, alias="schema")
    asked: dict[str, Any]  # what it is the answer to: images, model, seed
    climbed: list[Climbed] = []
    tuned: str = ""  # a hash of the recipe that the halves are fine-tuned by
    granted: int = 0  # epochs of fine-tuning that the halves may train
    stopped: str = ""  # why they may not train more
    budget: float = 0.0  # seconds for all of it
    spent: float = 0.0  # seconds before the first rung, in which a network was chosen and the plan was made
    pace: dict[str, float] | None = None  # timed again, where the plan left no time to fine-tune

    @staticmethod
    def open(
        file: Path, asked: dict[str, Any], *, budget: float, fresh: bool, spent: float = 0.0
    ) -> "Ladder":
        """Return the ladder in a file; a new one if it answers another question.

        With another budget fine-tuning goes on where time had ended it.
        """
        asked = json.loads(json.dumps(asked))
        ladder = Ladder(asked=asked)
        if file.is_file() and not fresh and (found := read_json_as(Ladder, file)).asked == asked:
            ladder = found
        ladder.spent = spent
        if ladder.budget != budget:
            ladder.stopped = "" if ladder.stopped == "time" else ladder.stopped
            ladder.budget, ladder.pace = budget, None
        return ladder

    def save(self, file: Path) -> None:
        """Write it down."""
        if processes.is_main():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, self.model_dump(mode="json", by_alias=True))

    def climb(self, file: Path, rung: RungName, what: str, look: Callable[[], Seen]) -> None:
        """Add what `look` returns in every process, unless it was added before."""
        if any(each.what == what for each in self.climbed):
            return
        begun = time.perf_counter()
        classes, images = look()
        seconds = float(processes.from_main(lambda: time.perf_counter() - begun))
        looks = tuple(
            Look(**way._asdict(), classes=dict(each), images=dict(images.get(way, {})))
            for way, each in classes.items()
        )
        self.climbed.append(Climbed(rung=rung, what=what, seconds=seconds, looks=looks))
        self.save(file)

    def begin_tuning(self, half: Recipe) -> None:
        """Forget what was decided for halves of another recipe."""
        digest = hashlib.sha256(dump_recipe(half).encode()).hexdigest()
        if self.tuned != digest:
            self.tuned, self.granted, self.stopped = digest, 0, ""

    @property
    def seconds(self) -> float:
        """The seconds that all of it took."""
        return self.spent + sum(each.seconds for each in self.climbed)

    def choice(self, tuned: Seen = ({}, {}), seconds: float = 0.0) -> Choice:
        """Return the choice among all candidates so far, and what fine-tuning gave in so many seconds."""
        values: dict[Way, dict[str, float]] = {}
        images: dict[Way, dict[str, float]] = {}
        for look in (look for each in self.climbed for look in each.looks):
            way = Way(look.epochs, look.share, look.start)
            values[way], images[way] = look.classes, look.images
        values |= {way: dict(each) for way, each in tuned[0].items()}
        images |= {way: dict(each) for way, each in tuned[1].items()}
        choice = choose_candidate(values, images if any(images.values()) else None)
        took: dict[RungName, float] = {}
        for each in self.climbed:
            took[each.rung] = took.get(each.rung, 0.0) + each.seconds
        if tuned[0]:
            took["fine-tuned"] = seconds
        return choice.model_copy(update={"rungs": tuple(_rungs(choice, took))})


def _rungs(choice: Choice, took: dict[RungName, float]) -> Sequence[Rung]:
    """Each rung with its best candidate; of the rung that was chosen, the chosen one."""
    found = []
    for name, seconds in took.items():
        own = [each for each in choice.candidates if each.rung == name]
        best = max(own, key=lambda each: each.deciding.map_at_r)
        found.append(
            Rung(name=name, seconds=seconds, best=choice.chosen if choice.chosen.rung == name else best)
        )
    return found
