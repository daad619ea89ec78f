"""Contextual loss (Liao et al. 2023): pairs should share neighbours, not only be close.

    loss = contextual_weight L_context + contrastive_weight L_contrastive + mean_weight L_mean
    D_ij = max(0, 2 - 2 s_ij),   s = cosine similarity
    N^k_ij = 1 where D_ij <= tolerance + the k-th smallest D of row i (i itself counts), otherwise 0
    W_ij = N_ij / 2 * (sum_l N_il N_jl / sum_l N_il + sum_l (1 - N_il)(1 - N_jl) / sum_l (1 - N_il)),  N = N^k
    R_ij = N^{k/2}_ij N^{k/2}_ji,   V = R W / row sums of R,   J = (V + V') / 2
    L_context = 1/n^2 sum_{i != j} (1[y_i = y_j] - J_ij)^2
    L_contrastive = mean relu(positive_margin - s) + mean relu(s - negative_margin), over non-zero terms
    L_mean = (mean_ij s_ij - mean_similarity)^2

The step N has the gradient `gain` for -D_ij, and none for its threshold; row sums of N and 1 - N are
constants. So the gradient is not the value's, by design.

| symbol | parameter          | default | where |
|--------|--------------------|---------|-------|
| k      | neighbours         | 4       | official code |
| eps    | tolerance          | 0.05    | official script for 256 pixels; 0.04 for CUB in the one for 224 |
|        | gain               | 10.0    | official code |
|        | contextual_weight  | 0.4     | official script for 256 pixels |
|        | contrastive_weight | 0.5     | the same |
| gamma  | mean_weight        | 0.1     | both scripts |
|        | positive_margin    | 0.75    | official code |
|        | negative_margin    | 0.6     | official code |
|        | mean_similarity    | 0.25    | official code |

Differs from the official code: lambda, which weighs opposite terms in its two scripts, is two named
weights here; a row whose neighbourhood is the whole batch adds 0, not NaN; fewer samples than k are fine.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from softwarp.losses.checks import check_not_negative, check_sizes, check_whole
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.ranking import check_lists, unit_rows
from softwarp.losses.roadmap import calibration_loss


def contextual_loss(
    embeddings: Tensor, labels: Tensor, *, neighbours: int = 4, tolerance: float = 0.05, gain: float = 10.0
) -> Tensor:
    """Return by how much contextual similarities differ from whether classes agree, a scalar.

    >>> embeddings = torch.eye(2).repeat_interleave(4, 0)
    >>> contextual_loss(embeddings, torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
    tensor(0.)
    """
    check_whole(at_least=2, neighbours=neighbours)
    check_not_negative(tolerance=tolerance)
    with torch.autocast(embeddings.device.type, enabled=False):
        items = unit_rows(embeddings, labels)
        same = (labels[:, None] == labels).to(items)
        similarity = contextual_similarity(items @ items.T, neighbours, tolerance, gain)
        off_diagonal = 1 - torch.eye(len(items), dtype=items.dtype, device=items.device)
        return ((same - similarity).square() * off_diagonal).sum() / len(items) ** 2


def contextual_similarity(similarities: Tensor, neighbours: int, tolerance: float, gain: float) -> Tensor:
    """Return J of the module's equations, [N, N]: how much of their neighbourhoods two samples share."""
    closeness = -(2 - 2 * similarities).clamp_min(0)
    nearest = closeness.detach().topk(min(neighbours, len(closeness)), dim=1).values

    def neighbourhood(count: int) -> Tensor:
        inside = closeness + tolerance >= nearest[:, count - 1, None]
        # The second term is zero and carries the gradient.
        return inside.to(closeness) + gain * (closeness - closeness.detach())

    wide, narrow = neighbourhood(nearest.shape[1]), neighbourhood(max(1, nearest.shape[1] // 2))
    shared = wide @ wide.T / wide.detach().sum(1, keepdim=True).clamp_min(1)
    outside = 1 - wide
    avoided = outside @ outside.T / outside.detach().sum(1, keepdim=True).clamp_min(1)
    overlap = 0.5 * (shared + avoided) * wide
    mutual = narrow * narrow.T
    # The floor is below 1, the sum of a sample that is nobody's neighbour: there clamp has no gradient.
    expanded = mutual @ overlap / mutual.sum(1, keepdim=True).clamp_min(0.5)
    return 0.5 * (expanded + expanded.T)


def mean_similarity_loss(embeddings: Tensor, labels: Tensor, *, mean_similarity: float = 0.25) -> Tensor:
    """Return the squared difference of the mean similarity of all pairs from `mean_similarity`, a scalar.

    >>> mean_similarity_loss(torch.eye(4), torch.arange(4))
    tensor(0.)
    """
    with torch.autocast(embeddings.device.type, enabled=False):
        # The mean of all products is the square of the mean vector.
        mean = unit_rows(embeddings, labels).mean(0)
        return (mean.square().sum() - mean_similarity).square()


class ContextualLoss(nn.Module):
    """The contextual loss of a batch, with its contrastive term and its regulariser."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="Contextual",
        citation="Liao, Tsiligkaridis, Kulis: Supervised Metric Learning to Rank for Retrieval via "
        "Contextual Similarity Optimization. ICML 2023",
        equation="0.4 mean (1[y_i = y_j] - J_ij)^2 + 0.5 contrastive + 0.1 (mean s - 0.25)^2",
        kind="ranking",
        training=Training(
            by="official code",
            batch=(32, 4),
            details="256 pixels: CUB rate 8e-5, Cars 1.6e-4, SOP 4e-5, half that for the backbone, weight "
            "decay 1e-4, 80 epochs; AdamW at 224 pixels",
        ),
        search_space={
            "tolerance": ("log", 0.01, 0.2),
            "contextual_weight": ("log", 0.1, 2.0),
            "contrastive_weight": ("log", 0.1, 2.0),
        },
        notes="Weights of the official 256-pixel script, under separate names.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        neighbours: int = 4,
        tolerance: float = 0.05,
        gain: float = 10.0,
        positive_margin: float = 0.75,
        negative_margin: float = 0.6,
        mean_similarity: float = 0.25,
        contextual_weight: float = 0.4,
        contrastive_weight: float = 0.5,
        mean_weight: float = 0.1,
    ) -> None:
        super().__init__()
        check_whole(at_least=2, neighbours=neighbours)
        check_not_negative(tolerance=tolerance)
        self.sizes = check_sizes(num_classes, embedding_size)
        self.neighbours, self.tolerance, self.gain = neighbours, tolerance, gain
        self.positive_margin, self.negative_margin = positive_margin, negative_margin
        self.mean_similarity, self.mean_weight = mean_similarity, mean_weight
        self.contextual_weight, self.contrastive_weight = contextual_weight, contrastive_weight

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_lists(self.card, self.sizes, embeddings, labels)
        context = contextual_loss(
            embeddings, labels, neighbours=self.neighbours, tolerance=self.tolerance, gain=self.gain
        )
        contrast = calibration_loss(
            embeddings, labels, positive_margin=self.positive_margin, negative_margin=self.negative_margin
        )
        mean = mean_similarity_loss(embeddings, labels, mean_similarity=self.mean_similarity)
        loss = self.contextual_weight * context + self.contrastive_weight * contrast
        return loss + self.mean_weight * mean
