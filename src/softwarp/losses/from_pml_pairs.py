"""Losses over the pairs of a batch, from pytorch-metric-learning; none has proxies.

Each class has the equation, where it was taken from and where it differs from the paper on its card.
Symbols: z = e / |e|, d_ij = |z_i - z_j| unless said otherwise, s_ij = z_i . z_j.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from softwarp.losses.checks import check_choice, check_not_negative, check_positive, check_sizes
from softwarp.losses.contract import Card, Training
from softwarp.losses.distances import euclidean_distances
from softwarp.losses.from_pml import call_pml, lp_distance, pml_loss, take_parameter


class ContrastiveLoss(nn.Module):
    """Positive pairs nearer than one margin, negative pairs farther than another."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="Contrastive",
        citation="Hadsell, Chopra, LeCun: Dimensionality Reduction by Learning an Invariant Mapping. "
        "CVPR 2006",
        equation="mean of relu(d_ij - pos_margin) over positive + of relu(neg_margin - d_ij) over "
        "negative pairs",
        kind="pairs",
        training=Training(details="the paper trains pair by pair"),
        search_space={"pos_margin": ("float", 0.0, 0.6), "neg_margin": ("float", 0.6, 1.4)},
        notes="Unit vectors and hinges without squares, as deep metric learning uses it, where the paper "
        "squares both hinges; each mean is over the pairs whose hinge is not 0.",
    )

    def __init__(
        self, num_classes: int, embedding_size: int, *, pos_margin: float = 0.0, neg_margin: float = 1.0
    ) -> None:
        super().__init__()
        check_not_negative(pos_margin=pos_margin)
        check_positive(neg_margin=neg_margin)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.pml = pml_loss(
            "ContrastiveLoss", pos_margin=pos_margin, neg_margin=neg_margin, distance=lp_distance()
        )

    forward = call_pml


class MarginLoss(nn.Module):
    """Pairs on the right side of a boundary beta, learned for each class, by a margin."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="Margin",
        citation="Wu, Manmatha, Smola, Kraehenbuehl: Sampling Matters in Deep Embedding Learning. ICCV 2017",
        equation="sum over triplets of relu(d_ap - b_y + margin) + relu(b_y - d_an + margin) + nu b_y, "
        "over the number of positive hinges",
        kind="pairs",
        networks="a boundary for each class",
        training=Training(
            by="official code",
            batch=(14, 5),
            rate_ratio=1000.0,
            details="CUB rate 1e-4; the boundaries by SGD at 0.1",
        ),
        proxy_rate_ratio=100.0,
        search_space={"margin": ("float", 0.05, 0.4), "beta": ("float", 0.8, 1.4)},
        notes="sampling is distance (the paper's: negatives nearer than 1.4 evenly over distances, those "
        "below 0.5 taken for 0.5, one draw a positive from torch's random numbers) or all (every triplet). "
        "beta is where the learned boundaries start. The draw is ours: in 512 dimensions that of "
        "pytorch-metric-learning loses nearly all anchors once two samples of different classes are close.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        margin: float = 0.2,
        beta: float = 1.2,
        nu: float = 0.0,
        sampling: str = "distance",
    ) -> None:
        super().__init__()
        check_positive(margin=margin, beta=beta)
        check_not_negative(nu=nu)
        check_choice(sampling, ("distance", "all"), "sampling")
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        if sampling == "distance":
            self.miner = draw_triplets
        self.pml = pml_loss(
            "MarginLoss",
            margin=margin,
            beta=beta,
            nu=nu,
            learn_beta=True,
            num_classes=num_classes,
            distance=lp_distance(),
        )
        self.boundaries = nn.Parameter(take_parameter(self.pml, "beta"))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return call_pml(self, embeddings, labels, beta=self.boundaries)


def draw_triplets(embeddings: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return anchors, positives and negatives: each positive pair, with a negative drawn by its distance.

    The chance of a negative is the inverse of how common its distance is on a sphere. An anchor whose
    negatives are all too far for the margin draws from all of them.
    """
    unit = normalize(embeddings.detach())
    distances = euclidean_distances(unit, unit).clamp_min(0.5)
    same = labels[:, None] == labels
    size = embeddings.shape[1]
    on_sphere = (1 - distances.square() / 4).clamp_min(1e-8).log()
    commonness = (size - 2) * distances.log() + (size - 3) / 2 * on_sphere
    near = ~same & (distances < 1.4)
    logits = torch.where(near.any(dim=1, keepdim=True), -commonness.masked_fill(~near, torch.inf), 0.0)
    chances = logits.masked_fill(same, -torch.inf).softmax(dim=1)
    anchors, positives = (same & ~torch.eye(len(labels), dtype=torch.bool, device=labels.device)).nonzero().T
    return anchors, positives, torch.multinomial(chances[anchors], 1).squeeze(1)


class MultiSimilarityLoss(nn.Module):
    """Soft maxima over the mined positive and negative similarities of each anchor."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="Multi-similarity",
        citation="Wang, Han, Huang, Dong, Scott: Multi-Similarity Loss with General Pair Weighting for Deep "
        "Metric Learning. CVPR 2019",
        equation="mean_i log(1 + sum_P exp(-alpha (s_ij - base))) / alpha "
        "+ log(1 + sum_N exp(beta (s_ij - base))) / beta",
        kind="pairs",
        training=Training(
            by="official code",
            batch=(16, 5),
            details="rate 3e-5, weight decay 5e-4",
        ),
        search_space={
            "alpha": ("log", 0.1, 10.0),
            "beta": ("log", 5.0, 100.0),
            "base": ("float", 0.3, 1.0),
            "epsilon": ("float", 0.0, 0.5),
        },
        notes="P and N are the mined pairs: positives with s_ij < max_N s + epsilon, negatives with s_ij > "
        "min_P s - epsilon. alpha 2, beta 40, base 0.5 are the official code's; the text has 2, 50, 1. A "
        "batch with no more than one mined pair of each kind has loss 0.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        alpha: float = 2.0,
        beta: float = 40.0,
        base: float = 0.5,
        epsilon: float = 0.1,
    ) -> None:
        from pytorch_metric_learning.miners import MultiSimilarityMiner

        super().__init__()
        check_positive(alpha=alpha, beta=beta)
        check_not_negative(base=base, epsilon=epsilon)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.miner = MultiSimilarityMiner(epsilon=epsilon)
        self.pml = pml_loss("MultiSimilarityLoss", alpha=alpha, beta=beta, base=base)

    forward = call_pml


class CircleLoss(nn.Module):
    """Similarities weighted by how far each is from its optimum."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="Circle",
        citation="Sun, Cheng, Zhang, Zhang, Zheng, Wang, Wei: Circle Loss: A Unified Perspective of Pair "
        "Similarity Optimization. CVPR 2020",
        equation="mean_i log(1 + sum_N exp(g relu(s_ij + m) (s_ij - m)) "
        "sum_P exp(-g relu(1 + m - s_ij) (s_ij - 1 + m)))",
        kind="pairs",
        training=Training(
            by="paper",
            batch=(16, 5),
            details="the batch is the paper's for retrieval, the optimizer ours",
        ),
        search_space={"margin": ("float", 0.1, 0.5), "gamma": ("log", 4.0, 256.0)},
        notes="m = margin, g = gamma; defaults are the paper's for fine-grained retrieval. The weights "
        "relu(...) get no gradient, as in the paper.",
    )

    def __init__(
        self, num_classes: int, embedding_size: int, *, margin: float = 0.4, gamma: float = 80.0
    ) -> None:
        super().__init__()
        check_not_negative(margin=margin)
        check_positive(gamma=gamma)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.pml = pml_loss("CircleLoss", m=margin, gamma=gamma)

    forward = call_pml
