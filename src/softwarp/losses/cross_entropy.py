"""Cross-entropy for metric learning (Boudiaf et al. 2020): a smoothed linear classifier on raw embeddings.

    loss_i = sum_j q_ij log(q_ij / p_ij),   p_i = softmax_j(w_j . h_i + b_j)
    q_ij   = 1 - epsilon for j = y_i, epsilon / (C - 1) else;   h = dropout(norm(e))

| symbol  | parameter       | default | where |
|---------|-----------------|---------|-------|
| epsilon | label_smoothing | 0.1     | official experiment script |
| -       | dropout         | 0.5     | official code for ResNet-50, before the classifier |
| norm    | feature_norm    | False   | BatchNorm without affine; official, but for CUB |
| w, b    | proxy_init      | "zeros" | w, learned; the official code starts w and b at zero |

In the first step only the classifier learns: with w = 0 no gradient reaches the embeddings. Differs from
the official code: the norm belongs to the loss, so embeddings at test time are those before it.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div

from softwarp.losses.checks import check_share
from softwarp.losses.contract import Card, Shard, Terms, Training, own_logits, shown_settings
from softwarp.losses.distances import check_batch, check_finite, check_for_batch_norm, init_proxies, widen


def cross_entropy_loss(
    embeddings: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, *, label_smoothing: float = 0.1
) -> Tensor:
    """Return the smoothed cross-entropy above its minimum for each sample, [N]; weight [C, D], bias [C].

    >>> weight, bias = torch.tensor([[1.0], [0.0]]), torch.zeros(2)
    >>> cross_entropy_loss(torch.tensor([[2.0]]), weight, bias, torch.tensor([0]), label_smoothing=0.0)
    tensor([0.1269])
    """
    check_batch(embeddings, weight, labels)
    with torch.autocast(embeddings.device.type, enabled=False):
        wide, wide_weight, wide_bias = widen(embeddings, weight, bias)
        log_probabilities = (wide @ wide_weight.T + wide_bias).log_softmax(dim=1)
        others = len(weight) - 1
        smoothing = label_smoothing if others else 0.0
        wanted = torch.full_like(log_probabilities, smoothing / max(others, 1))
        wanted = wanted.scatter(1, labels.long()[:, None], 1 - smoothing)
        loss = kl_div(log_probabilities, wanted, reduction="none").sum(dim=1)
    check_finite(loss, embeddings, weight)
    return loss


class CrossEntropyLoss(nn.Module):
    """The mean smoothed cross-entropy over a batch, with its classifier."""

    distance = "cosine"
    class_vectors = "weight"
    card: ClassVar[Card] = Card(
        title="Cross-entropy",
        citation="Boudiaf et al.: A Unifying Mutual Information View of Metric Learning: Cross-Entropy vs. "
        "Pairwise Losses. ECCV 2020",
        equation="KL(q_i || softmax_j(w_j . h_i + b_j)), q smoothed, h = dropout(norm(e))",
        kind="classifier",
        training=Training(
            by="official code",
            batch=128,
            optimizer="sgd",
            rate_ratio=1.0,
            details="CUB rate 0.02 without momentum, Cars 0.05, SOP 0.003 with Nesterov momentum 0.99; "
            "weight decay 5e-4, 100 steps of warm-up, cosine",
        ),
        search_space={"label_smoothing": ("float", 0.0, 0.4), "dropout": ("float", 0.0, 0.7)},
        notes="the optional BatchNorm is in the loss, unused at test time; in the official code it stays",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        label_smoothing: float = 0.1,
        dropout: float = 0.5,
        feature_norm: bool = False,
        proxy_init: str = "zeros",
    ) -> None:
        super().__init__()
        check_share(label_smoothing=label_smoothing, dropout=dropout)
        self.num_classes = num_classes
        self.weight = init_proxies(num_classes, embedding_size, proxy_init)
        self.bias = nn.Parameter(torch.zeros(num_classes))
        self.norm = nn.BatchNorm1d(embedding_size, affine=False) if feature_norm else None
        self.dropout = nn.Dropout(dropout)
        self.label_smoothing = label_smoothing

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, self.weight, labels)
        features = self.dropout(self._normed(embeddings))
        smoothing = self.label_smoothing
        return cross_entropy_loss(features, self.weight, self.bias, labels, label_smoothing=smoothing).mean()

    def terms(self, embeddings: Tensor, shard: Shard) -> Terms:
        """Return the loss in its parts, for the classes of a shard."""
        features = self._normed(embeddings)
        queries, keys, bias = widen(
            features * shard.same(self.dropout(torch.ones_like(features))), self.weight, self.bias
        )
        own = own_logits(queries, keys, shard) + bias[shard.places]
        smoothing, others = self.label_smoothing, shard.competing - 1
        extra = None
        if smoothing and others:
            sums = queries @ keys.sum(0) + bias.sum() - shard.spread(own)  # sums of the other classes' logits
            least = (1 - smoothing) * math.log(1 - smoothing) + smoothing * math.log(smoothing / others)
            extra = shard.spread(smoothing * own + least) - smoothing / others * sums
        return Terms(queries=queries, keys=keys, bias=bias, own=own, extra=extra)

    def _normed(self, embeddings: Tensor) -> Tensor:
        features = widen(embeddings, self.weight)[0]
        if self.norm is not None:
            check_for_batch_norm(embeddings, training=self.training)
            features = self.norm(features)
        return features
