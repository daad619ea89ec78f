"""Black-box average precision and recall (Rolinek et al. 2020): true ranks, with an informative gradient.

    average precision:  loss_q = 1 - 1/|P_q| sum_{i in P_q} rank(i, P_q) / rank(i)
    recall:             loss_q = 1/|P_q| sum_{i in P_q} w(rank(i) - rank(i, P_q))
                        w(n) = log(1 + n)  or  log(1 + log(1 + n)),  n = negatives before i
    scores:             s_j - margin / 2 for positives, s_j + margin / 2 for negatives, s = cosine similarity

Ranks are steps; their gradient is that of a piecewise affine function between two rankings. With r(s) the
ranks over the length of the list and g = d loss / d r,

    d loss / d s = -(r(s) - r(s + lambda g)) / lambda

where loss is the mean over the queries. It is computed with the value, so that scaling the loss, for half
precision or for accumulation, only scales the gradient.

| symbol | parameter     | default  | where |
|--------|---------------|----------|-------|
| lambda | interpolation | 4.0      | not in the official code; ROADMAP's comparison uses it |
| alpha  | margin        | 0.02     | the same |
| w      | weighting     | "loglog" | the paper offers both; which its retrieval runs use is not in the code |

Ranks within the positives are constants. Of equal scores the earlier in the batch comes first. The query
is not in its own list. Samples that are alone in their class are ranked but are not queries.

Differs from the official code: its average precision (for detection) draws the margin as |N(0, 1)| for
each score; here it is the paper's constant. Its batch memory and the term between classes are not here.
Its recall brings ranks back to counts by the number of lists, here by their length.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from softwarp.losses.checks import check_choice, check_positive, check_sizes
from softwarp.losses.contract import Card, Training, shown_settings
from softwarp.losses.ranking import check_lists, find_queries, unit_rows

UNSAID = Training(details="the official code has no defaults; these are from ROADMAP's comparison")
OfRanks = Callable[[Tensor, Tensor, Tensor], Tensor]
WEIGHTINGS = {"log": torch.log1p, "loglog": lambda count: torch.log1p(torch.log1p(count))}


def blackbox_ap_loss(
    embeddings: Tensor, labels: Tensor, *, interpolation: float = 4.0, margin: float = 0.02
) -> Tensor:
    """Return one minus the average precision of each query, [Q].

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> blackbox_ap_loss(embeddings, torch.tensor([0, 0, 1, 1]))
    tensor([0., 0., 0., 0.])
    """

    def of_ranks(ranks: Tensor, within: Tensor, positive: Tensor) -> Tensor:
        return 1 - (within / ranks * positive).sum(1) / positive.sum(1)

    return _ranked_loss(embeddings, labels, of_ranks, interpolation=interpolation, margin=margin)


def blackbox_recall_loss(
    embeddings: Tensor,
    labels: Tensor,
    *,
    interpolation: float = 4.0,
    margin: float = 0.02,
    weighting: str = "loglog",
) -> Tensor:
    """Return the weighted number of negatives before the positives of each query, [Q].

    >>> embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> blackbox_recall_loss(embeddings, torch.tensor([0, 0, 1, 1])).max() < 1e-6
    tensor(True)
    """
    check_choice(weighting, WEIGHTINGS, "weighting")

    def of_ranks(ranks: Tensor, within: Tensor, positive: Tensor) -> Tensor:
        weighted = WEIGHTINGS[weighting]((ranks - within).masked_fill(~positive, 0))
        return weighted.sum(1) / positive.sum(1)

    return _ranked_loss(embeddings, labels, of_ranks, interpolation=interpolation, margin=margin)


def _ranked_loss(
    embeddings: Tensor, labels: Tensor, of_ranks: OfRanks, *, interpolation: float, margin: float
) -> Tensor:
    """Return the loss of each query, [Q], from ranks [Q, N], ranks among positives, and who is positive."""
    check_positive(interpolation=interpolation)
    with torch.autocast(embeddings.device.type, enabled=False):
        items = unit_rows(embeddings, labels)
        itself = torch.eye(len(items), dtype=torch.bool, device=items.device)
        same = labels[:, None] == labels
        queries = find_queries((same & ~itself).any(1))
        scores = items[queries] @ items.T - margin * (same[queries].to(items) - 0.5)
        # The query is ranked last and stays there, so it does not affect the others.
        scores = scores.masked_fill(itself[queries], -torch.inf)
        positive = (same & ~itself)[queries]
        order = scores.detach().argsort(dim=1, descending=True, stable=True)
        within = positive.gather(1, order).cumsum(1).gather(1, order.argsort(1))
        length = len(items) - 1
        losses: Tensor = _BlackBox.apply(
            scores, interpolation, lambda ranks: of_ranks(ranks * length, within, positive)
        )
        return losses


def normalised_ranks(scores: Tensor) -> Tensor:
    """Return the place of each score in its row, 1 for the largest, over the length without the query.

    >>> normalised_ranks(torch.tensor([[0.3, -torch.inf, 0.9]]))
    tensor([[1.0000, 1.5000, 0.5000]])
    """
    places = scores.argsort(dim=1, descending=True, stable=True).argsort(1) + 1
    return places.to(scores.dtype) / (scores.shape[1] - 1)


class _BlackBox(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, interpolation: float, of_ranks: Callable[[Tensor], Tensor]
    ) -> Tensor:
        ranks = normalised_ranks(scores)
        with torch.enable_grad():
            losses = of_ranks(ranks.requires_grad_())
            (gradient,) = torch.autograd.grad(losses.mean(), ranks)
        moved = normalised_ranks(scores + interpolation * gradient)
        ctx.save_for_backward((moved - ranks.detach()) * (len(scores) / interpolation))
        return losses.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (of_each,) = ctx.saved_tensors
        return gradient[:, None] * of_each, None, None


class BlackBoxAPLoss(nn.Module):
    """The mean black-box average precision loss over the queries of a batch."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="BlackBox AP",
        citation="Rolinek, Musil, Paulus, Vlastelica, Michaelis, Martius: Optimizing Rank-based Metrics with "
        "Blackbox Differentiation. CVPR 2020",
        equation="1 - mean_i rank(i, positives) / rank(i), gradient -(r(s) - r(s + lambda g)) / lambda",
        kind="ranking",
        training=UNSAID,
        search_space={"interpolation": ("log", 0.2, 50.0), "margin": ("log", 0.002, 0.2)},
        notes="A constant margin, no batch memory; lambda and margin from ROADMAP's comparison.",
    )

    def __init__(
        self, num_classes: int, embedding_size: int, *, interpolation: float = 4.0, margin: float = 0.02
    ) -> None:
        super().__init__()
        check_positive(interpolation=interpolation)
        self.sizes = check_sizes(num_classes, embedding_size)
        self.settings = {"interpolation": interpolation, "margin": margin}

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_lists(self.card, self.sizes, embeddings, labels)
        return blackbox_ap_loss(embeddings, labels, **self.settings).mean()


class BlackBoxRecallLoss(nn.Module):
    """The mean black-box recall loss over the queries of a batch."""

    distance = "cosine"
    class_vectors = None
    card: ClassVar[Card] = Card(
        title="BlackBox recall",
        citation=BlackBoxAPLoss.card.citation,
        equation="mean_i w(negatives before i), gradient -(r(s) - r(s + lambda g)) / lambda",
        kind="ranking",
        training=UNSAID,
        search_space={"interpolation": ("log", 0.2, 50.0), "margin": ("log", 0.002, 0.2)},
        notes="No batch memory; lambda and margin from ROADMAP's comparison, the default weighting is ours.",
    )

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        interpolation: float = 4.0,
        margin: float = 0.02,
        weighting: str = "loglog",
    ) -> None:
        super().__init__()
        check_positive(interpolation=interpolation)
        check_choice(weighting, WEIGHTINGS, "weighting")
        self.sizes = check_sizes(num_classes, embedding_size)
        self.settings: dict[str, Any] = {
            "interpolation": interpolation,
            "margin": margin,
            "weighting": weighting,
        }

    extra_repr = shown_settings

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        check_lists(self.card, self.sizes, embeddings, labels)
        return blackbox_recall_loss(embeddings, labels, **self.settings).mean()
