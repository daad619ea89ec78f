"""Batches: some classes and some samples of each, or random images."""

from collections.abc import Iterator
from itertools import chain, islice
from itertools import count as count_up

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Sampler

OPEN_SHARDS = 16  # files among which items are shuffled, of 256 MB each if `softwarp faces pack` wrote them


class BalancedBatches(Sampler[list[int]]):
    """Yield batches of `classes_per_batch` classes x `samples_per_class` samples, different in each epoch.

    Classes come in random order, each once before any repeats, and so do the samples of a class: with classes
    of equal size, an epoch of N / batch-size batches shows (nearly) every sample once. Classes left over at
    the end of a round that do not fill a batch come first in the next round, and count for both. A class
    with fewer samples than asked for repeats some. The order depends only on `seed` and `epoch`.

    Args:
        independent: draw as the paper's authors do: the classes of each batch independently; a class is
            shuffled again when fewer samples are left than asked for; one that has fewer gives all of them,
            so that batches of small classes are short. In the authors' code the order of a class outlasts an
            epoch.
        per_epoch: batches in an epoch, in place of those that show (nearly) every sample once.

    >>> labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    >>> batches = BalancedBatches(labels, classes_per_batch=2, samples_per_class=2, seed=0)
    >>> [len(batch) for batch in batches]
    [4, 4]
    """

    def __init__(
        self,
        labels: Tensor,
        *,
        classes_per_batch: int,
        samples_per_class: int,
        seed: int,
        independent: bool = False,
        per_epoch: int | None = None,
    ) -> None:
        if min(classes_per_batch, samples_per_class) < 1:
            raise ValueError("classes_per_batch and samples_per_class must be at least 1")
        counts = labels.unique(return_counts=True)[1]
        self.members = labels.argsort(stable=True).split(counts.tolist())
        if classes_per_batch > len(self.members):
            raise ValueError(
                f"a batch needs {classes_per_batch} classes but there are only {len(self.members)} classes; "
                "lower batches.classes"
            )
        self.classes_per_batch, self.samples_per_class = classes_per_batch, samples_per_class
        self.seed, self.epoch, self.independent = seed, 0, independent
        self.size = classes_per_batch * samples_per_class
        # The authors want one image more than a batch has.
        self.length = per_epoch or max(1, (len(labels) - independent) // self.size)

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        return self.of_epoch(self.epoch)

    def of_epoch(self, epoch: int) -> Iterator[list[int]]:
        """Yield the batches of that epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        queues: list[list[int]] = [[] for _ in self.members]
        drawn = self._anew(generator) if self.independent else self._in_rounds(generator)
        for classes in islice(drawn, self.length):
            batch = []
            for label in classes:
                self._fill(queues, label, generator)
                batch += queues[label][: self.samples_per_class]
                queues[label] = queues[label][self.samples_per_class :]
            yield batch

    def _in_rounds(self, generator: torch.Generator) -> Iterator[list[int]]:
        """The classes of each batch, all of them before any comes again."""
        classes: list[int] = []
        while True:
            if len(classes) < self.classes_per_batch:
                fresh = torch.randperm(len(self.members), generator=generator).tolist()
                # Leftover classes come first, and only once in the same batch.
                classes += [label for label in fresh if label not in classes] if classes else fresh
            yield classes[: self.classes_per_batch]
            classes = classes[self.classes_per_batch :]

    def _anew(self, generator: torch.Generator) -> Iterator[list[int]]:
        """The classes of each batch, drawn independently of all others."""
        while True:
            yield torch.randperm(len(self.members), generator=generator)[: self.classes_per_batch].tolist()

    def _fill(self, queues: list[list[int]], label: int, generator: torch.Generator) -> None:
        """Shuffle a class again if too few samples are left; drawn independently, these are skipped."""
        while len(queues[label]) < self.samples_per_class:
            order = torch.randperm(len(self.members[label]), generator=generator)
            fresh = self.members[label][order].tolist()
            queues[label] = fresh if self.independent else queues[label] + fresh
            if self.independent:
                return


class RandomBatches:
    """Batches of `size` items out of `count`, whatever their classes.

    An epoch goes through the items in random order; leftovers that do not fill a batch are skipped. The order
    depends only on `seed` and the epoch.

    Args:
        per_epoch: batches in an epoch, in place of those of one pass.
        shards: [count], the file that each item is in. Files then come in random order, and items are
            shuffled among `OPEN_SHARDS` successive ones, so that at any time only these are read.

    >>> batches = RandomBatches(7, size=3, seed=0)
    >>> [len(batch) for batch in batches.of_epoch(0)]
    [3, 3]
    """

    def __init__(
        self, count: int, *, size: int, seed: int, shards: Tensor | None = None, per_epoch: int | None = None
    ) -> None:
        if size > count:
            raise ValueError(f"a batch needs {size} images but there are only {count}; lower batches.size")
        self.count, self.size, self.seed, self.shards = count, size, seed, shards
        self.length = per_epoch or count // size

    def __len__(self) -> int:
        return self.length

    def of_epoch(self, epoch: int) -> Iterator[list[int]]:
        """Yield the batches of that epoch."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        passes = (self._pass(generator) for _ in count_up())
        return islice(chain.from_iterable(passes), self.length)

    def _pass(self, generator: torch.Generator) -> Iterator[list[int]]:
        """Batches of all items, each once."""
        order = torch.randperm(self.count, generator=generator)
        if self.shards is not None:
            turn = torch.randperm(int(self.shards.max()) + 1, generator=generator) // OPEN_SHARDS
            order = order[turn[self.shards[order]].argsort(stable=True)]
        for start in range(0, self.count - self.size + 1, self.size):
            yield order[start : start + self.size].tolist()


class Draws(Sampler[list[tuple[int, int]]]):
    """Yield this process's share of every batch from a position on: pairs (item, seed of its augmentation).

    It runs through `epochs` epochs. A draw's seed depends only on the run's seed and on its place, not on
    processes, workers or interruptions. A batch is cut into consecutive `pieces`, and each piece into one
    share per process, by whole classes as far as they divide.

    >>> labels = torch.tensor([0, 0, 1, 1])
    >>> batches = BalancedBatches(labels, classes_per_batch=2, samples_per_class=2, seed=0)
    >>> whole = list(Draws(batches, epochs=3))
    >>> [len(share) for share in whole], list(Draws(batches, epochs=3, start=1)) == whole[1:]
    ([4, 4, 4], True)
    """

    def __init__(
        self,
        batches: BalancedBatches | RandomBatches,
        *,
        epochs: int,
        start: int = 0,
        rank: int = 0,
        processes: int = 1,
        pieces: int = 1,
    ) -> None:
        size = batches.size
        if size % (processes * pieces):
            raise ValueError(
                f"a batch of {size} cannot be split over {processes} processes in {pieces} pieces each; make "
                f"batches.classes x batches.samples, or batches.size, a multiple of {processes * pieces}"
            )
        self.batches, self.steps, self.start = batches, epochs * len(batches), start
        self.rank, self.processes, self.pieces = rank, processes, pieces

    def __len__(self) -> int:
        return self.steps - self.start

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        position = self.start
        while position < self.steps:
            epoch, step = divmod(position, len(self.batches))
            for batch in islice(self.batches.of_epoch(epoch), step, None):
                place = (self.batches.seed, *divmod(position, len(self.batches)))
                seeds = np.random.SeedSequence(place).generate_state(len(batch), np.uint64) >> np.uint64(1)
                draws = list(zip(batch, seeds.tolist(), strict=True))
                yield self._share(draws)
                position += 1

    def _share(self, draws: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """This process's share of every piece; shares of a short batch may differ by one draw."""
        parts = self.pieces * self.processes
        ends = [part * len(draws) // parts for part in range(parts + 1)]
        own = range(self.rank, parts, self.processes)
        return [draw for part in own for draw in draws[ends[part] : ends[part + 1]]]
