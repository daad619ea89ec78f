"""How much better one of several things is than another, and whether chance explains it.

Each was repeated with the same seeds and judged on the same classes, so differences are paired.
"""

import statistics
from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from pydantic import BaseModel, ConfigDict

from softwarp.metrics import bootstrap_means
from softwarp.runs.repeats import holm, t_interval, t_test

LEVEL = 0.05  # level of significance
SAMPLES = 10_000  # draws of the bootstrap over classes; many pairs get more
Interval = tuple[float, float]
Classes = Mapping[str, tuple[float, int]]  # the mean of each class, and of how many queries it is


class Pair(BaseModel):
    """How much better the first of two is than the second, and how sure that is.

    Intervals are 95% ones, of one comparison. p-values are corrected for the number of pairs.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    first: str
    second: str
    difference: float
    over_seeds: Interval | None  # Student's t over paired seeds; None for a single seed
    over_classes: Interval  # bootstrap over test classes
    p_seeds: float | None
    p_classes: float
    classes: int | None = None  # how many were drawn from; earlier versions did not say

    @property
    def marks(self) -> str:
        """A star if the choice of classes does not explain the difference, two if neither does that of seeds.

        A single seed gets none: it cannot tell luck from merit. Nor do a few classes: that the difference has
        the same sign in all of them may be chance.

        >>> pair = Pair(first="a", second="b", difference=0.1, over_seeds=None, over_classes=(0.05, 0.15),
        ...             p_seeds=None, p_classes=0.01)
        >>> pair.marks, pair.model_copy(update={"p_seeds": 0.2}).marks
        ('', '*')
        """
        if self.p_seeds is None or self.too_few_classes or self.p_classes >= LEVEL:
            return ""
        return "**" if self.p_seeds < LEVEL else "*"

    @property
    def too_few_classes(self) -> bool:
        """Whether even a sign test could not be sure: the same sign in all of so few may be chance."""
        return self.classes is not None and 2.0 ** (1 - self.classes) >= LEVEL


def compare_all(seeds: Mapping[str, Sequence[float]], classes: Mapping[str, Sequence[Classes]]) -> list[Pair]:
    """Return every pair of names, the one with the higher mean first.

    Args:
        seeds: by name, the value of each seed.
        classes: by name, for each seed, what it reached on each class.
    """
    order = sorted(seeds, key=lambda name: -statistics.mean(seeds[name]))
    return _compare(list(combinations(order, 2)), seeds, classes)


def compare_with(
    reference: str, seeds: Mapping[str, Sequence[float]], classes: Mapping[str, Sequence[Classes]]
) -> list[Pair]:
    """Return the pairs of every other name and the reference, in this order; a difference may be negative.

    p-values are corrected for these pairs alone: what all are compared with was known beforehand.
    """
    return _compare([(name, reference) for name in seeds if name != reference], seeds, classes)


def _compare(
    pairs: Sequence[tuple[str, str]],
    seeds: Mapping[str, Sequence[float]],
    classes: Mapping[str, Sequence[Classes]],
) -> list[Pair]:
    if not pairs:
        return []
    names = list(seeds)
    drawn = _drawn_means([classes[name] for name in names], max(SAMPLES, 100 * len(pairs)))
    column = {name: drawn[:, place] for place, name in enumerate(names)}
    found = [_pair(first, second, seeds, column[first] - column[second]) for first, second in pairs]
    by_classes, count = holm([pair.p_classes for pair in found]), len(classes[names[0]][0])
    known = [pair.p_seeds for pair in found if pair.p_seeds is not None]
    by_seeds = holm(known) if known else [None] * len(found)
    return [
        pair.model_copy(update={"p_classes": p_classes, "p_seeds": p_seeds, "classes": count})
        for pair, p_classes, p_seeds in zip(found, by_classes, by_seeds, strict=True)
    ]


def _drawn_means(classes: Sequence[Sequence[Classes]], samples: int) -> torch.Tensor:
    """The means, averaged over seeds, that other draws of the classes would have given: [samples, things]."""
    names = sorted(classes[0][0])
    if any(sorted(seed) != names for each in classes for seed in each):
        raise ValueError("the runs were judged on different classes, so they cannot be compared")
    counts = torch.tensor([classes[0][0][name][1] for name in names])
    means = torch.tensor(
        [[statistics.mean(seed[name][0] for seed in each) for each in classes] for name in names],
        dtype=torch.float64,
    )
    # A class's mean, repeated as often as it has queries, has the sum of their values.
    numbers = torch.arange(len(names)).repeat_interleave(counts)
    return bootstrap_means(means[numbers], numbers, samples=samples)


def _pair(first: str, second: str, seeds: Mapping[str, Sequence[float]], drawn: torch.Tensor) -> Pair:
    """The comparison of two, p-values not yet corrected."""
    differences = [a - b for a, b in zip(seeds[first], seeds[second], strict=True)]
    several = len(differences) > 1
    low, high = torch.quantile(drawn, torch.tensor([0.025, 0.975], dtype=drawn.dtype)).tolist()
    tail = 1 + min(int((drawn <= 0).sum()), int((drawn >= 0).sum()))
    return Pair(
        first=first,
        second=second,
        difference=statistics.mean(differences),
        over_seeds=t_interval(differences) if several else None,
        over_classes=(low, high),
        p_seeds=t_test(differences) if several else None,
        p_classes=min(1.0, 2 * tail / (len(drawn) + 1)),
    )
