"""Runs that differ only in their seed -> mean, deviation, interval; tests of paired differences."""

import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from softwarp.files import write_json
from softwarp.runs.result import Result, read_json_as
from softwarp.runs.run import Run


class Repeats(BaseModel):
    """Several runs of one recipe, and each metric over them: seeds.json. One run has no deviation."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)
    version: Literal[1] = Field(1, alias="schema")
    mean: dict[str, float]
    deviation: dict[str, float]  # of a sample: divided by n - 1
    interval: dict[str, tuple[float, float]]  # 95%, of the mean, by Student's t
    runs: tuple[Result, ...]

    @property
    def baseline(self) -> dict[str, float]:
        """The means of the untrained models; empty if they were not measured."""
        values = _values([run.baseline or {} for run in self.runs])
        return {name: statistics.mean(each) for name, each in values.items()}


def summarise(runs: Sequence[Result]) -> Repeats:
    """Return mean, deviation and 95% interval of every metric that all runs have."""
    values = _values([run.metrics for run in runs])
    several = {name: each for name, each in values.items() if len(runs) > 1}
    return Repeats(
        mean={name: statistics.mean(each) for name, each in values.items()},
        deviation={name: deviation_of(each) for name, each in several.items()},
        interval={name: t_interval(each) for name, each in several.items()},
        runs=tuple(runs),
    )


def deviation_of(values: Sequence[float]) -> float:
    """Return the deviation of a sample; nan if a value is not finite, as that of a class without scatter.

    >>> deviation_of([1.0, 3.0]), deviation_of([1.0, math.inf])
    (1.4142135623730951, nan)
    """
    return statistics.stdev(values) if all(map(math.isfinite, values)) else math.nan


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Return the interval of the mean by Student's t.

    >>> [round(end, 3) for end in t_interval([1.0, 2.0, 3.0])]
    [-0.484, 4.484]
    """
    from scipy.special import stdtrit  # scipy.stats takes a second to import

    mean, count = statistics.mean(values), len(values)
    half = float(stdtrit(count - 1, (1 + level) / 2)) * deviation_of(values) / math.sqrt(count)
    return mean - half, mean + half


def simultaneous_intervals(samples: NDArray[np.float64], level: float = 0.95) -> list[tuple[float, float]]:
    """Return intervals of the means of several samples of the same things, [K, N], that hold all at once.

    As Dunnett's, but the samples may depend on one another: the largest of K values of Student's t that have
    the correlations found here is drawn 20,000 times. So whichever sample is picked, its interval holds; for
    one sample, or copies of one, it is `t_interval`.

    >>> one, other = simultaneous_intervals(np.array([[1.0, 2.0, 3.0], [1.0, 3.0, 2.0]]))
    >>> one[0] < t_interval([1.0, 2.0, 3.0])[0]
    True
    """
    from scipy.special import stdtrit

    count = samples.shape[1]
    means, errors = samples.mean(1), samples.std(1, ddof=1) / math.sqrt(count)
    varied = samples[errors > 0]
    widest = float(stdtrit(count - 1, (1 + level) / 2))
    if len(varied) > 1:
        draws, generator = 20_000, np.random.default_rng(0)
        correlations = np.corrcoef(varied)
        normal = generator.multivariate_normal(
            np.zeros(len(varied)), correlations, draws, "ignore", method="eigh"
        )
        spread = np.sqrt(generator.chisquare(count - 1, draws) / (count - 1))
        widest = max(widest, float(np.quantile(np.abs(normal).max(1) / spread, level)))
    return list(zip((means - widest * errors).tolist(), (means + widest * errors).tolist(), strict=True))


def t_test(differences: Sequence[float]) -> float:
    """Return the two-sided p-value of Student's t for a mean of zero; 1 if all are zero.

    >>> round(t_test([1.0, 2.0, 3.0]), 4)
    0.0742
    """
    from scipy.special import stdtr

    mean, count = statistics.mean(differences), len(differences)
    error = statistics.stdev(differences) / math.sqrt(count)
    if not error:
        return 0.0 if mean else 1.0
    return float(2 * stdtr(count - 1, -abs(mean) / error))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values corrected for their number by Holm's method, in the order given.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, highest = [0.0] * len(values), 0.0
    for rank, place in enumerate(sorted(range(len(values)), key=values.__getitem__)):
        highest = max(highest, min(1.0, (len(values) - rank) * values[place]))
        corrected[place] = highest
    return corrected


def write_repeats(folder: Path, repeats: Repeats) -> None:
    """Write seeds.json, which marks `folder` as one that holds a run per seed."""
    write_json(folder / "seeds.json", repeats.model_dump(mode="json", by_alias=True))


def read_repeats(folder: Path) -> Repeats:
    """Return the finished run in a folder, or those of all its seeds."""
    if (folder / "seeds.json").is_file():
        return read_json_as(Repeats, folder / "seeds.json")
    return summarise([Run(folder).result()])


def _values(tables: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    shared = [name for name in tables[0] if all(name in table for table in tables)]
    return {name: [table[name] for table in tables] for name in shared}
