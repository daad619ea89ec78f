"""ProxyNCA++ (Teh et al. 2020): softmax over squared distances between unit vectors and unit proxies.

    loss_i = -log softmax_j(-scale |z_i - q_j|^2)[y_i],   z = e / |e|,  q = p / |p|

| symbol | parameter | default | where |
|--------|-----------|---------|-------|
| 1 / T  | scale     | 9.0     | the official code scales both vectors by 3, which is 9 on the squares |

The closest relative of the warped softmax: one proxy per class and a softmax over distances, but on the
sphere and without a warp. Differs from the official code: none in value; the product form
|z - q|^2 = 2 - 2 z.q is used, and the constant leaves the softmax.
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
    set_scale,
    shown_settings,
)
from softwarp.losses.distances import check_batch, check_finite, init_proxies, widen


def proxy_nca_pp_loss(embeddings: Tensor, proxies: Tensor, labels: Tensor, *, scale: float = 9.0) -> Tensor:
    """Return the ProxyNCA++ loss for each sample, [N].

    >>> proxies = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> proxy_nca_pp_loss(torch.tensor([[0.0, 1.0]]), proxies, torch.tensor([0]))
    tensor([0.6931])
    """
    check_batch(embeddings, proxies, labels)
    check_positive(scale=scale)
    with torch.autocast(embeddings.device.type, enabled=False):
        unit_embeddings, unit_proxies = map(normalize, widen(embeddings, proxies))
        logits = 2 * scale * unit_embeddings @ unit_proxies.T
        loss = cross_entropy(logits, labels.long(), reduction="none")
    check_finite(loss, embeddings, proxies)
    return loss


class ProxyNCAppLoss(nn.Module):
    """The mean ProxyNCA++ loss over a batch, with one learned proxy per class."""

    distance = "cosine"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="ProxyNCA++",
        citation="Teh, DeVries, Taylor: ProxyNCA++: Revisiting and Revitalizing Proxy Neighborhood Component "
        "Analysis. ECCV 2020",
        equation="-log softmax_j(-scale |z_i - q_j|^2)[y_i]",
        kind="proxies",
        training=Training(
            by="official code",
            batch=(8, 4),
            rate_ratio=100000.0,
            details="CUB and Cars, eps 1, rates 0.004 and 400 after 5 epochs of warm-up; SOP 64 x 3, rates "
            "0.024 and 240",
        ),
        proxy_rate_ratio=100.0,
        search_space={"scale": ("log", 0.3, 100.0)},
    )

    scale: float

    def __init__(
        self, num_classes: int, embedding_size: int, *, scale: float = 9.0, proxy_init: str = "proxy_nca_pp"
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.start_phase(scale=scale)

    start_phase, get_extra_state, set_extra_state = set_scale, phase_state, set_phase_state
    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return proxy_nca_pp_loss(embeddings, self.proxies, labels, scale=self.scale).mean()

    def terms(self, embeddings: Tensor, shard: Shard) -> Terms:
        """Return the loss in its parts, for the classes of a shard."""
        unit_embeddings, unit_proxies = map(normalize, widen(embeddings, self.proxies))
        queries = 2 * self.scale * unit_embeddings
        return Terms(queries=queries, keys=unit_proxies, own=own_logits(queries, unit_proxies, shard))
