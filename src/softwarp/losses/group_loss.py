"""The Group Loss (Elezi et al. 2020): similar samples of a batch pull their class probabilities together.

    loss_i = weight * -log X_{i y_i} after the dynamics  +  CE(A e_i, y_i)
    X = softmax(A e / T), one-hot for anchors; then `iterations` times the replicator dynamics
    X_ic <- X_ic (W X)_ic / sum_k X_ik (W X)_ik,    W_ij = max(0, correlation(e_i, e_j))

| symbol | parameter   | default | where |
|--------|-------------|---------|-------|
| A      | classifier  | -       | linear with bias, unused at test time |
| T      | temperature | 24.0    | CUB 24, Cars 79, SOP 54: the official code |
| -      | iterations  | 1       | of the dynamics, official code |
| -      | anchors     | 2       | of each class; CUB 2, Cars 3, SOP 2: the official code |
| -      | weight      | 1.0     | of the dynamics relative to the cross entropy, official code |

Correlation is Pearson's, over the dimensions of two embeddings. Anchors are the first samples of each
class in the batch, so that the order within a class counts: a shuffled batch draws them at random.
Differs from the official code: the dynamics stay in log-space, with no 1e-12 in the logarithm; W_ii is 1
also for an embedding without direction (constant over dimensions), where the official code divides by zero.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from softwarp.losses.checks import check_not_negative, check_positive, check_whole
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.distances import check_batch, check_finite, widen

NEVER = -1e9  # logarithm of a probability of zero: no gradient, and no NaN as minus infinity would give


def group_loss_per_sample(
    embeddings: Tensor,
    logits: Tensor,
    labels: Tensor,
    *,
    temperature: float = 24.0,
    iterations: int = 1,
    anchors: int = 2,
    weight: float = 1.0,
) -> Tensor:
    """Return the Group Loss for each sample, [N], from embeddings and the classifier's logits [N, C].

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    >>> group_loss_per_sample(embeddings, torch.zeros(2, 2), torch.tensor([0, 0]), anchors=1)
    tensor([0.6931, 0.9808])
    """
    labels = labels.long()
    fixed = torch.full_like(logits, NEVER).scatter(1, labels[:, None], 0.0)
    is_anchor = anchor_mask(labels, anchors)[:, None]
    log_assignments = torch.where(is_anchor, fixed, (logits / temperature).log_softmax(dim=1))
    unit = normalize(embeddings - embeddings.mean(dim=1, keepdim=True))
    itself = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    similarities = (unit @ unit.T).relu().masked_fill(itself, 0.0)
    for _ in range(iterations):
        log_assignments = replicate(log_assignments, similarities)
    refined = -log_assignments.gather(1, labels[:, None]).squeeze(1)
    return weight * refined + cross_entropy(logits, labels, reduction="none")


def anchor_mask(labels: Tensor, anchors: int) -> Tensor:
    """Return which samples are among the first `anchors` of their class, [N].

    >>> anchor_mask(torch.tensor([0, 1, 0, 0]), 2)
    tensor([ True,  True,  True, False])
    """
    same = labels[:, None] == labels
    return same.tril(-1).sum(dim=1) < anchors


def replicate(log_assignments: Tensor, similarities: Tensor) -> Tensor:
    """Return the log assignments [N, C] one step on; similarities [N, N] has zeros on its diagonal."""
    top = log_assignments.amax(dim=0).detach()
    support = similarities @ (log_assignments - top).exp()
    tiny = torch.finfo(support.dtype).tiny
    log_support = (top + support.clamp_min(tiny).log()).masked_fill(support < tiny, NEVER)
    # A sample supports itself with similarity 1, which keeps the sum above zero.
    return (log_assignments + torch.logaddexp(log_assignments, log_support)).log_softmax(dim=1)


class GroupLoss(nn.Module):
    """The mean Group Loss over a batch, with a learned linear classifier."""

    distance = "cosine"
    class_vectors = "classifier.weight"
    card: ClassVar[Card] = Card(
        title="Group Loss",
        citation="Elezi, Vascon, Torcinovich, Pelillo, Leal-Taixé: The Group Loss for Deep Metric Learning. "
        "ECCV 2020",
        equation="-log X_y after X <- X (W X) / sum X (W X), X = softmax(A e / T), + CE(A e, y)",
        kind="graph",
        networks="classifier",
        min_samples=3,
        training=Training(
            by="official code",
            batch=(6, 9),
            optimizer="radam",
            rate_ratio=1.0,
            details="CUB rate 1.56e-4; Cars 5 x 7, 2e-4; SOP 10 x 6, 6.1e-4; 70 epochs, a tenth from 31 on",
        ),
        search_space={"temperature": ("log", 1.0, 100.0), "weight": ("log", 0.1, 10.0)},
        notes="constants are those of the official code for CUB, the search ranges ours; the first samples "
        "of each class in a batch are its anchors, so the value depends on the order within a class; a "
        "batch of anchors alone is an error, for the group would do nothing",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        temperature: float = 24.0,
        iterations: int = 1,
        anchors: int = 2,
        weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_whole(at_least=0, iterations=iterations, anchors=anchors)
        check_positive(temperature=temperature)
        check_not_negative(weight=weight)
        if iterations > 50:
            raise ValueError(f"iterations must be at most 50, got {iterations}")
        self.classifier = nn.Linear(embedding_size, num_classes)
        self.temperature, self.iterations = temperature, iterations
        self.anchors, self.weight = anchors, weight

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_batch(embeddings, self.classifier.weight, labels)
        if bool(anchor_mask(labels, self.anchors).all()):
            raise ValueError(
                f"all samples are anchors: Group Loss needs more than {self.anchors} samples of a class in a "
                "batch; raise batches.samples, or lower anchors or batches.accumulate"
            )
        with torch.autocast(embeddings.device.type, enabled=False):
            wide, matrix, bias = widen(embeddings, self.classifier.weight, self.classifier.bias)
            loss = group_loss_per_sample(
                wide,
                wide @ matrix.T + bias,
                labels,
                temperature=self.temperature,
                iterations=self.iterations,
                anchors=self.anchors,
                weight=self.weight,
            )
        check_finite(loss, embeddings, self.classifier.weight)
        return loss.mean()
