"""choice.json: which model was handed out, the candidates, and what held-out classes said of each."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Verdict(BaseModel):
    """What held-out images of the training classes say of a model: MAP@R, each class alike."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    map_at_r: float
    difference: float  # MAP@R minus that of the frozen features
    interval: tuple[float, float]  # 95%, of the difference, by Student's t over classes


class Candidate(BaseModel):
    """A model that could be handed out, and what held-out classes say of it: MAP@R, each class alike."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    epochs: int
    share: float  # how far from the frozen weights, 0, to the trained ones, 1
    map_at_r: float
    difference: float  # MAP@R minus that of the frozen features
    interval: tuple[float, float]  # 95%, of the difference, by Student's t over classes
    images: Verdict | None = None  # known in a closed set alone

    @property
    def deciding(self) -> "Verdict | Candidate":
        """What it has to beat the frozen features by: on held-out images, or else on held-out classes."""
        return self.images or self

    def surely_better(self) -> bool:
        """Return whether it beats the frozen features beyond chance, and on no side is surely worse."""
        return self.deciding.interval[0] > 0 and self.interval[1] >= 0


class Choice(BaseModel):
    """All candidates and the one that was chosen: choice.json."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    version: Literal[1] = Field(1, alias="schema")
    classes: int  # how many judged
    chosen: Candidate
    best: Candidate  # the one with the highest MAP@R
    candidates: tuple[Candidate, ...]

    def still_rising(self) -> bool:
        """Return whether the chosen model has the most epochs of several looks: more may be better."""
        looks = {each.epochs for each in self.candidates if each.epochs}
        return len(looks) > 1 and self.chosen.epochs == max(looks)

    def sentence(self) -> str:
        """Return in words which candidate it was and how sure that is."""
        shown = self.chosen if self.chosen.epochs else self.best
        sure = _sure(shown, self.classes)
        if self.chosen.epochs:
            return f"chosen: {_name(self.chosen)} ({sure})"
        what = f"the best, {_name(self.best)}: {sure}" if self.best.epochs else "none was better"
        worse = self.best.deciding.interval[0] > 0  # though better on held-out images
        why = "no trained model beat them beyond chance"
        why = "what training gains on new images it surely loses on new classes" if worse else why
        return f"chosen: the frozen features, because {why} ({what})"


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
    epochs = f"{candidate.epochs} epoch{'s' * (candidate.epochs > 1)}"
    return epochs if candidate.share == 1 else f"{epochs}, {candidate.share:.0%} of the way from the start"
