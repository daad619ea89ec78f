"""L2-constrained softmax (Ranjan et al. 2017): a linear classifier on embeddings of one fixed length.

    loss_i = -log softmax_j(w_j . alpha z_i + b_j)[y_i],   z = e / |e|

| symbol | parameter | default | where |
|--------|-----------|---------|-------|
| alpha  | alpha     | 16.0    | radius of the sphere, ours; see below |
| w, b   | -         | -       | learned; w drawn by `proxy_init`, b zero at first; neither is normalised |

The paper gives a lower bound for alpha, log(p (C - 2) / (1 - p)) for C classes and a probability p of the
right one; with p = 0.9 our default satisfies it up to 987,000 classes. Differs from the paper: alpha is
fixed, where the paper also tries a learned one. There is no official code.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from softwarp.losses.checks import check_positive
from softwarp.losses.contract import (
    Card,
    Shard,
    Terms,
    Training,
    own_logits,
    phase_state,
    set_phase_state,
    shown_settings,
)
from softwarp.losses.distances import check_batch, check_finite, init_proxies, widen


def l2_softmax_loss(
    embeddings: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, *, alpha: float = 16.0
) -> Tensor:
    """Return the L2-constrained softmax loss for each sample, [N]; weight is [C, D], bias [C].

    >>> weight, bias = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.zeros(2)
    >>> l2_softmax_loss(torch.tensor([[0.0, 5.0]]), weight, bias, torch.tensor([1]), alpha=2.0)
    tensor([0.1269])
    """
    check_batch(embeddings, weight, labels)
    with torch.autocast(embeddings.device.type, enabled=False):
        wide, wide_weight, wide_bias = widen(embeddings, weight, bias)
        logits = alpha * normalize(wide) @ wide_weight.T + wide_bias
        loss = cross_entropy(logits, labels.long(), reduction="none")
    check_finite(loss, embeddings, weight)
    return loss


class L2SoftmaxLoss(nn.Module):
    """The mean L2-constrained softmax loss over a batch, with its classifier."""

    distance = "cosine"
    class_vectors = "weight"
    card: ClassVar[Card] = Card(
        title="L2-softmax",
        citation="Ranjan, Castillo, Chellappa: L2-constrained Softmax Loss for Discriminative Face "
        "Verification. 2017",
        equation="-log softmax_j(w_j . alpha z_i + b_j)[y_i]",
        kind="classifier",
        training=Training(
            rate_ratio=1.0, details="no official code; the classifier is one more layer of the model"
        ),
        search_space={"alpha": ("log", 4.0, 64.0)},
        notes="no official code; the default of alpha is ours, and alpha is not learned",
    )

    def __init__(
        self, num_classes: int, embedding_size: int, *, alpha: float = 16.0, proxy_init: str = "kaiming"
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.weight = init_proxies(num_classes, embedding_size, proxy_init)
        self.bias = nn.Parameter(torch.zeros(num_classes))
        self.start_phase(alpha=alpha)

    def start_phase(self, *, alpha: float) -> None:
        """Change the alpha."""
        check_positive(alpha=alpha)
        self.alpha = alpha

    get_extra_state, set_extra_state = phase_state, set_phase_state
    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return l2_softmax_loss(embeddings, self.weight, self.bias, labels, alpha=self.alpha).mean()

    def terms(self, embeddings: Tensor, shard: Shard) -> Terms:
        """Return the loss in its parts, for the classes of a shard."""
        wide, keys, bias = widen(embeddings, self.weight, self.bias)
        queries = self.alpha * normalize(wide)
        own = own_logits(queries, keys, shard) + bias[shard.places]
        return Terms(queries=queries, keys=keys, bias=bias, own=own)
