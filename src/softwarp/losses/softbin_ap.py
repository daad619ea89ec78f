"""SoftBin average precision (Revaud et al. 2019): precision and recall from a soft histogram of similarities.

    loss_q = 1 - sum_m precision_m * recall_m,   bins m = 1 ... M from similarity 1 down to -1
    d_m(s)      = max(0, 1 - |s - b_m| / Delta),   b_m = 1 - (m - 1) Delta,   Delta = 2 / (M - 1)
    precision_m = sum_{k <= m} sum_{j in P_q} d_k(s_qj) / sum_{k <= m} sum_j d_k(s_qj)
    recall_m    = sum_{j in P_q} d_m(s_qj) / |P_q|

| symbol | parameter | default | where |
|--------|-----------|---------|-------|
| M      | bins      | 20      | the paper's choice, section 4 |

The query is in its own list and in P_q, as in the official code. Samples that are alone in their class
are ranked but are not queries.

Differs from the official code: none in value; memory stays within a block of queries.
"""

from typing import ClassVar

import torch
from torch import Tensor, nn

from softwarp.losses.checks import check_sizes, check_whole
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.ranking import Lists, check_lists, over_queries, unit_rows


def softbin_ap_loss(embeddings: Tensor, labels: Tensor, *, bins: int = 20) -> Tensor:
    """Return one minus the binned average precision of each query, [Q].

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    >>> softbin_ap_loss(embeddings, torch.tensor([0, 0, 1, 1]))
    tensor([0., 0., 0., 0.])
    """
    check_whole(at_least=2, bins=bins)

    def loss(lists: Lists) -> Tensor:
        positive, every = _histograms(lists, bins)
        # Bins before the first item are empty in both sums.
        precision = positive.cumsum(1) / every.cumsum(1).clamp_min(torch.finfo(every.dtype).tiny)
        return 1 - (precision * positive).sum(1) / lists.real.sum(1)

    with torch.autocast(embeddings.device.type, enabled=False):
        items = unit_rows(embeddings, labels)
        return over_queries(loss, items, labels, with_query=True, width=bins)


def _histograms(lists: Lists, bins: int) -> tuple[Tensor, Tensor]:
    similarities = lists.similarities.clamp(-1, 1)  # beyond is rounding
    centres = torch.linspace(1, -1, bins, dtype=similarities.dtype, device=similarities.device)
    share = torch.relu(1 - (similarities[:, :, None] - centres).abs() * (bins - 1) / 2)
    return (share * lists.same[:, :, None]).sum(1), share.sum(1)


class SoftBinAPLoss(nn.Module):
    """The mean SoftBin loss over the queries of a batch."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="SoftBin AP",
        citation="Revaud, Almazan, Rezende, de Souza: Learning with Average Precision: Training Image "
        "Retrieval with a Listwise Loss. ICCV 2019",
        equation="1 - sum_m precision_m recall_m over M triangular bins of the similarity",
        kind="ranking",
        training=Training(
            details="from ROADMAP's comparison; the paper's batches hold thousands of landmarks"
        ),
        search_space={"bins": ("float", 10, 40)},
        notes="Batches of thousands in the paper.",
    )

    def __init__(self, num_classes: int, embedding_size: int, *, bins: float = 20) -> None:
        super().__init__()
        check_whole(at_least=2, bins=round(bins))
        self.sizes = check_sizes(num_classes, embedding_size)
        self.bins = round(bins)  # a search tries numbers that are not whole

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_lists(self.card, self.sizes, embeddings, labels)
        return softbin_ap_loss(embeddings, labels, bins=self.bins).mean()
