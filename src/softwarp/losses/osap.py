"""OSAP (Yuan et al. 2023): average precision by ranks that bound it, and a loss on what comes after.

We know the paper only by its abstract, and found no code: it asks for a rank function with
a tighter upper bound, and for a loss (OSP) over all positives and negatives that rank after each positive,
which treats each sample by itself. The equations below are the shortest we found that do so; they and all
constants are ours.

    loss_q = 1/|P_q| sum_{i in P_q} [ 1 - r+(i) / (r+(i) + r-(i)) + after_weight * after(i) ]
    r+(i)  = number of positives j with s_j >= s_i (i among them), without a gradient
    r-(i)  = sum over negatives j of H(s_j - s_i)
    H(x)   = 2 sigmoid(x / temperature) where x <= 0, 1 + slope x where x > 0
    after(i) = 1/scale log(1 + sum over negatives j with s_j < s_i of exp(scale (s_j - s_i + margin)))
             + 1/scale log(1 + sum over positives j with s_j < s_i of exp(scale (s_i - s_j - margin)))

| symbol | parameter    | default | where |
|--------|--------------|---------|-------|
|        | temperature  | 0.01    | ours, that of Smooth-AP |
|        | slope        | 10.0    | ours |
|        | scale        | 32.0    | ours |
|        | margin       | 0.1     | ours |
|        | after_weight | 1.0     | ours |

H is continuous, never below the step 1[x > 0] and, for x > 0, closer to it than that of ROADMAP. Average
precision is blind to what ranks after a positive: `after` pushes negatives there at least `margin` away
and pulls positives within `margin`, each with its own softmax weight. The query is not in its own
list. Samples that are alone in their class are ranked but are not queries. Memory stays within a block of
queries, which stands for the paper's two passes.

Differs from the official code: there is none.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from softwarp.losses.checks import check_not_negative, check_positive, check_sizes
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.distances import log_one_plus_sum
from softwarp.losses.ranking import Lists, check_lists, over_queries, unit_rows


def osap_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    temperature: float = 0.01,
    slope: float = 10.0,
    scale: float = 32.0,
    margin: float = 0.1,
    after_weight: float = 1.0,
) -> Tensor:
    """Return the loss of each query, [Q].

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [-1.0, 0.0]])
    >>> osap_loss(embeddings, torch.tensor([0, 0, 1, 1]))
    tensor([0., 0., 0., 0.])
    """
    check_positive(temperature=temperature, slope=slope, scale=scale)

    def loss(lists: Lists) -> Tensor:
        x, among = lists.gaps(), lists.own_gaps()
        negative, real = ~lists.same[:, None, :], lists.real[:, None, :]
        step = torch.where(x > 0, 1 + slope * x, 2 * torch.sigmoid(x / temperature))
        negatives = step.masked_fill(~negative, 0).sum(2)
        positives = ((among >= 0) & real).sum(2).clamp_min(1)
        pushed = log_one_plus_sum(scale * (x + margin), negative & (x < 0))
        pulled = log_one_plus_sum(scale * (-among - margin), real & (among < 0))
        after = (pushed + pulled) / scale
        return lists.mean(1 - positives / (positives + negatives) + after_weight * after)

    with torch.autocast(embeddings.device.type, enabled=False):
        items = unit_rows(embeddings, labels)
        return over_queries(loss, items, labels, with_query=False)


class OSAPLoss(nn.Module):
    """The mean OSAP loss over the queries of a batch."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="OSAP",
        citation="Yuan, Xu, Wang, Zhang, Liao, Wang, Lin: OSAP-Loss: Efficient optimization of average "
        "precision via involving samples after positive ones towards remote sensing image retrieval. CAAI "
        "Transactions on Intelligence Technology 8(4), 2023",
        equation="1 - mean_i r+(i) / (r+(i) + sum_negatives H(s_j - s_i)) + after_weight after(i)",
        kind="ranking",
        training=Training(details="no official code, and we did not have the paper"),
        search_space={"temperature": ("log", 0.002, 0.1), "after_weight": ("log", 0.1, 10.0)},
        notes="Built from the paper's abstract, we found no code: H, the loss on samples after each positive "
        "and all constants (temperature, slope, scale, margin, after_weight) are ours.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        temperature: float = 0.01,
        slope: float = 10.0,
        scale: float = 32.0,
        margin: float = 0.1,
        after_weight: float = 1.0,
    ) -> None:
        super().__init__()
        check_positive(temperature=temperature, slope=slope, scale=scale)
        check_not_negative(margin=margin, after_weight=after_weight)
        self.sizes = check_sizes(num_classes, embedding_size)
        self.settings: dict[str, Any] = {
            "temperature": temperature,
            "slope": slope,
            "scale": scale,
            "margin": margin,
            "after_weight": after_weight,
        }

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_lists(self.card, self.sizes, embeddings, labels)
        return osap_loss(embeddings, labels, **self.settings).mean()
