"""Losses of an anchor against several samples of a batch, from pytorch-metric-learning; none has proxies.

Each class has the equation, where it was taken from and where it differs from the paper on its card.
Symbols: z = e / |e|, d_ij = |z_i - z_j| unless said otherwise, s_ij = z_i . z_j.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor, nn

from softwarp.losses.checks import check_choice, check_not_negative, check_positive, check_sizes, check_whole
from softwarp.losses.contract import Card, Training
from softwarp.losses.distances import check_input
from softwarp.losses.from_pml import call_pml, lp_distance, pml_loss


class TripletLoss(nn.Module):
    """The positive nearer than the negative by a margin, for semi-hard triplets."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="Triplet",
        citation="Schroff, Kalenichenko, Philbin: FaceNet: A Unified Embedding for Face Recognition and "
        "Clustering. CVPR 2015",
        equation="mean of relu(d_ap^2 - d_an^2 + margin) over triplets with "
        "d_ap^2 < d_an^2 <= d_ap^2 + margin",
        kind="pairs",
        training=Training(
            by="paper",
            batch=(45, 40),
            optimizer="adagrad",
            details="1,800 faces in a batch, about 40 of each, rate 0.05",
        ),
        search_space={"margin": ("float", 0.05, 0.6)},
        notes="mining is semihard (FaceNet), hard (negative nearer than positive) or all (both). A batch "
        "without such a triplet has loss 0.",
    )

    def __init__(
        self, num_classes: int, embedding_size: int, *, margin: float = 0.2, mining: str = "semihard"
    ) -> None:
        from pytorch_metric_learning.miners import TripletMarginMiner

        super().__init__()
        check_positive(margin=margin)
        check_choice(mining, ("semihard", "hard", "all"), "mining")
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        squared = lp_distance(power=2)
        self.miner = TripletMarginMiner(margin=margin, type_of_triplets=mining, distance=squared)
        self.pml = pml_loss("TripletMarginLoss", margin=margin, distance=squared)

    forward = call_pml


class NPairLoss(nn.Module):
    """One pair per class: an anchor must recognise its own positive among the positives of all classes."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="N-pair",
        citation="Sohn: Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NeurIPS 2016",
        equation="mean_i log(1 + sum_{j != i} exp(e_i . e_j+ - e_i . e_i+)) + norm_penalty mean |e|^2",
        kind="pairs",
        training=Training(
            by="paper",
            batch=(60, 2),
            details="the batch is the paper's, the optimizer ours",
        ),
        search_space={"norm_penalty": ("log", 1e-4, 1e-1)},
        notes="Vectors are not normalised. With more than two samples of a class, its first and second are "
        "one pair, its third and fourth the next: such rounds are separate N-pair batches, and the loss "
        "is the mean over all anchors; the last of an odd number is left out, and a round of one class too. "
        "The paper gives no norm_penalty: 0.002 is ours.",
    )

    def __init__(self, num_classes: int, embedding_size: int, *, norm_penalty: float = 0.002) -> None:
        from pytorch_metric_learning.distances import DotProductSimilarity
        from pytorch_metric_learning.regularizers import LpRegularizer

        super().__init__()
        check_not_negative(norm_penalty=norm_penalty)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.pml = pml_loss(
            "NPairsLoss",
            distance=DotProductSimilarity(normalize_embeddings=False),
            embedding_regularizer=LpRegularizer(power=2),
            embedding_reg_weight=norm_penalty,
        )

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_input(embeddings, labels, self.num_classes, self.embedding_size)
        self.card.check_counts(labels)
        rounds = list(pair_rounds(labels))
        values = [call_pml(self, embeddings, labels, indices=(*pairs, *pairs)) for pairs in rounds]
        counts = [len(anchors) for anchors, _ in rounds]
        parts = [value * count / sum(counts) for value, count in zip(values, counts, strict=True)]
        return torch.stack(parts).sum()


def pair_rounds(labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (anchors, positives), one pair per class; where classes have more, again with the next pairs.

    >>> [tuple(side.tolist() for side in pairs) for pairs in pair_rounds(torch.tensor([0, 1, 0, 1, 1]))]
    [([0, 1], [2, 3])]
    """
    members = [(labels == label).nonzero().flatten() for label in labels.unique()]
    for start in range(0, max(map(len, members)) - 1, 2):
        pairs = [rows[start : start + 2] for rows in members if len(rows) >= start + 2]
        if len(pairs) > 1:
            anchors, positives = torch.stack(pairs).unbind(1)
            yield anchors, positives


class LiftedStructureLoss(nn.Module):
    """Each positive pair against all negatives of both its ends."""

    distance = "euclidean"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="Lifted structure",
        citation="Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature "
        "Embedding. CVPR 2016",
        equation="1/(2|P|) sum_{ij in P} "
        "relu(log(sum_k exp(margin - d_ik) + sum_l exp(margin - d_jl)) + d_ij)^2",
        kind="pairs",
        training=Training(
            by="paper",
            batch=128,
            optimizer="sgd",
            details="pairs of a class drawn at random, 10 times the rate for the last layer",
        ),
        search_space={"margin": ("float", 0.2, 2.0)},
        notes="d is between vectors as they are, not normalised.",
    )

    def __init__(self, num_classes: int, embedding_size: int, *, margin: float = 1.0) -> None:
        super().__init__()
        check_positive(margin=margin)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.pml = pml_loss(
            "LiftedStructureLoss", neg_margin=margin, distance=lp_distance(normalize_embeddings=False)
        )

    forward = call_pml


class FastAPLoss(nn.Module):
    """One minus the average precision of each sample's ranking, by soft histograms of distances."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="FastAP",
        citation="Cakir, He, Xia, Kulis, Sclaroff: Deep Metric Learning to Rank. CVPR 2019",
        equation="mean_i 1 - (1 / N_i+) sum_b h_ib+ H_ib+ / H_ib; "
        "h soft histograms of d^2, H their sums up to b",
        kind="ranking",
        training=Training(
            by="official code",
            batch=256,
            details="SOP; the images of a batch are of two categories",
        ),
        search_space={"num_bins": ("int", 5, 30)},
        notes="num_bins + 1 triangular bins cover d^2 from 0 to 4.",
    )

    def __init__(self, num_classes: int, embedding_size: int, *, num_bins: int = 10) -> None:
        super().__init__()
        check_whole(num_bins=num_bins)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.pml = pml_loss("FastAPLoss", num_bins=num_bins, distance=lp_distance(power=2))

    forward = call_pml


class SupConLoss(nn.Module):
    """Each positive against all others of the batch, by a softmax; averaged outside the logarithm."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="SupCon",
        citation="Khosla, Teterwak, Wang, Sarna, Tian, Isola, Maschinot, Liu, Krishnan: Supervised "
        "Contrastive Learning. NeurIPS 2020",
        equation="mean_i -(1 / |P_i|) sum_{p in P_i} log(exp(s_ip / t) / sum_{a != i} exp(s_ia / t))",
        kind="pairs",
        training=Training(
            by="official code",
            batch=1024,
            optimizer="sgd",
            details="CIFAR, rate 0.5, cosine, two views of each image",
        ),
        search_space={"temperature": ("log", 0.02, 0.5)},
        notes="t = temperature. One view of each image: positives are the other images of the class.",
    )

    def __init__(self, num_classes: int, embedding_size: int, *, temperature: float = 0.1) -> None:
        super().__init__()
        check_positive(temperature=temperature)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.pml = pml_loss("SupConLoss", temperature=temperature)

    forward = call_pml
