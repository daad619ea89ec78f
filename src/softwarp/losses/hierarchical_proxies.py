"""Hierarchical proxies (Yang et al. 2022): any proxy loss, on the classes and on clusters of classes.

    L(E, y) = loss(E, P, y) + w loss(E, Q, k(y))
    k(c) = the k-means cluster of proxy p_c,   q_k = mean of the p_c with k(c) = k

| symbol | parameter      | default        | where |
|--------|----------------|----------------|-------|
| loss   | loss           | "proxy_nca_pp" | an entry of LOSSES with one proxy per class and nothing else |
| K      | coarse_classes | sqrt(C)        | ours: how many clusters |
| w      | weight         | 1.0            | ours |
| -      | refresh        | 100            | ours: forward passes in training between two k-means |

Further settings go to the wrapped loss. Under a cosine loss, p are the unit proxies. The clusters and the
count of passes are in the state dict. No official code was found, and the paper's constants were not
available to us; that q follows its p between refreshes, with gradient, is ours as well.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.functional import normalize

from softwarp.losses.checks import check_positive, check_whole
from softwarp.losses.contract import Card, Training, readings_of, shown_settings, start_phase
from softwarp.losses.distances import widen
from softwarp.losses.registry import build_loss


def cluster_proxies(proxies: Tensor, clusters: int, *, seed: int = 0) -> Tensor:
    """Return the k-means cluster of each proxy, [C], numbered without gaps: at most `clusters` of them.

    >>> cluster_proxies(torch.tensor([[0.0], [9.0], [0.1]]), 2).bincount().sort().values
    tensor([1, 2])
    """
    import faiss

    points = proxies.detach().float().cpu().contiguous().numpy()
    kmeans = faiss.Kmeans(
        points.shape[1],
        clusters,
        seed=seed,
        min_points_per_centroid=1,  # no warning for small clusters
        max_points_per_centroid=len(points),  # no silent subsampling
    )
    kmeans.train(points)
    found = torch.from_numpy(kmeans.assign(points)[1]).to(proxies.device)
    assignment: Tensor = found.unique(return_inverse=True)[1]
    return assignment


def cluster_means(proxies: Tensor, assignment: Tensor) -> Tensor:
    """Return the mean of each cluster's proxies, [K, D].

    >>> cluster_means(torch.tensor([[0.0], [9.0], [1.0]]), torch.tensor([0, 1, 0]))
    tensor([[0.5000],
            [9.0000]])
    """
    counts = assignment.bincount()
    sums = proxies.new_zeros(len(counts), proxies.shape[1]).index_add(0, assignment, proxies)
    return sums / counts[:, None]


class HierarchicalProxiesLoss(nn.Module):
    """A proxy loss on the classes plus `weight` times the same loss on clusters of classes.

    >>> loss = HierarchicalProxiesLoss(num_classes=10, embedding_size=4, loss="euclidean_softmax", scale=2.0)
    >>> loss(torch.randn(3, 4), torch.tensor([0, 5, 9])).shape
    torch.Size([])
    """

    distance = "cosine"  # the default's; each instance has that of the loss it wraps
    class_vectors = "fine.proxies"
    card: ClassVar[Card] = Card(
        title="Hierarchical proxies",
        citation="Yang, Bastan, Zhu, Gray, Samaras: Hierarchical Proxy-based Loss for Deep Metric Learning. "
        "WACV 2022",
        equation="loss(E, P, y) + w loss(E, Q, k(y)), Q = means of the k-means clusters k of P",
        kind="proxies",
        training=Training(rate_ratio=100.0, details="no official code, and we did not have the paper"),
        search_space={"weight": ("log", 0.1, 10.0)},
        notes="no official code; coarse_classes, weight, refresh and the gradient through the means are ours",
    )
    assignment: Tensor
    passes: Tensor

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        loss: str = "proxy_nca_pp",
        coarse_classes: int | None = None,
        weight: float = 1.0,
        refresh: int = 100,
        **settings: Any,
    ) -> None:
        super().__init__()
        self.fine = build_loss(loss, num_classes, embedding_size, **settings)
        check_wrapped(self.fine, loss, num_classes)
        coarse = round(math.sqrt(num_classes)) if coarse_classes is None else coarse_classes
        check_whole(coarse_classes=coarse, refresh=refresh)
        check_positive(weight=weight)
        if coarse > num_classes:
            raise ValueError(f"coarse_classes must be at most {num_classes}, got {coarse}")
        self.distance = str(self.fine.distance)
        self.coarse_classes, self.weight, self.refresh = int(coarse), weight, int(refresh)
        self.register_buffer("assignment", cluster_proxies(self._points(), self.coarse_classes))
        self.register_buffer("passes", torch.tensor(0))

    extra_repr = shown_settings

    @property
    def proxies(self) -> nn.Parameter:
        """The fine proxies, one per class."""
        return self.fine.get_parameter("proxies")

    def start_phase(self, **settings: Any) -> None:
        """Give the wrapped loss its settings for a new phase."""
        start_phase(self.fine, settings)

    def readings(self) -> dict[str, float]:
        """Return those of the wrapped loss."""
        return readings_of(self.fine)

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        fine: Tensor = self.fine(embeddings, labels)
        if self.training:
            if self.passes and self.passes % self.refresh == 0:
                self.assignment = cluster_proxies(self._points(), self.coarse_classes)
            self.passes += 1
        coarse_proxies = {"proxies": cluster_means(self._points(), self.assignment)}
        coarse_labels = self.assignment[labels.long()]
        with _with_classes(self.fine, self.coarse_classes):
            coarse: Tensor = functional_call(self.fine, coarse_proxies, (embeddings, coarse_labels))
        return fine + self.weight * coarse

    def _points(self) -> Tensor:
        (proxies,) = widen(self.proxies)
        return normalize(proxies) if self.distance == "cosine" else proxies


@contextmanager
def _with_classes(loss: nn.Module, classes: int) -> Iterator[None]:
    """Let a loss work with another number of classes, and count no step of training, for a while."""
    of_pml: Any = getattr(loss, "pml", None)
    training = loss.training
    before = getattr(of_pml, "num_classes", None)
    loss.eval()
    try:
        if before is not None:
            of_pml.num_classes = classes
        yield
    finally:
        if before is not None:
            of_pml.num_classes = before
        loss.train(training)


def check_wrapped(loss: nn.Module, name: str, num_classes: int) -> None:
    """Raise a ValueError unless the loss holds `proxies`, one per class, and no other vector or matrix."""
    tensors = dict(loss.named_parameters()) | dict(loss.named_buffers())
    proxies = tensors.pop("proxies", None)
    if proxies is None or len(proxies) != num_classes or any(tensor.dim() for tensor in tensors.values()):
        raise ValueError(
            f"{name} cannot be made hierarchical: that needs one proxy per class and nothing else that is "
            "learned or given by class, as in proxy_nca_pp"
        )
