"""SGSL (Yang et al. 2023): cross entropy, then also a triplet against the classifier held still.

    loss_i = CE_i  +  [mean CE <= threshold] log(1 + exp( LSE_{j != y}(r cos_ij) / r - cos_iy ))
    CE_i = -(1 - eps) log p_iy - eps / (C - 1) sum_{j != y} log p_ij,   p_i = softmax(W e_i)
    cos_ij = e_i . w_j / (|e_i| |w_j|), with no gradient to W

| symbol | parameter       | default | where |
|--------|-----------------|---------|-------|
| r      | scale           | 30.0    | sharpness of the hardest other class, official code |
| -      | threshold       | 3.0     | of the batch's cross entropy, official code |
| eps    | label_smoothing | 0.4     | CUB and Cars 0.4, SOP 0.1: the official configurations |

The gradient for W is therefore that of the cross entropy alone. Differs from the official code: the
mean is over all samples, not over those with a loss above zero; the batch norm before the classifier is
left to the model, because embeddings at test time are taken after it.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize, softplus

from softwarp.losses.checks import check_positive, check_share, check_whole
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.distances import check_batch, check_finite, widen


def sgsl_loss(
    embeddings: Tensor,
    weights: Tensor,
    labels: Tensor,
    *,
    scale: float = 30.0,
    threshold: float = 3.0,
    label_smoothing: float = 0.4,
) -> Tensor:
    """Return the SGSL loss for each sample, [N], from the classifier's weights [C, D].

    >>> weights = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> sgsl_loss(torch.tensor([[0.0, 1.0]]), weights, torch.tensor([0]))
    tensor([1.3863])
    """
    check_batch(embeddings, weights, labels)
    check_settings(len(weights), scale, label_smoothing)
    target = labels.long()[:, None]
    with torch.autocast(embeddings.device.type, enabled=False):
        wide, wide_weights = widen(embeddings, weights)
        log_probabilities = log_softmax(wide @ wide_weights.T, dim=1)
        own = log_probabilities.gather(1, target).squeeze(1)
        others = log_probabilities.scatter(1, target, 0.0).sum(dim=1)
        entropy = -(1 - label_smoothing) * own - label_smoothing / (len(weights) - 1) * others
        cosines = normalize(wide) @ normalize(wide_weights.detach()).T
        hardest = (scale * cosines).scatter(1, target, -torch.inf).logsumexp(dim=1) / scale
        triplet = softplus(hardest - cosines.gather(1, target).squeeze(1))
        loss = torch.where(entropy.mean() <= threshold, entropy + triplet, entropy)
    check_finite(loss, embeddings, weights)
    return loss


def check_settings(num_classes: int, scale: float, label_smoothing: float) -> None:
    """Raise a ValueError unless there is another class and the settings are in range."""
    check_whole(at_least=2, num_classes=num_classes)
    check_positive(scale=scale)
    check_share(label_smoothing=label_smoothing)


class SGSLLoss(nn.Module):
    """The mean SGSL loss over a batch, with a learned linear classifier without bias."""

    distance = "cosine"
    class_vectors = "classifier.weight"
    card: ClassVar[Card] = Card(
        title="SGSL",
        citation="Yang, Wang, Zhang: Stop-Gradient Softmax Loss for Deep Metric Learning. AAAI 2023",
        equation="CE(W e) + [mean CE <= threshold] log(1 + exp(LSE_{j != y}(r cos_j) / r - cos_y))",
        kind="classifier",
        training=Training(
            by="official code",
            batch=(16, 4),
            optimizer="sgd",
            rate_ratio=1.0,
            details="CUB and Cars rate 0.05 without momentum, SOP 0.003 with Nesterov momentum 0.99; weight"
            " decay 5e-4, 100 epochs, cosine",
        ),
        search_space={"scale": ("log", 5.0, 100.0), "label_smoothing": ("float", 0.0, 0.5)},
        notes="smoothed labels over many classes can hold the cross entropy above the threshold of 3: "
        "lower label_smoothing or raise threshold then, as the official 0.1 for SOP",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scale: float = 30.0,
        threshold: float = 3.0,
        label_smoothing: float = 0.4,
    ) -> None:
        super().__init__()
        check_settings(num_classes, scale, label_smoothing)
        self.classifier = nn.Linear(embedding_size, num_classes, bias=False)
        nn.init.normal_(self.classifier.weight, std=0.001)
        self.settings = {"scale": scale, "threshold": threshold, "label_smoothing": label_smoothing}

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return sgsl_loss(embeddings, self.classifier.weight, labels, **self.settings).mean()
