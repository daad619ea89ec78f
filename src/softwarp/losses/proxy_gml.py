"""ProxyGML, also Proxy-Few (Zhu et al. 2020): each sample is classified by its few nearest proxies.

    loss_i = -log softmax_{c in K_i}(S_ic)[y_i]  +  lambda mean_k -log softmax_c(R_kc)[y_k]
    S_ic = sum_{proxies q of c kept for i} z_i . q,   R_kc = sum_{proxies q of c} q_k . q,
    z = e / |e|,  q = p / |p|

Kept for i are its own N proxies and then the nearest others, ceil(r C N) in all; K_i are the classes
that have a kept proxy. The second term classifies the proxies themselves.

| symbol | parameter         | default | where |
|--------|-------------------|---------|-------|
| N      | proxies_per_class | 12      | CUB and Cars 12, SOP 1: the official README |
| r      | ratio             | 0.05    | share of all proxies that is kept |
| lambda | weight            | 0.3     | CUB and Cars 0.3, SOP 0 |

Differs from the official code: at least as many others as own proxies are kept (with r C <= 1 the
official code keeps none, and then the loss is zero whatever the embeddings); a class is left out when
none of its proxies is kept, not when its sum happens to be zero; no 1e-8 in the softmax, which is in
log-space; R comes from sums of proxies, so that C N x C N numbers are never held. Embeddings are
normalised here.
"""

import math
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, normalize

from softwarp.losses.checks import check_whole
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.distances import check_batch, check_finite, widen


def proxy_gml_loss(
    embeddings: Tensor, proxies: Tensor, labels: Tensor, *, ratio: float = 0.05, weight: float = 0.3
) -> Tensor:
    """Return the ProxyGML loss for each sample, [N], from proxies [C, proxies of a class, D].

    >>> proxies = torch.tensor([[[1.0, 0.0]], [[-1.0, 0.0]]])
    >>> proxy_gml_loss(torch.tensor([[0.0, 1.0]]), proxies, torch.tensor([0]), weight=0.0)
    tensor([0.6931])
    """
    check_batch(embeddings, proxies[:, 0], labels)
    with torch.autocast(embeddings.device.type, enabled=False):
        unit_embeddings, unit_proxies = widen(embeddings, proxies)
        unit_embeddings, unit_proxies = normalize(unit_embeddings), normalize(unit_proxies, dim=2)
        similarities = torch.einsum("nd,ckd->nck", unit_embeddings, unit_proxies)
        kept = nearest_proxies(similarities.detach(), labels.long(), ratio=ratio)
        scores = (similarities * kept).sum(dim=2).masked_fill(~kept.any(dim=2), -torch.inf)
        loss = cross_entropy(scores, labels.long(), reduction="none")
        if weight:
            loss = loss + weight * _proxy_loss(unit_proxies)
    check_finite(loss, embeddings, proxies.flatten(0, 1))
    return loss


def nearest_proxies(similarities: Tensor, labels: Tensor, *, ratio: float) -> Tensor:
    """Return which proxies are kept for each sample, as a mask of the shape of similarities."""
    samples, classes, each = similarities.shape
    count = min(max(math.ceil(ratio * classes * each), 2 * each), classes * each)
    own = torch.arange(classes, device=labels.device) == labels[:, None]
    ranking = similarities.masked_fill(own[:, :, None], torch.inf).flatten(1)
    kept = torch.zeros_like(ranking, dtype=torch.bool)
    return kept.scatter(1, ranking.topk(count, dim=1).indices, True).view(samples, classes, each)


def _proxy_loss(unit_proxies: Tensor) -> Tensor:
    classes, each, _ = unit_proxies.shape
    scores = unit_proxies.flatten(0, 1) @ unit_proxies.sum(dim=1).T
    return cross_entropy(scores, torch.arange(classes, device=scores.device).repeat_interleave(each))


class ProxyGMLLoss(nn.Module):
    """The mean ProxyGML loss over a batch, with several learned proxies per class."""

    distance = "cosine"
    class_vectors = "class_proxies"
    card: ClassVar[Card] = Card(
        title="ProxyGML (Proxy-Few)",
        citation="Zhu, Yang, Deng, Liu: Fewer is More: A Deep Graph Metric Learning Perspective Using Fewer "
        "Proxies. NeurIPS 2020",
        equation="-log softmax over classes of kept proxies (sum of kept z_i . q)[y_i] + weight CE(proxies)",
        kind="proxies",
        training=Training(
            by="official code",
            batch=32,
            rate_ratio=300.0,
            details="CUB and Cars, eps 0.01, rates 1e-4 and 0.03, weight decay 1e-4, 50 epochs, a tenth "
            "from 20 and 40 on; SOP with one proxy per class at rate 0.3",
        ),
        search_space={"ratio": ("log", 0.01, 0.5), "weight": ("float", 0.0, 1.0)},
        notes="at least as many proxies of other classes are kept as of its own class: ours, for few classes",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        proxies_per_class: int = 12,
        ratio: float = 0.05,
        weight: float = 0.3,
    ) -> None:
        super().__init__()
        check_whole(
            num_classes=num_classes, embedding_size=embedding_size, proxies_per_class=proxies_per_class
        )
        if not (0 < ratio <= 1 and weight >= 0):
            raise ValueError(f"ratio must be in (0, 1] and weight at least 0, got {ratio=}, {weight=}")
        bound = (num_classes * proxies_per_class) ** -0.5
        start = torch.empty(num_classes, proxies_per_class, embedding_size).uniform_(-bound, bound)
        self.class_proxies = nn.Parameter(start)  # `proxies` is the name where each class has one
        self.proxies_per_class, self.ratio, self.weight = proxies_per_class, ratio, weight

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return proxy_gml_loss(
            embeddings, self.class_proxies, labels, ratio=self.ratio, weight=self.weight
        ).mean()
