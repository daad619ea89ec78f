"""What "auto" means for a softmax over distances: scale and alpha, measured in lengths of the space.

    scale = (log(C - 1) + 1) / max(gap, least),   alpha = scatter

| symbol  | what | when |
|---------|------|------|
| gap     | distance to the other proxies minus that to its own | moving mean over past batches |
| reach   | rms distance of embeddings to all proxies | first batch |
| least   | half of the reach; from class means `least_gap`, if that is less | first batch |
| scatter | rms distance of embeddings to the mean of their class | first batch of a phase that says auto |

docs/loss.md derives them. The distance to the other proxies is a root mean square, for which no N x C matrix
is needed: the mean of |e - p_j|^2 over j is |e - m|^2 + v, with mean m and variance v of the proxies.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from softwarp.losses.contract import Shard
from softwarp.losses.distances import widen

Auto = str  # "auto", or "auto:2" for twice that
MARGIN = 1.0  # log-odds of the typical sample for its own class
FLOOR = 0.5  # share of the reach that is the least gap: proxies that start anywhere show no gap yet
MEMORY = 50  # batches in the moving mean
SAMPLED = 1024  # proxies that m and v are taken from at most, evenly spaced


def auto_factor(value: object) -> float:
    """Return by what the automatic value is multiplied; 0 if `value` is not automatic.

    >>> auto_factor("auto"), auto_factor("auto:0.5"), auto_factor(3.0)
    (1.0, 0.5, 0.0)
    """
    if not isinstance(value, str):
        return 0.0
    name, _, factor = value.partition(":")
    try:
        found = float(factor or 1)
    except ValueError:
        found = math.nan
    answer = f'give a number, "auto" or "auto:2" for twice that; got {value!r}'
    if name != "auto":
        raise TypeError(answer)  # text where a number belongs
    if not 0 < found < math.inf:
        raise ValueError(answer)
    return found


def mean_square_distance(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Return the mean of |e_i - p_j|^2 over j, [N], without an N x C matrix.

    >>> mean_square_distance(torch.tensor([[0.0]]), torch.tensor([[1.0], [3.0]]))
    tensor([5.])
    """
    proxies = proxies[:: landmark_step(len(proxies))]
    centre = proxies.mean(0)
    return (embeddings - centre).square().sum(1) + (proxies - centre).square().sum(1).mean()


def landmark_step(num_classes: int) -> int:
    """Return the distance between the classes whose proxies m and v are taken from."""
    return -(-num_classes // SAMPLED)


@torch.no_grad()
def mean_gap(embeddings: Tensor, proxies: Tensor, labels: Tensor) -> Tensor:
    """Return by how much the other proxies are farther than its own, the mean over a batch.

    >>> proxies = torch.tensor([[0.0], [4.0]])
    >>> mean_gap(torch.tensor([[1.0], [4.0]]), proxies, torch.tensor([0, 1]))
    tensor(3.)
    """
    embeddings, proxies = widen(embeddings, proxies)
    own = (embeddings - proxies[labels.long()]).square().sum(1)
    return gap_between(own, mean_square_distance(embeddings, proxies), len(proxies))


def gap_between(own: Tensor, overall: Tensor, num_classes: int) -> Tensor:
    """Return the mean gap from squared distances [N]: to its own proxy, and the mean over all proxies.

    >>> gap_between(torch.tensor([1.0]), torch.tensor([5.0]), 2)
    tensor(2.)
    """
    if num_classes == 1:
        return own.new_zeros(())
    others = (num_classes * overall - own) / (num_classes - 1)
    return (others.clamp_min(0).sqrt() - own.sqrt()).mean()


@torch.no_grad()
def distance_variance(embeddings: Tensor, proxies: Tensor) -> Tensor:
    """Return the variance of an embedding's distances to the proxies, the mean over a batch.

    >>> distance_variance(torch.tensor([[0.0]]), torch.tensor([[1.0], [3.0]]))
    tensor(1.)
    """
    embeddings, proxies = widen(embeddings, proxies[:: landmark_step(len(proxies))])
    return torch.cdist(embeddings, proxies).var(1, correction=0).mean()


def least_gap(gap: Tensor, variance: Tensor, num_classes: int) -> Tensor:
    """Return the gap, or the wider one whose scale is gap / v, with the variance v among the others.

    Beyond that scale the nearest of the other proxies outweigh all, and log-odds fall again.

    >>> [least_gap(torch.tensor(4.0), torch.tensor(variance), 2).item() for variance in (4.0, 16.0)]
    [4.0, 6.0]
    """
    count = max(2, num_classes)
    others = count / (count - 1) * variance - gap.square() / count  # without its own proxy, nearer by a gap
    return torch.maximum(gap, _wanted(num_classes) * others / gap)


def _wanted(num_classes: int) -> float:
    """The product of scale and gap."""
    return math.log(max(1, num_classes - 1)) + MARGIN


def class_scatter(embeddings: Tensor, labels: Tensor) -> Tensor:
    """Return the rms distance of embeddings to the mean of their class; to that of all if each is alone.

    >>> class_scatter(torch.tensor([[0.0], [2.0], [9.0]]), torch.tensor([0, 0, 1]))
    tensor(1.4142)
    """
    groups, counts = labels.unique(return_inverse=True, return_counts=True)[1:]
    if len(counts) == len(labels):
        groups, counts = torch.zeros_like(groups), torch.full_like(counts[:1], len(labels))
    sums = embeddings.new_zeros(len(counts), embeddings.shape[1]).index_add_(0, groups, embeddings)
    squares = (embeddings - (sums / counts[:, None])[groups]).square().sum()
    scatter: Tensor = (squares / max(1, len(labels) - len(counts))).sqrt()
    return scatter


class Lengths(nn.Module):
    """The lengths that the batches of training showed; a state dict holds them."""

    placed: Tensor
    reach: Tensor
    least: Tensor
    gap: Tensor
    batches: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("placed", torch.tensor(False))  # where classes are, before the first batch
        self.register_buffer("reach", torch.tensor(0.0))  # before the first batch
        self.register_buffer("least", torch.tensor(0.0))
        self.register_buffer("gap", torch.tensor(0.0))
        self.register_buffer("batches", torch.tensor(0))

    def scale(self, num_classes: int, reach: float) -> float:
        """Return the scale for the next batch, where `reach` is that of the first."""
        least = float(self.least) if self.batches else FLOOR * reach
        # In this order: max(NaN, gap) is NaN, and the loss then names the rows that are to blame.
        return _wanted(num_classes) / max(least, float(self.gap))

    @torch.no_grad()
    def first_reach(self, embeddings: Tensor, proxies: Callable[[], Tensor]) -> float:
        """Return the reach of the first batch, of this one if there was none; 1 where all is one point."""
        if self.batches:
            return float(self.reach)
        return float(mean_square_distance(*widen(embeddings, proxies())).mean().sqrt()) or 1.0

    def settle(
        self, scale: float | Auto, num_classes: int, embeddings: Tensor, proxies: Callable[[], Tensor]
    ) -> tuple[float, float]:
        """Return the scale for this batch, and the reach of the first if the scale is measured, else 0."""
        if not isinstance(scale, str):
            return scale, 0.0
        reach = self.first_reach(embeddings, proxies)
        return auto_factor(scale) * self.scale(num_classes, reach), reach

    @torch.no_grad()
    def learn(self, gap: Tensor, reach: float, num_classes: int, variance: Callable[[], Tensor]) -> None:
        """Take a batch of training into account, with its gap and the variance of its distances."""
        if not self.batches:
            self.reach.fill_(reach)
            self.least.fill_(FLOOR * reach)
            if self.placed and gap > 0:
                self.least.clamp_max_(least_gap(gap, variance(), num_classes))
        self.batches += 1
        share = 1 / min(int(self.batches), MEMORY)
        self.gap += share * (gap - self.gap)

    def learn_batch(self, embeddings: Tensor, proxies: Tensor, labels: Tensor, reach: float) -> None:
        """Learn from a batch."""
        gap = mean_gap(embeddings, proxies, labels)
        self.learn(gap, reach, len(proxies), lambda: distance_variance(embeddings, proxies))

    @torch.no_grad()
    def learn_shard(
        self, embeddings: Tensor, own: Tensor, shard: Shard, num_classes: int, reach: float
    ) -> None:
        """Learn from a batch whose classes are divided; `own` [M] are distances to the proxies of a shard."""
        squares = shard.total(shard.spread(own.square()))
        gap = gap_between(squares, mean_square_distance(embeddings, shard.landmarks()), num_classes)
        self.learn(gap, reach, num_classes, lambda: distance_variance(embeddings, shard.landmarks()))

    def readings(self, scale: float | Auto, num_classes: int) -> dict[str, float]:
        """Return the scale that the next batch meets; nothing if it is automatic and not measured yet."""
        if not isinstance(scale, str):
            return {"scale": scale}
        value = auto_factor(scale) * self.scale(num_classes, float(self.reach)) if self.batches else None
        return {} if value is None else {"scale": value}


@torch.no_grad()
def radius(embeddings: Tensor, labels: Tensor, reach: float) -> Tensor:
    """Return alpha for the classes as these embeddings lie; `reach` where they are one point."""
    (embeddings,) = widen(embeddings)
    scatter = class_scatter(embeddings, labels)
    return torch.where(scatter > 0, scatter, reach)
