"""Classes divided over processes, for any loss that is a softmax over classes; negatives may be sampled.

Every process sees the whole batch and holds the vectors of some classes. For these it computes logits and
gradients with `fused_terms.py`; the softmax is closed by reductions over processes of each row's maximum, sum
and own logit. Value and gradients are those of one process with all classes: each process has the gradient of
its own class vectors, and that of the embeddings is summed over processes.

    loss = ShardedLoss(ArcFaceLoss(num_classes=1_000_000, embedding_size=256), sample_rate=0.1)
    everyone = processes.whole_batch(embeddings, labels)
    with loss.sampled(everyone[1], optimizer):
        loss(*everyone).backward()
        optimizer.step()

`sampled` is Partial FC (An et al., CVPR 2022): a step has exactly `sample_rate` x C classes, those of the
batch and as many random others as there is room for; if the batch has more, its own alone. So insightface
counts as well, except that each process there samples from its own classes; here all draw one sample, which
does not depend on their number. The rows that take part are all that the optimizer sees in this step, so
momentum and weight decay leave the others alone, as in insightface's first version. In its second,
partial_fc_v2.py, the gradient is dense: momentum and decay move the other rows, too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from softwarp import processes
from softwarp.losses.automatic import landmark_step
from softwarp.losses.contract import (
    Card,
    ClassSoftmax,
    Shard,
    class_vectors_of,
    proxies_placed,
    readings_of,
    start_phase,
)
from softwarp.losses.distances import check_finite, check_input, widen
from softwarp.losses.fused_terms import fused_terms


def division(num_classes: int, count: int, rank: int) -> range:
    """Return the classes of one process: consecutive, of equal number but for the last processes.

    >>> [len(division(10, 4, rank)) for rank in range(4)]
    [3, 3, 3, 1]
    """
    size = -(-num_classes // count)
    return range(min(rank * size, num_classes), min((rank + 1) * size, num_classes))


class ShardedLoss(nn.Module):
    """A softmax over classes of which this process keeps its part; the loss that is given loses the others.

    >>> from softwarp.losses import CosFaceLoss
    >>> loss = ShardedLoss(CosFaceLoss(num_classes=10, embedding_size=4), sample_rate=0.5)
    >>> loss(torch.randn(3, 4), torch.tensor([0, 5, 9])).shape
    torch.Size([])
    """

    columns: Tensor
    draws: Tensor

    def __init__(self, loss: nn.Module, *, sample_rate: float = 1.0, seed: int = 0) -> None:
        super().__init__()
        check_shardable(loss)
        if not 0 < sample_rate <= 1:
            raise ValueError(f"sample_rate is a share of the classes, above 0 and up to 1, got {sample_rate}")
        self.loss, self.sample_rate, self.seed = loss, sample_rate, seed
        self.num_classes = int(loss.num_classes)  # type: ignore[arg-type]
        self.here = division(self.num_classes, processes.count(), processes.place())
        for parameter in loss.parameters():
            parameter.data = parameter.data[self.here.start : self.here.stop].clone()
        self.width = -(-self.num_classes // processes.count())  # the most columns of any process
        self.competing = self.num_classes
        self.whole: Tensor | None = None  # all class vectors here, while a sample takes their place
        self.register_buffer("columns", torch.arange(self.here.start, self.here.stop), persistent=False)
        self.register_buffer("draws", torch.tensor(0))

    @property
    def distance(self) -> str:
        return str(self.loss.distance)

    @property
    def card(self) -> Card:
        return self.loss.card  # type: ignore[return-value]

    @property
    def class_vectors(self) -> str:
        return f"loss.{self.loss.class_vectors}"

    def start_phase(self, **settings: Any) -> None:
        """Give the loss the settings of a new phase."""
        start_phase(self.loss, settings)

    def proxies_placed(self) -> None:
        """Say that the class vectors were put where their classes are."""
        proxies_placed(self.loss)

    def readings(self) -> dict[str, float]:
        """Return what the loss says of its settings."""
        return readings_of(self.loss)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        vectors = class_vectors_of(self)
        assert vectors is not None
        check_input(embeddings, labels, self.num_classes, vectors.shape[1])
        shard = self._shard(labels.long())
        with torch.autocast(embeddings.device.type, enabled=False):
            shared: Tensor = _SumGradients.apply(widen(embeddings, vectors)[0])
            terms = self.loss.terms(shared, shard)  # type: ignore[operator]
            own: Tensor = _Sum.apply(shard.spread(terms.own))
            columns = torch.full_like(shard.labels, -1).index_put((shard.rows,), shard.places)
            loss = fused_terms(
                terms.queries,
                terms.keys,
                own,
                columns=columns,
                bias=terms.bias,
                scale=terms.scale,
                width=self.width,
                close=join_sums,
            )
            if terms.extra is not None:
                loss = loss + _Sum.apply(terms.extra).mean()
        check_finite(loss, embeddings, vectors)
        if self.training:
            terms.learn()
        return loss

    def _shard(self, labels: Tensor) -> Shard:
        places = torch.searchsorted(self.columns, labels).clamp_max(max(0, len(self.columns) - 1))
        rows = torch.nonzero(self.columns[places] == labels).flatten() if len(self.columns) else labels[:0]
        return Shard(
            labels=labels,
            rows=rows,
            places=places[rows],
            competing=self.competing,
            landmarks=self._landmarks,
            total=processes.sum_over,
            same=processes.same_everywhere,
        )

    def _vectors(self) -> Tensor:
        vectors = class_vectors_of(self)
        assert vectors is not None
        return vectors.detach() if self.whole is None else self.whole

    def _landmarks(self) -> Tensor:
        step = landmark_step(self.num_classes)
        return processes.joined(self._vectors()[-self.here.start % step :: step])

    def vectors_at(self, classes: Tensor) -> Tensor:
        """Return the vectors of these classes, from whichever process has them."""
        vectors = self._vectors()
        mine = (classes >= self.here.start) & (classes < self.here.stop)
        found = vectors.new_zeros(len(classes), *vectors.shape[1:])
        found[mine] = vectors[(classes[mine] - self.here.start).to(vectors.device)]
        return processes.sum_over(found)

    def mean_over_classes(self, rows: Tensor) -> Tensor:
        """Return the mean of `rows`, one per class of this process, over the classes of all."""
        return processes.sum_over(rows.sum(0)) / self.num_classes

    @contextmanager
    def sampled(self, labels: Tensor, optimizer: torch.optim.Optimizer | None = None) -> Iterator[None]:
        """Let these classes, and random others up to the sample rate, be all that there are, for one step.

        Within it, parameters of the loss and the optimizer's state hold the rows of `columns` alone; what the
        step made of them is kept. State that the optimizer creates later begins at zero for every other row.

        Args:
            labels: of the whole step, in all processes.
        """
        if self.sample_rate == 1:
            yield
            return
        before = self.columns, self.width, self.competing
        columns = self._draw(labels)
        counts = processes.numbers(len(columns), columns.device)
        self.columns, self.width, self.competing = columns, max(counts), sum(counts)
        self.whole = self._vectors()
        rows = [_Rows(parameter, columns - self.here.start, optimizer) for parameter in self.parameters()]
        try:
            yield
        finally:
            for each in rows:
                each.put_back()
            self.whole = None
            self.columns, self.width, self.competing = before

    def _draw(self, labels: Tensor) -> Tensor:
        """Return the classes of this process that take part in the next step, in ascending order."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + int(self.draws))
        self.draws += 1
        own = labels.long().cpu().unique()
        scores = torch.rand(self.num_classes, generator=generator)
        scores[own] = 2.0  # more than any other has
        chosen = scores.topk(max(int(self.sample_rate * self.num_classes), len(own))).indices.sort().values
        here = chosen[(chosen >= self.here.start) & (chosen < self.here.stop)]
        return here.to(self.columns.device)

    def extra_repr(self) -> str:
        return f"classes {self.here.start} to {self.here.stop} of {self.num_classes}"


class _Rows:
    """Some rows of a parameter and of its optimizer state, in the place of all of them."""

    def __init__(
        self, parameter: nn.Parameter, index: Tensor, optimizer: torch.optim.Optimizer | None
    ) -> None:
        self.parameter, self.index, self.all = parameter, index, parameter.data
        self.state: dict[str, Any] = {} if optimizer is None else optimizer.state[parameter]
        self.moments = {key: each for key, each in self.state.items() if _like(each, self.all)}
        self.state.update({key: each.index_select(0, index) for key, each in self.moments.items()})
        _replace(parameter, self.all.index_select(0, index))

    def put_back(self) -> None:
        """Write what a step has made of the rows to where they came from."""
        few = self.parameter.data
        for key in [key for key, each in self.state.items() if _like(each, few)]:
            every = self.moments.get(key)
            if every is None:
                every = torch.zeros_like(self.all, dtype=self.state[key].dtype)
            self.state[key] = every.index_copy_(0, self.index, self.state[key])
        _replace(self.parameter, self.all.index_copy_(0, self.index, few))


def _replace(parameter: nn.Parameter, rows: Tensor) -> None:
    """Give a parameter another number of rows.

    As long as a caller keeps the loss of an earlier step, autograd remembers how many there were then; it
    forgets that only when the type changes.
    """
    parameter.grad = None
    parameter.data = rows.new_empty(0, dtype=torch.float32 if rows.dtype == torch.float16 else torch.float16)
    parameter.data = rows


def _like(value: Any, tensor: Tensor) -> bool:
    return isinstance(value, Tensor) and value.shape == tensor.shape


def check_shardable(loss: nn.Module) -> None:
    """Raise a ValueError unless the classes of this loss can be divided."""
    name = type(loss).__name__
    if not isinstance(loss, ClassSoftmax):
        raise ValueError(
            f"{name} is not a softmax over classes that has `terms`, so its classes cannot be divided; omit "
            "loss.sharded, or choose one of warped_softmax, euclidean_softmax, proxy_nca_pp, "
            "normalized_softmax, cosface, arcface, sphereface, magface, l2_softmax and cross_entropy"
        )
    for key, parameter in loss.named_parameters():
        if len(parameter) != loss.num_classes:
            raise ValueError(
                f"{name} cannot be divided: {key} has {len(parameter)} rows for {loss.num_classes} classes"
            )


def join_sums(sums: Tensor) -> Tensor:
    """Return log(sum exp) over processes, whatever each process has of it; -inf stands for nothing."""
    largest = processes.max_over(sums).clamp_min_(torch.finfo(sums.dtype).min)
    return processes.sum_over((sums - largest).exp_()).log_().add_(largest)


class _Sum(torch.autograd.Function):
    """The sum over processes; each has the gradient of its own summand, because the value is one for all."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return processes.sum_over(values)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


class _SumGradients(torch.autograd.Function):
    """The same values; the gradient is the sum over processes, each of which has a part of it."""

    @staticmethod
    def forward(_: Any, values: Tensor) -> Tensor:
        return values.view_as(values)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return processes.sum_over(gradient)
