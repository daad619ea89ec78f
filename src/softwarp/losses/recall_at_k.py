"""Recall@k surrogate, RS@k (Patel et al. 2022): both steps of recall, rank and cut-off, become sigmoids.

    loss_q = 1 - mean_k recall_q(k)
    recall_q(k) = min(k, sum_{i in P_q} sigmoid((k - rank(i)) / tau_2)) / min(k, |P_q|)
    rank(i) = 1 + sum_{j != i} sigmoid((s_qj - s_qi) / tau_1),   s = cosine similarity

| symbol | parameter          | default          | where |
|--------|--------------------|------------------|-------|
| tau_1  | rank_temperature   | 0.01             | section 4 of the paper, official default |
| tau_2  | recall_temperature | 1.0              | section 4; the script had k for cutoff k until 11/2024 |
| k      | cutoffs            | 1, 2, 4, 8, 16   | the same |
|        | mix                | False            | SiMix, section 3 of the paper |
|        | query_ranked       | False            | whether the query is among the j, as in the official code |

SiMix: each pair of a class adds a virtual item a z_i + (1 - a) z_j, a uniform in 0 to 1, with that class
and not normalised again; virtual items are ranked and are queries, so that 4 per class become 10. The
official batches hold 400 (CUB), 392 (Cars) or 4000 (SOP) images. Samples that are alone in their class
are ranked but are not queries.

Differs from the official code, unless query_ranked: as in the paper, the query is not among the items j; in
the official code it is, which adds about 1 to each rank. Any order and any class counts are fine.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from softwarp.losses.checks import check_positive, check_sizes
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.ranking import Lists, check_lists, over_queries, unit_rows

CUTOFFS = (1, 2, 4, 8, 16)


def recall_at_k_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    cutoffs: Sequence[int] = CUTOFFS,
    rank_temperature: float = 0.01,
    recall_temperature: float | Sequence[float] = 1.0,
    mix: bool = False,
    query_ranked: bool = False,
) -> Tensor:
    """Return one minus the mean surrogate recall of each query, [Q].

    Args:
        recall_temperature: one for all cutoffs, or one for each.

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> recall_at_k_loss(embeddings, torch.tensor([0, 0, 1, 1]), cutoffs=[1])
    tensor([0.5000, 0.5000, 0.5000, 0.5000])
    """
    check_cutoffs(cutoffs, recall_temperature)
    check_positive(rank_temperature=rank_temperature)

    def loss(lists: Lists) -> Tensor:
        # Beside its rank of 1, each positive meets itself in the sum, which adds sigmoid(0) = 1/2.
        rank = 0.5 + torch.sigmoid(lists.gaps() / rank_temperature).sum(2)
        k = torch.tensor(cutoffs, dtype=rank.dtype, device=rank.device)
        temperature = torch.as_tensor(recall_temperature, dtype=rank.dtype, device=rank.device)
        hits = torch.sigmoid((k - rank[:, :, None]) / temperature) * lists.real[:, :, None]
        most = torch.minimum(k, lists.real.sum(1, keepdim=True))
        return 1 - (torch.minimum(hits.sum(1), k) / most).mean(1)

    with torch.autocast(embeddings.device.type, enabled=False):
        items = unit_rows(embeddings, labels)
        if mix:
            items, labels = similarity_mixup(items, labels)
        return over_queries(loss, items, labels, with_query=False, query_ranked=query_ranked)


def similarity_mixup(items: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return items and labels with a mixture of each pair of a class appended, by torch's generator.

    >>> items, labels = similarity_mixup(torch.randn(5, 2), torch.tensor([0, 0, 0, 1, 1]))
    >>> labels.tolist()
    [0, 0, 0, 1, 1, 0, 0, 0, 1]
    """
    first, second = (labels[:, None] == labels).triu(1).nonzero().T
    share = torch.rand(len(first), 1, dtype=items.dtype, device=items.device)
    mixed = share * items[first] + (1 - share) * items[second]
    return torch.cat([items, mixed]), torch.cat([labels, labels[first]])


def check_cutoffs(cutoffs: Sequence[int], temperature: float | Sequence[float]) -> None:
    """Raise a ValueError unless there are cutoffs of at least 1, and a temperature for all or for each."""
    if not len(cutoffs) or min(cutoffs) < 1:
        raise ValueError(f"cutoffs must be numbers of at least 1, such as 1, 2, 4, got {list(cutoffs)}")
    temperatures = [temperature] * len(cutoffs) if isinstance(temperature, int | float) else temperature
    if len(temperatures) != len(cutoffs):
        raise ValueError(f"recall_temperature has {len(temperatures)} values for {len(cutoffs)} cutoffs")
    for value in temperatures:
        check_positive(recall_temperature=value)


class RecallAtKLoss(nn.Module):
    """The mean RS@k loss over the queries of a batch."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="RS@k",
        citation="Patel, Tolias, Matas: Recall@k Surrogate Loss with Large Batches and Similarity Mixup. "
        "CVPR 2022",
        equation="1 - mean_k min(k, sum_i sigmoid((k - rank(i)) / tau_2)) / min(k, |P|)",
        kind="ranking",
        training=Training(
            by="official code",
            batch=(100, 4),
            details="CUB rate 1e-4, 40 epochs; Cars 98 x 4, 1e-4, 170 epochs; SOP 1000 x 4, 2e-4, 55 "
            "epochs; weight decay 4e-4",
        ),
        search_space={
            "rank_temperature": ("log", 0.002, 0.1),
            "recall_temperature": ("log", 0.3, 3.0),
        },
        notes="The query is not among the items it ranks, as in the paper; in the official code it is: "
        "query_ranked. Its script had recall_temperature k for cutoff k until November 2024, since then 1.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        cutoffs: Sequence[int] = CUTOFFS,
        rank_temperature: float = 0.01,
        recall_temperature: float | Sequence[float] = 1.0,
        mix: bool = False,
        query_ranked: bool = False,
    ) -> None:
        super().__init__()
        check_cutoffs(cutoffs, recall_temperature)
        check_positive(rank_temperature=rank_temperature)
        self.sizes = check_sizes(num_classes, embedding_size)
        self.settings: dict[str, Any] = {
            "cutoffs": tuple(cutoffs),
            "rank_temperature": rank_temperature,
            "recall_temperature": recall_temperature,
            "mix": mix,
            "query_ranked": query_ranked,
        }

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_lists(self.card, self.sizes, embeddings, labels)
        return recall_at_k_loss(embeddings, labels, **self.settings).mean()
