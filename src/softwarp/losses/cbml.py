"""CBML (Kan et al. 2022): a contrastive Bayesian pair loss that also holds the negatives together.

    loss_i = log(1 + sum_p exp(-(s_ip - a) / b)) + log(1 + sum_n exp((s_in - c) / d))
             + weight sum_{all n} (s_in - m_i)^2,     s_ij = z_i . z_j,  z = e / |e|
    m_i = h mean_p s_ip + (1 - h) mean_n s_in      (over all positives and all negatives of i)

The first two sums run over hard pairs: p with s_ip - margin < max_n s_in, n with s_in + margin > min_p s_ip.
An anchor without a hard pair of either kind adds nothing; the mean is over the whole batch.

| symbol | parameter       | default | where |
|--------|-----------------|---------|-------|
| a, b   | positive_center, positive_width | 0.5, 0.5 | official configuration, ResNet-50 on CUB |
| c, d   | negative_center, negative_width | 1.0, 0.01 | the same |
| margin | margin          | 0.1     | of hard pairs |
| weight | weight          | 1.0     | of the variance of negatives |
| h      | balance         | 0.2     | ResNet-50 on CUB (the code's default is 0.1) |

Differs from the official code: a sample is kept out of its own positives by its index, not by a similarity
of one, so duplicates are positives like any other; sums of exponentials stay in log-space; of the code's
three outer functions (log, square root, none) only the logarithm is here.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from softwarp.losses.checks import check_not_negative, check_positive, check_sizes
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.distances import check_finite, check_input, log_one_plus_sum, widen


def cbml_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    positive_center: float = 0.5,
    positive_width: float = 0.5,
    negative_center: float = 1.0,
    negative_width: float = 0.01,
    margin: float = 0.1,
    weight: float = 1.0,
    balance: float = 0.2,
) -> Tensor:
    """Return the CBML loss for each sample as anchor, [N]; zero for one without hard pairs.

    >>> embeddings = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    >>> cbml_loss(embeddings, torch.tensor([0, 0, 1]), weight=0.0)
    tensor([2.0064, 1.3133, 0.0000])
    """
    same = labels[:, None] == labels
    positives, negatives = same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device), ~same
    if not bool((positives.any(dim=1) & negatives.any(dim=1)).any()):
        raise ValueError(
            "CBML needs an anchor with a positive and a negative in the batch: at least 2 classes, one of "
            "them with 2 samples; raise batches.classes or batches.samples"
        )
    with torch.autocast(embeddings.device.type, enabled=False):
        unit = normalize(widen(embeddings)[0])
        similarities = unit @ unit.T
        check_finite(similarities, embeddings)  # here, because the masks below would hide a NaN
        hard_positives = positives & (similarities - margin < _highest(similarities, negatives))
        hard_negatives = negatives & (similarities + margin > -_highest(-similarities, positives))
        center = balance * _mean(similarities, positives) + (1 - balance) * _mean(similarities, negatives)
        spread = ((similarities - center).square() * negatives).sum(dim=1)
        loss = log_one_plus_sum((positive_center - similarities) / positive_width, hard_positives)
        loss = loss + log_one_plus_sum((similarities - negative_center) / negative_width, hard_negatives)
        loss = loss + weight * spread
    return loss.masked_fill(~(hard_positives.any(dim=1) & hard_negatives.any(dim=1)), 0.0)


def _highest(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~mask, -torch.inf).amax(dim=1, keepdim=True)


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return (values * mask).sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp_min(1)


class CBMLLoss(nn.Module):
    """The mean CBML loss over a batch; it has no parameters of its own."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="CBML",
        citation="Kan, He, Cen, Li, Mladenovic, He: Contrastive Bayesian Analysis for Deep Metric Learning. "
        "TPAMI 2022",
        equation="log(1 + sum_p exp((a - s_p) / b)) + log(1 + sum_n exp((s_n - c) / d)) + w sum (s_n - m)^2",
        kind="pairs",
        training=Training(
            by="official code",
            batch=(15, 8),
            details="rate 3e-5, weight decay 5e-4, 5,000 steps",
        ),
        search_space={
            "negative_width": ("log", 0.005, 0.2),
            "weight": ("log", 0.01, 10.0),
            "balance": ("float", 0.0, 1.0),
        },
        notes="duplicates count as positives; the outer function is the logarithm; a batch serves as soon "
        "as one anchor has a positive and a negative",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        positive_center: float = 0.5,
        positive_width: float = 0.5,
        negative_center: float = 1.0,
        negative_width: float = 0.01,
        margin: float = 0.1,
        weight: float = 1.0,
        balance: float = 0.2,
    ) -> None:
        super().__init__()
        check_positive(positive_width=positive_width, negative_width=negative_width)
        check_not_negative(weight=weight, balance=balance)
        if balance > 1 or not math.isfinite(margin):
            raise ValueError(f"balance must be at most 1 and margin finite, got {balance} and {margin}")
        self.sizes = check_sizes(num_classes, embedding_size)
        self.settings = {
            "positive_center": positive_center,
            "positive_width": positive_width,
            "negative_center": negative_center,
            "negative_width": negative_width,
            "margin": margin,
            "weight": weight,
            "balance": balance,
        }

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_input(embeddings, labels, *self.sizes)
        return cbml_loss(embeddings, labels, **self.settings).mean()
