"""ProxyNCA (Movshovitz-Attias et al. 2017): a sample's own proxy against all the others.

    loss_i = -log( exp(-scale |z_i - q_y|^2) / sum_{j != y} exp(-scale |z_i - q_j|^2) ),
    z = e / |e|,  q = p / |p|

| symbol | parameter | default | where |
|--------|-----------|---------|-------|
| d      | -         | -       | squared Euclidean distance between unit vectors |
| 1 / T  | scale     | 9.0     | as in ProxyNCA++, whose code has this loss too; the paper has none |

With its own proxy out of the denominator the loss is not a cross-entropy: it falls below zero, without
end as `scale` grows. Differs from the official code: none was published; the form in the code of
ProxyNCA++ is followed, in log-space, where the constants of |z - q|^2 = 2 - 2 z.q cancel.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from softwarp.losses.checks import check_positive, check_whole
from softwarp.losses.contract import Card, Training, phase_state, set_phase_state, set_scale, shown_settings
from softwarp.losses.distances import check_batch, check_finite, init_proxies, widen


def proxy_nca_loss(embeddings: Tensor, proxies: Tensor, labels: Tensor, *, scale: float = 9.0) -> Tensor:
    """Return the ProxyNCA loss for each sample, [N]; it may be negative.

    >>> proxies = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    >>> proxy_nca_loss(torch.tensor([[1.0, 0.0]]), proxies, torch.tensor([0]), scale=1.0)
    tensor([-4.])
    """
    check_batch(embeddings, proxies, labels)
    check_whole(at_least=2, num_classes=len(proxies))
    check_positive(scale=scale)
    target = labels.long()[:, None]
    with torch.autocast(embeddings.device.type, enabled=False):
        unit_embeddings, unit_proxies = map(normalize, widen(embeddings, proxies))
        logits = 2 * scale * unit_embeddings @ unit_proxies.T
        others = logits.scatter(1, target, -torch.inf)
        loss = others.logsumexp(dim=1) - logits.gather(1, target).squeeze(1)
    check_finite(loss, embeddings, proxies)
    return loss


class ProxyNCALoss(nn.Module):
    """The mean ProxyNCA loss over a batch, with one learned proxy per class."""

    distance = "cosine"
    class_vectors = "proxies"
    card: ClassVar[Card] = Card(
        title="ProxyNCA",
        citation="Movshovitz-Attias, Toshev, Leung, Ioffe, Singh: No Fuss Distance Metric Learning using "
        "Proxies. ICCV 2017",
        equation="scale |z_i - q_y|^2 + log sum_{j != y} exp(-scale |z_i - q_j|^2)",
        kind="proxies",
        training=Training(
            rate_ratio=100.0, details="no official code; as for ProxyNCA++ but with the usual eps"
        ),
        search_space={"scale": ("log", 1.0, 40.0)},
        notes="no official code; scale 9 and the start of the proxies are those of the code of ProxyNCA++",
    )

    scale: float

    def __init__(
        self, num_classes: int, embedding_size: int, *, scale: float = 9.0, proxy_init: str = "proxy_nca_pp"
    ) -> None:
        super().__init__()
        check_whole(at_least=2, num_classes=num_classes)
        self.proxies = init_proxies(num_classes, embedding_size, proxy_init)
        self.start_phase(scale=scale)

    start_phase, get_extra_state, set_extra_state = set_scale, phase_state, set_phase_state
    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return proxy_nca_loss(embeddings, self.proxies, labels, scale=self.scale).mean()
