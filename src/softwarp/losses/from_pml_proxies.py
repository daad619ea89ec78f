"""Losses with proxies or a classifier, from pytorch-metric-learning; their parameters are [C, ...].

Each class has the equation, where it was taken from and where it differs from the paper on its card.
Symbols: z = e / |e|, q_j = p_j / |p_j|, t_ij the angle between them, y the class of sample i.
"""

from typing import ClassVar

from torch import Tensor, cdist, nn
from torch.nn.functional import normalize

from softwarp.losses.checks import check_not_negative, check_positive, check_sizes, check_whole
from softwarp.losses.contract import Card, Shard, Terms, Training, own_logits
from softwarp.losses.distances import init_proxies, widen
from softwarp.losses.from_pml import call_pml, pml_classifier, pml_loss, take_parameter


class ProxyAnchorLoss(nn.Module):
    """Proxies are anchors: each gathers its samples and repels the rest, by soft maxima over the batch."""

    distance = "cosine"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="Proxy-Anchor",
        citation="Kim, Kim, Cho, Kwak: Proxy Anchor Loss for Deep Metric Learning. CVPR 2020",
        equation="1/|C+| sum_{j in C+} log(1 + sum_{y = j} exp(-alpha (z.q_j - margin))) "
        "+ 1/C sum_j log(1 + sum_{y != j} exp(alpha (z.q_j + margin)))",
        kind="proxies",
        training=Training(
            by="official code",
            batch=120,
            optimizer="adamw",
            rate_ratio=100.0,
            details="ResNet50, 180 with BN-Inception; rate 1e-4, SOP 6e-4, weight decay 1e-4, 1 to 5 epochs"
            " of warm-up, steps of a half, SOP a quarter",
        ),
        search_space={"margin": ("float", 0.0, 0.4), "alpha": ("log", 2.0, 128.0)},
        notes="C+ are the classes in the batch. Proxies start with deviation sqrt(2 / C), as in the official "
        "code.",
    )

    def __init__(
        self, num_classes: int, embedding_size: int, *, margin: float = 0.1, alpha: float = 32.0
    ) -> None:
        super().__init__()
        check_not_negative(margin=margin)
        check_positive(alpha=alpha)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.pml = pml_loss("ProxyAnchorLoss", num_classes, embedding_size, margin=margin, alpha=alpha)
        self.proxies = nn.Parameter(take_parameter(self.pml, "proxies"))

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return call_pml(self, embeddings, labels, proxies=self.proxies)


class SoftTripleLoss(nn.Module):
    """A softmax over classes that have several centers each, with a soft choice among them."""

    distance = "cosine"
    class_vectors = "centers"
    card: ClassVar[Card] = Card(
        title="SoftTriple",
        citation="Qian, Shang, Sun, Hu, Li, Jin: SoftTriple Loss: Deep Metric Learning Without Triplet "
        "Sampling. ICCV 2019",
        equation="-log softmax_j(scale (S_ij - margin [j = y]))[y] + tau R, S_ij = sum_k softmax_k(z.w_jk / "
        "gamma) z.w_jk, R = sum_{j, k < l} |w_jk - w_jl| / (C K (K - 1))",
        kind="proxies",
        training=Training(
            by="official code",
            batch=32,
            rate_ratio=100.0,
            details="eps 0.01, rates 1e-4 and 0.01, weight decay 1e-4, 50 epochs, a tenth from 20 and 40 on",
        ),
        search_space={
            "scale": ("log", 0.5, 60.0),
            "gamma": ("log", 0.03, 0.5),
            "margin": ("float", 0.0, 0.2),
            "tau": ("float", 0.0, 0.4),
        },
        notes="w are unit centers, K = centers_per_class of them per class; scale is the paper's lambda. The "
        "term R is ours: pytorch-metric-learning's takes memory of (C K)^2. Centers start uniform up to "
        "1 / sqrt(C K), as in the official code.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        centers_per_class: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
    ) -> None:
        super().__init__()
        check_whole(centers_per_class=centers_per_class)
        check_positive(scale=scale, gamma=gamma)
        check_not_negative(margin=margin, tau=tau)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.tau = tau
        self.pml = pml_loss(
            "SoftTripleLoss",
            num_classes,
            embedding_size,
            centers_per_class=centers_per_class,
            la=scale,
            gamma=gamma,
            margin=margin,
        )
        centers = take_parameter(self.pml, "fc").T.reshape(num_classes, centers_per_class, embedding_size)
        self.centers = nn.Parameter(centers.contiguous())

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        value = call_pml(self, embeddings, labels, fc=self.centers.flatten(0, 1).T)
        return value + self.tau * spread_of_centers(self.centers)


def spread_of_centers(centers: Tensor) -> Tensor:
    """Return half the mean distance between two unit centers of a class, 0 if a class has only one.

    >>> import torch
    >>> spread_of_centers(torch.tensor([[[3.0, 0.0], [-1.0, 0.0]]]))
    tensor(1.)
    """
    classes, count, _ = centers.shape
    (unit,) = widen(normalize(centers, dim=2))
    distances = cdist(unit, unit, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.sum() / (2 * classes * max(1, count * (count - 1)))


class NormalizedSoftmaxLoss(nn.Module):
    """A softmax over cosines between sample and class weights."""

    distance = "cosine"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="Normalized softmax",
        citation="Zhai, Wu: Classification is a Strong Baseline for Deep Metric Learning. BMVC 2019",
        equation="-log softmax_j(z.q_j / temperature)[y]",
        kind="classifier",
        training=Training(
            by="official code",
            batch=(3, 25),
            optimizer="sgd",
            rate_ratio=1.0,
            details="CUB rate 0.001, Cars 0.01, SOP 15 x 5 and 0.01; momentum 0.9, weight decay 1e-4, 30 "
            "epochs, a tenth after 15",
        ),
        proxy_rate_ratio=5.0,
        search_space={"temperature": ("log", 0.01, 1.0)},
        notes="Class weights start like torch's linear layer, as in the official code; "
        "pytorch-metric-learning draws from N(0, 1).",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        temperature: float = 0.05,
        proxy_init: str = "linear",
    ) -> None:
        super().__init__()
        check_positive(temperature=temperature)
        self.num_classes, self.embedding_size = check_sizes(num_classes, embedding_size)
        self.pml = pml_classifier(
            "NormalizedSoftmaxLoss", num_classes, embedding_size, temperature=temperature
        )
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return call_pml(self, embeddings, labels, W=self.proxies.T)

    def terms(self, embeddings: Tensor, shard: Shard) -> Terms:
        """Return the loss in its parts, for the classes of a shard."""
        unit, keys = map(normalize, widen(embeddings, self.proxies))
        queries = unit / self.pml.temperature
        return Terms(queries=queries, keys=keys, own=own_logits(queries, keys, shard))
