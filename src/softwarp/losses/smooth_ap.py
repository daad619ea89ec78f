"""Smooth-AP (Brown et al. 2020): average precision whose ranks count by a sigmoid in place of a step.

    loss_q = 1 - 1/|P_q| sum_{i in P_q} rank(i, P_q) / rank(i, all)
    rank(i, S) = 1 + sum_{j in S, j != i} sigmoid((s_qj - s_qi) / temperature),   s = cosine similarity

| symbol | parameter   | default | where |
|--------|-------------|---------|-------|
| tau    | temperature | 0.01    | section 4 of the paper; `anneal` in the official code |

The query is in its own list and in P_q, as in the official code. Samples that are alone in their class
are ranked but are not queries.

Differs from the official code: that one needs batches sorted by class with as many samples of each, and
N^3 numbers in memory; here any order and any counts are fine, and memory stays within a block of queries.
It also cuts exponents at 50, which a sigmoid does not need.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from softwarp.losses.checks import check_positive, check_sizes
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.ranking import Lists, check_lists, over_queries, unit_rows


def smooth_ap_loss(embeddings: Tensor, labels: Tensor, *, temperature: float = 0.01) -> Tensor:
    """Return one minus the smoothed average precision of each query, [Q].

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> smooth_ap_loss(embeddings, torch.tensor([0, 0, 1, 1])).abs().max() < 1e-6
    tensor(True)
    """
    check_positive(temperature=temperature)

    def loss(lists: Lists) -> Tensor:
        # Beside its rank of 1, each positive meets itself in both sums, which adds sigmoid(0) = 1/2.
        rank = 0.5 + torch.sigmoid(lists.gaps() / temperature).sum(2)
        before = torch.sigmoid(lists.own_gaps() / temperature) * lists.real[:, None, :]
        return 1 - lists.mean((0.5 + before.sum(2)) / rank)

    with torch.autocast(embeddings.device.type, enabled=False):
        items = unit_rows(embeddings, labels)
        return over_queries(loss, items, labels, with_query=True)


class SmoothAPLoss(nn.Module):
    """The mean Smooth-AP loss over the queries of a batch."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="Smooth-AP",
        citation="Brown, Xie, Kalogeiton, Zisserman: Smooth-AP: Smoothing the Path Towards Large-Scale Image "
        "Retrieval. ECCV 2020",
        equation="1 - mean_i rank(i, positives) / rank(i, all), ranks by sigmoid((s_j - s_i) / temperature)",
        kind="ranking",
        training=Training(
            by="official code",
            batch=(28, 4),
            details="rate 1e-5, 5 times that for the last layer, weight decay 4e-4",
        ),
        search_space={"temperature": ("log", 0.002, 0.1)},
        notes="Any batch order and unequal class counts; the official code needs sorted, equal ones.",
    )

    def __init__(self, num_classes: int, embedding_size: int, *, temperature: float = 0.01) -> None:
        super().__init__()
        check_positive(temperature=temperature)
        self.sizes = check_sizes(num_classes, embedding_size)
        self.temperature = temperature

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_lists(self.card, self.sizes, embeddings, labels)
        return smooth_ap_loss(embeddings, labels, temperature=self.temperature).mean()
