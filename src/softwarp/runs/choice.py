"""choice.json: which model was handed out, the candidates, and what held-out classes said of each."""

from html import escape
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from softwarp.recipe.schema import StartPart
from softwarp.runs.networks import TriedNetwork, chosen_network, networks_table
from softwarp.tables import Cell, Table, counted

RungName = Literal["frozen", "calibrated", "head", "fine-tuned"]


class Verdict(BaseModel):
    """What held-out images of the training classes say of a model: MAP@R, each class alike."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    map_at_r: float
    difference: float  # MAP@R minus that of the frozen features
    interval: tuple[float, float]  # 95%, of the difference, over classes; of all candidates at once


class Candidate(BaseModel):
    """A model that could be handed out, and what held-out classes say of it: MAP@R, each class alike."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    epochs: int  # of fine-tuning
    share: float  # how far from the weights at its start, 0, to the trained ones, 1
    start: StartPart | None = None  # how its head was calibrated; None if it was not
    map_at_r: float
    difference: float  # MAP@R minus that of the frozen features
    interval: tuple[float, float]  # 95%, of the difference, over classes; of all candidates at once
    images: Verdict | None = None  # known in a closed set alone

    @property
    def rung(self) -> RungName:
        """What it took to make it."""
        if self.epochs:
            return "fine-tuned"
        if self.start is None:
            return "frozen"
        return "head" if self.start.steps else "calibrated"

    @property
    def deciding(self) -> "Verdict | Candidate":
        """What it has to beat the frozen features by: on held-out images, or else on held-out classes."""
        return self.images or self

    def surely_better(self) -> bool:
        """Return whether it beats the frozen features beyond chance, and on no side is surely worse."""
        return self.deciding.interval[0] > 0 and self.interval[1] >= 0


class Rung(BaseModel):
    """One step of the ladder: the seconds it took, and the best candidate that it gave."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: RungName
    seconds: float
    best: Candidate


class Choice(BaseModel):
    """All candidates and the one that was chosen: choice.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    version: Literal[1] = Field(1, alias="schema")
    classes: int  # how many judged
    chosen: Candidate
    best: Candidate  # the one with the highest MAP@R
    candidates: tuple[Candidate, ...]
    rungs: tuple[Rung, ...] = ()  # as far as time allowed; absent from choices of version 0.1
    network: str = ""  # that was trained, if there were several
    networks: tuple[TriedNetwork, ...] = ()  # that it was chosen from

    def __repr__(self) -> str:
        return f"Choice({'; '.join(filter(None, (self.sentence(), self.about_networks())))})"

    def __str__(self) -> str:
        return repr(self)

    def _repr_html_(self) -> str:
        networks = networks_table(self.networks, self.network).html() if self.networks else ""
        return f"{networks}{self.table().html()}<p>{escape(self.sentence())}</p>"

    def about_networks(self) -> str:
        """Return in words which network it is, if it was chosen from several."""
        return chosen_network(self.networks, self.network) if self.networks else ""

    def curve(self) -> dict[int, float]:
        """Return the highest MAP@R of each look of fine-tuning, by its epochs."""
        looks: dict[int, float] = {}
        for each in (each for each in self.candidates if each.epochs):
            looks[each.epochs] = max(each.deciding.map_at_r, looks.get(each.epochs, 0.0))
        return dict(sorted(looks.items()))

    def still_rising(self) -> bool:
        """Return whether the chosen model has the most epochs of several looks: more may be better."""
        looks = self.curve()
        return len(looks) > 1 and self.chosen.epochs == max(looks)

    def sentence(self) -> str:
        """Return in words which candidate it was and how sure that is."""
        shown = self.best if self.chosen.rung == "frozen" else self.chosen
        sure = _sure(shown, self.classes)
        if self.chosen.rung != "frozen":
            return f"chosen: {_name(self.chosen)} ({sure})"
        what = "none was better" if self.best.rung == "frozen" else f"the best, {_name(self.best)}: {sure}"
        worse = self.best.deciding.interval[0] > 0  # though better on held-out images
        why = "no other model beat them beyond chance"
        why = "what training gains on new images it surely loses on new classes" if worse else why
        return f"chosen: the frozen features, because {why} ({what})"

    def table(self) -> Table:
        """Return a row per rung: what held-out training classes say of its best model, and its seconds."""
        heads = ("rung", "best of it", "MAP@R", "gain", "95% interval", "seconds")
        rows = [_row(each, self.chosen.rung) for each in self.rungs]
        title = f"{self.classes} training classes, each held out once; * was handed out"
        return Table(heads, tuple(rows), title=title, words=2)


def _row(rung: Rung, chosen: RungName) -> tuple[Cell, ...]:
    said, first = rung.best.deciding, rung.name == "frozen"
    low, high = (f"{100 * end:+.1f}" for end in said.interval)
    texts = (
        rung.name + " *" * (rung.name == chosen),
        "" if first else _how(rung.best),
        f"{100 * said.map_at_r:.1f}",
        "" if first else f"{100 * said.difference:+.1f}",
        "" if first else f"{low} to {high}",
        f"{rung.seconds:.0f}",
    )
    return tuple(map(Cell, texts))


def _sure(candidate: Candidate, classes: int) -> str:
    """What the held-out classes, and in a closed set first the held-out images, say of a candidate."""

    def said(verdict: Verdict | Candidate, where: str) -> str:
        low, high = (f"{100 * end:+.1f}" for end in verdict.interval)
        return f"{100 * verdict.difference:+.1f} MAP@R {where}, 95% interval {low} to {high}"

    if candidate.images is None:
        where = f"against the frozen features on {classes} training classes, each held out once"
        return said(candidate, where)
    images = said(candidate.images, "against the frozen features on held-out images of training classes")
    return f"{images}; {said(candidate, f'on {classes} training classes, each held out once')}"


def _name(candidate: Candidate) -> str:
    if candidate.rung == "calibrated":
        return f"calibrated features, {_how(candidate)}"
    return f"head alone, {_how(candidate)}" if candidate.rung == "head" else _how(candidate)


def _how(candidate: Candidate) -> str:
    """The settings of a candidate in words."""
    if candidate.epochs:
        epochs, share = counted(candidate.epochs, "epoch"), candidate.share
        return epochs if share == 1 else f"{epochs}, {share:.0%} of the way from the start"
    if candidate.start is None:
        return ""
    if candidate.start.steps:
        return f"{counted(candidate.start.steps, 'step')} of {candidate.start.loss}"
    shrinkage = candidate.start.shrinkage
    return "the mean subtracted" if shrinkage is None else f"shrinkage {shrinkage:g}"
