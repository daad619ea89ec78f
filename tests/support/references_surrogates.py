"""The gradients that are not their value's, as loops in float64: each is the derivative of a function here.

Each takes `(embeddings, labels, state, held_embeddings, held_state, **settings)`. What the loss holds fixed
in its gradient is computed from the held arguments, all else from the others; where both are equal, the
derivative for `embeddings` and `state` is the gradient that the loss states.
"""

import math

import numpy as np

from support.loss_cases import Array
from support.references_graph import log_softmax, unit
from support.references_pml import gap, log_sum_exp, others
from support.references_rank import contrastive, places, queries, shifted_scores, similarities


def warped_softmax(embeddings, labels, state, held_embeddings, held_state, *, scale=1.0, delta=1.0, **_):
    """Delta of Eq. 7 has a value and no gradient."""
    total = 0.0
    alpha, k1, k2 = (float(held_state[name]) for name in ("alpha", "k1", "k2"))
    for e, held, y in zip(embeddings, held_embeddings, labels, strict=True):
        t = [gap(e, p) for p in state["proxies"]]
        held_t = gap(held, held_state["proxies"][y])
        inside = k1 * t[y] + delta * (1 - k1) * held_t
        own = inside if held_t < alpha else k2 * t[y] + (1 - k2) * alpha
        total += log_sum_exp([0.0, *(scale * (own - t[j]) for j in range(len(t)) if j != y)])
    return total / len(labels)


def sgsl(
    embeddings, labels, state, _, held_state, *, scale=30.0, threshold=3.0, label_smoothing=0.4
) -> float:
    """The triplet sees a classifier that is held still."""
    entropy, triplet = 0.0, 0.0
    for e, y in zip(embeddings, labels, strict=True):
        for j, log_p in enumerate(log_softmax(state["classifier.weight"] @ e)):
            share = label_smoothing / (len(held_state["classifier.weight"]) - 1)
            entropy -= (1 - label_smoothing if j == y else share) * log_p
        cosines = [float(unit(w) @ unit(e)) for w in held_state["classifier.weight"]]
        hardest = log_sum_exp([scale * cosine for j, cosine in enumerate(cosines) if j != y]) / scale
        triplet += math.log(1 + math.exp(hardest - cosines[y]))
    entropy, triplet = entropy / len(labels), triplet / len(labels)
    return entropy + triplet if entropy <= threshold else entropy


def circle(embeddings, labels, state, held_embeddings, _, *, margin=0.4, gamma=80.0):
    """The weights of the pairs are held fixed."""
    s, held = similarities(embeddings), similarities(held_embeddings)
    total = 0.0
    for i in range(len(labels)):
        far, near = others(labels, i, False), others(labels, i, True)
        pushed = [gamma * max(0.0, held[i, j] + margin) * (s[i, j] - margin) for j in far]
        pulled = [-gamma * max(0.0, 1 + margin - held[i, j]) * (s[i, j] - (1 - margin)) for j in near]
        total += log_sum_exp([0.0, log_sum_exp(pushed) + log_sum_exp(pulled)])
    return total / len(labels)


def contextual(
    embeddings,
    labels,
    state,
    held_embeddings,
    _,
    *,
    neighbours=4,
    tolerance=0.05,
    gain=10.0,
    weights=(0.4, 0.5, 0.1),
):
    """A step has the slope `gain` for its closeness; thresholds and the sizes of neighbourhoods are held."""
    n = len(labels)
    s, held = (np.minimum(similarities(points), 1.0) for points in (embeddings, held_embeddings))

    def near(count: int) -> tuple[Array, Array]:
        closest = np.sort(held, axis=1)[:, ::-1][:, count - 1]
        steps = np.array(
            [[2 * (held[i, j] - closest[i]) + tolerance >= 0 for j in range(n)] for i in range(n)]
        )
        return steps + 2 * gain * (s - held), steps.sum(1)

    (wide, sizes), (narrow, _) = near(neighbours), near(neighbours // 2)
    overlap, expanded, total = np.zeros((n, n)), np.zeros((n, n)), 0.0
    for i, j in np.ndindex(n, n):
        both = sum(wide[i, m] * wide[j, m] for m in range(n)) / sizes[i]
        neither = sum((1 - wide[i, m]) * (1 - wide[j, m]) for m in range(n)) / (n - sizes[i])
        overlap[i, j] = (both + neither) / 2 * wide[i, j]
    for i, j in np.ndindex(n, n):
        mutual = [narrow[i, m] * narrow[m, i] for m in range(n)]
        expanded[i, j] = sum(mutual[m] * overlap[m, j] for m in range(n)) / sum(mutual)
    for i, j in np.ndindex(n, n):
        if i != j:
            total += ((labels[i] == labels[j]) - (expanded[i, j] + expanded[j, i]) / 2) ** 2
    pairs = contrastive(embeddings, labels, positive_margin=0.75, negative_margin=0.6)
    return weights[0] * total / n**2 + weights[1] * pairs + weights[2] * (s.mean() - 0.25) ** 2


def blackbox_ap(embeddings, labels, state, held_embeddings, _, *, interpolation=4.0, margin=0.02):
    """Affine between two rankings: r = place / length of a positive has the loss 1 - within / place."""

    def slope(place: int, within: int, length: int) -> float:
        return within / length / (place / length) ** 2

    weights = blackbox_weights(held_embeddings, labels, slope, interpolation, margin)
    return float((weights * similarities(embeddings)).sum())


def blackbox_recall(embeddings, labels, state, held_embeddings, _, *, interpolation=4.0, margin=0.02):
    """The same for log(1 + log(1 + place - within))."""

    def slope(place: int, within: int, length: int) -> float:
        before = place - within
        return length / (1 + before) / (1 + math.log(1 + before))

    weights = blackbox_weights(held_embeddings, labels, slope, interpolation, margin)
    return float((weights * similarities(embeddings)).sum())


def blackbox_weights(embeddings: Array, labels: Array, slope, interpolation: float, margin: float) -> Array:
    """d loss / d s_qj: how far a place moves when scores move by lambda times the slope of the loss."""
    s, asked = similarities(embeddings), queries(labels)
    weights = np.zeros_like(s)
    for q in asked:
        items, scores = shifted_scores(q, s, labels, margin)
        length, ranks = len(items), places(scores)
        own = [rank for rank, j in zip(ranks, items, strict=True) if labels[j] == labels[q]]
        slopes = [
            slope(rank, sum(other <= rank for other in own), length) / len(own) / len(asked)
            if labels[j] == labels[q]
            else 0.0
            for rank, j in zip(ranks, items, strict=True)
        ]
        moved = places([a + interpolation * g for a, g in zip(scores, slopes, strict=True)])
        for j, rank, new in zip(items, ranks, moved, strict=True):
            weights[q, j] = (new - rank) / length / interpolation
    return weights
