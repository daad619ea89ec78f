"""Confidence intervals by resampling classes: embeddings of one class are not independent of each other."""

import torch
from torch import Tensor

from softwarp.metrics.checks import Labels, check_labels, numbered

SAMPLES_AT_ONCE = 100


def bootstrap_over_classes(
    values: Tensor, labels: Labels, *, samples: int = 1000, seed: int = 0, level: float = 0.95
) -> tuple[float, float]:
    """The percentile interval of the mean of per-query values [N], whole classes drawn with replacement.

    NaN values (queries without positives) are left out, as in the mean itself.

    >>> bootstrap_over_classes(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0, 1, 1]))
    (1.0, 1.0)
    """
    if samples < 1 or not 0 < level < 1:
        raise ValueError(f"samples must be at least 1 and level between 0 and 1; got {samples} and {level}")
    if not 0 <= seed < 2**63:
        raise ValueError(f"seed is {seed}; a generator takes 0 to {2**63 - 1}")
    means = bootstrap_means(values[:, None], labels, samples=samples, seed=seed)[:, 0]
    tails = torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)
    low, high = torch.quantile(means, tails).tolist()
    return low, high


def bootstrap_means(values: Tensor, labels: Labels, *, samples: int, seed: int = 0) -> Tensor:
    """The means of each column of per-query values [N, L], over classes drawn with replacement: [samples, L].

    Every column sees the same draws, so differences of columns are paired. Queries that are NaN in any column
    are left out. NaN if there are no others.

    >>> values = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> bootstrap_means(values, torch.tensor([0, 1]), samples=5).diff().unique()
    tensor([1.], dtype=torch.float64)
    """
    truth = check_labels(numbered(labels)[0], len(values), torch.device("cpu"))
    values = values.detach().cpu().double()
    counted = ~values.isnan().any(dim=1)
    if not counted.any():
        return torch.full((samples, values.shape[1]), torch.nan, dtype=torch.float64)
    classes, numbers = torch.unique(truth[counted], return_inverse=True)
    sums = torch.zeros(len(classes), values.shape[1], dtype=torch.float64)
    sums.index_add_(0, numbers, values[counted])
    counts = torch.bincount(numbers).double()
    generator = torch.Generator().manual_seed(seed)
    means = []
    for start in range(0, samples, SAMPLES_AT_ONCE):
        shape = (min(SAMPLES_AT_ONCE, samples - start), len(classes))
        drawn = torch.randint(len(classes), shape, generator=generator)
        means.append(sums[drawn].sum(dim=1) / counts[drawn].sum(dim=1, keepdim=True))
    return torch.cat(means)
