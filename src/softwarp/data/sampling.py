"""Class-balanced batches: some classes, some samples of each."""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.utils.data import Sampler


class BalancedBatches(Sampler[list[int]]):
    """Yield batches of `classes_per_batch` classes x `samples_per_class` samples, for ever new epochs.

    Classes come in random order, each once before any comes again; a class's samples likewise, so that
    with classes of one size an epoch of N / batch-size batches shows (nearly) every sample once. Where the
    classes left over at the end of a round do not fill a batch, they come first in the next round, and once
    for both. A class with fewer samples than asked gives some of them twice. The order depends on `seed`
    and `epoch` alone.

    >>> labels = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    >>> batches = BalancedBatches(labels, classes_per_batch=2, samples_per_class=2, seed=0)
    >>> [len(batch) for batch in batches]
    [4, 4]
    """

    def __init__(self, labels: Tensor, *, classes_per_batch: int, samples_per_class: int, seed: int) -> None:
        if min(classes_per_batch, samples_per_class) < 1:
            raise ValueError("classes_per_batch and samples_per_class must be at least 1")
        counts = labels.unique(return_counts=True)[1]
        self.members = labels.argsort(stable=True).split(counts.tolist())
        if classes_per_batch > len(self.members):
            raise ValueError(
                f"classes_per_batch is {classes_per_batch} but there are only {len(self.members)} classes; "
                "lower it"
            )
        self.classes_per_batch, self.samples_per_class = classes_per_batch, samples_per_class
        self.seed, self.epoch = seed, 0
        self.length = max(1, len(labels) // (classes_per_batch * samples_per_class))

    def __len__(self) -> int:
        return self.length

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        classes: list[int] = []
        queues: list[list[int]] = [[] for _ in self.members]
        for _ in range(self.length):
            if len(classes) < self.classes_per_batch:
                fresh = torch.randperm(len(self.members), generator=generator).tolist()
                # Those left over come first, and not a second time in the same batch.
                classes += [label for label in fresh if label not in classes] if classes else fresh
            chosen, classes = classes[: self.classes_per_batch], classes[self.classes_per_batch :]
            batch = []
            for label in chosen:
                while len(queues[label]) < self.samples_per_class:
                    order = torch.randperm(len(self.members[label]), generator=generator)
                    queues[label] += self.members[label][order].tolist()
                batch += queues[label][: self.samples_per_class]
                queues[label] = queues[label][self.samples_per_class :]
            yield batch
