"""ROADMAP (Ramzi et al. 2021): an upper bound of 1 - average precision (SupAP), and a calibration term.

    loss     = mean_q SupAP_q + calibration_weight * calibration
    SupAP_q  = 1 - 1/|P_q| sum_{i in P_q} r+(i) / (r+(i) + r-(i))
    r+(i)    = number of positives j with s_j >= s_i (i among them), without a gradient
    r-(i)    = sum over negatives j of H(s_j - s_i)
    H(x)     = sigmoid(x / tau)                              where x <= 0
             = sigmoid(x / tau) + 1/2                        where 0 < x <= delta
             = rho (x - delta) + sigmoid(delta / tau) + 1/2  where x > delta
    calibration = mean relu(alpha - s_positive) + mean relu(s_negative - beta), each over its non-zero terms

| symbol | parameter          | default | where |
|--------|--------------------|---------|-------|
| tau    | temperature        | 0.01    | section 4 of the paper, official configuration |
| rho    | slope              | 100.0   | the same |
| delta  | knee               | 0.05    | official configuration |
| alpha  | positive_margin    | 0.9     | the same |
| beta   | negative_margin    | 0.6     | the same |
|        | calibration_weight | 1.0     | both terms have weight 1 in the official configuration |

The query is in its own list and in P_q, as in the official code. Samples that are alone in their class
are ranked but are not queries.

Differs from the official code: H is continuous at delta, rho (x - delta) + 1.493 beyond it, where the
official configuration has 1.44 and with it a step of -0.05 (the code of December 2021 had rho x + 1.44, a
step of about 5); memory stays within a block of queries.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn

from softwarp.losses.checks import check_not_negative, check_positive, check_sizes
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.ranking import Lists, check_lists, in_blocks, over_queries, unit_rows


def sup_ap_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    temperature: float = 0.01,
    slope: float = 100.0,
    knee: float = 0.05,
) -> Tensor:
    """Return SupAP, which is never below one minus the average precision, of each query, [Q]."""
    check_positive(temperature=temperature, slope=slope, knee=knee)
    height = 0.5 + 1 / (1 + math.exp(-knee / temperature))

    def loss(lists: Lists) -> Tensor:
        x = lists.gaps()
        near = torch.sigmoid(x / temperature) + 0.5 * (x > 0)
        step = torch.where(x > knee, slope * (x - knee) + height, near)
        negatives = (step * ~lists.same[:, None, :]).sum(2)
        positives = ((lists.own_gaps() >= 0) & lists.real[:, None, :]).sum(2).clamp_min(1)
        return 1 - lists.mean(positives / (positives + negatives))

    with torch.autocast(embeddings.device.type, enabled=False):
        items = unit_rows(embeddings, labels)
        return over_queries(loss, items, labels, with_query=True)


def calibration_loss(
    embeddings: Tensor, labels: Tensor, *, positive_margin: float = 0.9, negative_margin: float = 0.6
) -> Tensor:
    """Return how far pairs are on the wrong side of their margin, a scalar.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    >>> calibration_loss(embeddings, torch.tensor([0, 0, 1]))
    tensor(0.1000)
    """

    def sums(items: Tensor, rows: Tensor) -> Tensor:
        similarities = items[rows] @ items.T
        same = labels[rows, None] == labels
        itself = rows[:, None] == torch.arange(len(items), device=items.device)
        far = torch.relu(positive_margin - similarities) * (same & ~itself)
        near = torch.relu(similarities - negative_margin) * ~same
        return torch.stack([far.sum(), near.sum(), (far > 0).sum(), (near > 0).sum()])

    with torch.autocast(embeddings.device.type, enabled=False):
        items = unit_rows(embeddings, labels)
        rows = torch.arange(len(items), device=items.device)
        blocks = in_blocks(sums, items, rows, width=1)
        far, near, far_count, near_count = torch.stack(blocks).sum(0)
        loss: Tensor = far / far_count.clamp_min(1) + near / near_count.clamp_min(1)
        return loss


class RoadmapLoss(nn.Module):
    """The mean SupAP over the queries of a batch, and the calibration of its pairs."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="ROADMAP",
        citation="Ramzi, Thome, Rambour, Audebert, Bitot: Robust and Decomposable Average Precision for "
        "Image Retrieval. NeurIPS 2021",
        equation="1 - mean_i r+(i) / (r+(i) + sum_negatives H(s_j - s_i)) + relu(0.9 - s_pos) + "
        "relu(s_neg - 0.6)",
        kind="ranking",
        training=Training(
            by="official code",
            batch=(32, 4),
            details="CUB rate 1e-6, weight decay 4e-4, 200 epochs; SOP 1e-5, the last layer twice that, "
            "weight decay 1e-4, 100 epochs",
        ),
        search_space={"temperature": ("log", 0.002, 0.1), "calibration_weight": ("log", 0.1, 10.0)},
        notes="H is continuous at its knee; in the official configuration it has a step of -0.05 there, "
        "and of about 5 in the code of December 2021.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        temperature: float = 0.01,
        slope: float = 100.0,
        knee: float = 0.05,
        positive_margin: float = 0.9,
        negative_margin: float = 0.6,
        calibration_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(temperature=temperature, slope=slope, knee=knee)
        check_not_negative(
            positive_margin=positive_margin,
            negative_margin=negative_margin,
            calibration_weight=calibration_weight,
        )
        self.sizes = check_sizes(num_classes, embedding_size)
        self.temperature, self.slope, self.knee = temperature, slope, knee
        self.positive_margin, self.negative_margin = positive_margin, negative_margin
        self.calibration_weight = calibration_weight

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_lists(self.card, self.sizes, embeddings, labels)
        calibration = calibration_loss(
            embeddings, labels, positive_margin=self.positive_margin, negative_margin=self.negative_margin
        )
        losses = sup_ap_loss(
            embeddings, labels, temperature=self.temperature, slope=self.slope, knee=self.knee
        )
        return losses.mean() + self.calibration_weight * calibration
