"""Slow loops in float64, written from the equations alone: what the losses over ranked lists are held to.

Each takes `(embeddings, labels, state, **settings)` and returns the scalar of the module's forward.
"""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def similarities(embeddings: Array) -> Array:
    unit = [row / math.sqrt(sum(row**2)) for row in np.asarray(embeddings, dtype=np.float64)]
    return np.array([[sum(a * b) for b in unit] for a in unit])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def queries(labels: Array) -> list[int]:
    return [q for q in range(len(labels)) if sum(labels == labels[q]) > 1]


def positives_of(q: int, labels: Array, *, with_query: bool) -> list[int]:
    return [i for i in range(len(labels)) if labels[i] == labels[q] and (with_query or i != q)]


def smooth_ap(embeddings: Array, labels: Array, state=None, *, temperature: float = 0.01) -> float:
    s = similarities(embeddings)
    losses = []
    for q in queries(labels):
        positives = positives_of(q, labels, with_query=True)
        precision = 0.0
        for i in positives:
            rank, rank_positive = 1.0, 1.0
            for j in range(len(labels)):
                if j != i:
                    before = sigmoid((s[q, j] - s[q, i]) / temperature)
                    rank += before
                    rank_positive += before if j in positives else 0.0
            precision += rank_positive / rank
        losses.append(1 - precision / len(positives))
    return float(np.mean(losses))


def sup_ap(embeddings: Array, labels: Array, *, temperature=0.01, slope=100.0, knee=0.05) -> float:
    def step(x: float) -> float:
        if x <= 0:
            return sigmoid(x / temperature)
        if x <= knee:
            return sigmoid(x / temperature) + 0.5
        return slope * (x - knee) + sigmoid(knee / temperature) + 0.5

    s = similarities(embeddings)
    losses = []
    for q in queries(labels):
        positives = positives_of(q, labels, with_query=True)
        precision = 0.0
        for i in positives:
            before = 1 + sum(s[q, j] >= s[q, i] for j in positives if j != i)
            wrong = sum(step(s[q, j] - s[q, i]) for j in range(len(labels)) if j not in positives)
            precision += before / (before + wrong)
        losses.append(1 - precision / len(positives))
    return float(np.mean(losses))


def contrastive(embeddings: Array, labels: Array, *, positive_margin: float, negative_margin: float) -> float:
    s = similarities(embeddings)
    far, near = [], []
    for i in range(len(labels)):
        for j in range(len(labels)):
            if labels[i] != labels[j]:
                near.append(max(0.0, s[i, j] - negative_margin))
            elif i != j:
                far.append(max(0.0, positive_margin - s[i, j]))
    total = 0.0
    for values in (far, near):
        wrong = [value for value in values if value > 0]
        total += sum(wrong) / len(wrong) if wrong else 0.0
    return total


def roadmap(
    embeddings: Array,
    labels: Array,
    state=None,
    *,
    positive_margin: float = 0.9,
    negative_margin: float = 0.6,
    calibration_weight: float = 1.0,
    **ranks: float,
) -> float:
    margins = {"positive_margin": positive_margin, "negative_margin": negative_margin}
    calibration = contrastive(embeddings, labels, **margins)
    return sup_ap(embeddings, labels, **ranks) + calibration_weight * calibration


def softbin_ap(embeddings: Array, labels: Array, state=None, *, bins: int = 20) -> float:
    s = similarities(embeddings)
    width = 2 / (bins - 1)
    losses = []
    for q in queries(labels):
        positives = positives_of(q, labels, with_query=True)
        precision, seen, seen_positive = 0.0, 0.0, 0.0
        for m in range(bins):
            centre = 1 - m * width
            share = [max(0.0, 1 - abs(min(1.0, x) - centre) / width) for x in s[q]]
            in_bin = sum(share[j] for j in positives)
            seen += sum(share)
            seen_positive += in_bin
            if seen > 0:
                precision += seen_positive / seen * in_bin / len(positives)
        losses.append(1 - precision)
    return float(np.mean(losses))


def shifted_scores(q: int, s: Array, labels: Array, margin: float) -> tuple[list[int], list[float]]:
    """The items of q's list, and their scores after the margin."""
    items = [j for j in range(len(labels)) if j != q]
    return items, [s[q, j] - margin * (0.5 if labels[j] == labels[q] else -0.5) for j in items]


def places(scores: list[float]) -> list[int]:
    """The rank of each score, 1 for the largest; of equal ones the earlier comes first."""
    return [
        1 + sum(b > a for b in scores) + sum(b == a for b in scores[:index]) for index, a in enumerate(scores)
    ]


def blackbox_ap(
    embeddings: Array, labels: Array, state=None, *, interpolation: float = 4.0, margin: float = 0.02
) -> float:
    s = similarities(embeddings)
    losses = []
    for q in queries(labels):
        items, scores = shifted_scores(q, s, labels, margin)
        ranks = places(scores)
        own = [rank for rank, j in zip(ranks, items, strict=True) if labels[j] == labels[q]]
        losses.append(1 - np.mean([sum(other <= rank for other in own) / rank for rank in own]))
    return float(np.mean(losses))


def blackbox_recall(
    embeddings: Array,
    labels: Array,
    state=None,
    *,
    interpolation: float = 4.0,
    margin: float = 0.02,
    weighting: str = "loglog",
) -> float:
    s = similarities(embeddings)
    losses = []
    for q in queries(labels):
        items, scores = shifted_scores(q, s, labels, margin)
        ranks = places(scores)
        total, count = 0.0, 0
        for rank, j in zip(ranks, items, strict=True):
            if labels[j] != labels[q]:
                continue
            before = sum(
                other < rank and labels[k] != labels[q] for other, k in zip(ranks, items, strict=True)
            )
            weight = math.log(1 + before)
            total += weight if weighting == "log" else math.log(1 + weight)
            count += 1
        losses.append(total / count)
    return float(np.mean(losses))


def recall_at_k(
    embeddings: Array,
    labels: Array,
    state=None,
    *,
    cutoffs=(1, 2, 4, 8, 16),
    rank_temperature: float = 0.01,
    recall_temperature=1.0,
    query_ranked: bool = False,
    shares: Array | None = None,
) -> float:
    """With `shares`, one for each pair of a class in order, SiMix."""
    unit = [row / math.sqrt(sum(row**2)) for row in embeddings]
    labels = list(labels)
    if shares is not None:
        number = len(labels)
        drawn = iter(shares)
        for i in range(number):
            for j in range(i + 1, number):
                if labels[i] == labels[j]:
                    share = next(drawn)
                    unit.append(share * unit[i] + (1 - share) * unit[j])
                    labels.append(labels[i])
    labels = np.array(labels)
    losses = []
    for q in queries(labels):
        s = [sum(unit[q] * item) for item in unit]
        positives = positives_of(q, labels, with_query=False)
        ranked = [j for j in range(len(s)) if j != q or query_ranked]
        ranks = [
            1 + sum(sigmoid((s[j] - s[i]) / rank_temperature) for j in ranked if j != i) for i in positives
        ]
        recalls = []
        for k, temperature in zip(cutoffs, np.broadcast_to(recall_temperature, len(cutoffs)), strict=True):
            found = sum(sigmoid((k - rank) / temperature) for rank in ranks)
            recalls.append(min(found, k) / min(k, len(positives)))
        losses.append(1 - np.mean(recalls))
    return float(np.mean(losses))


def contextual(
    embeddings: Array,
    labels: Array,
    state=None,
    *,
    neighbours: int = 4,
    tolerance: float = 0.05,
    gain: float = 10.0,
    positive_margin: float = 0.75,
    negative_margin: float = 0.6,
    mean_similarity: float = 0.25,
    contextual_weight: float = 0.4,
    contrastive_weight: float = 0.5,
    mean_weight: float = 0.1,
) -> float:
    s = similarities(embeddings)
    n = len(labels)
    distance = [[max(0.0, 2 - 2 * s[i, j]) for j in range(n)] for i in range(n)]

    def near(count: int) -> list[list[bool]]:
        return [[d <= tolerance + sorted(row)[count - 1] for d in row] for row in distance]

    k = min(neighbours, n)
    wide, narrow = near(k), near(max(1, k // 2))
    overlap = np.zeros((n, n))
    for i in range(n):
        size = sum(wide[i])
        for j in range(n):
            if wide[i][j]:
                both = sum(wide[i][m] and wide[j][m] for m in range(n))
                neither = sum(not wide[i][m] and not wide[j][m] for m in range(n))
                overlap[i, j] = (both / size + (neither / (n - size) if size < n else 0.0)) / 2
    expanded = np.zeros((n, n))
    for i in range(n):
        mutual = [j for j in range(n) if narrow[i][j] and narrow[j][i]]
        for j in mutual:
            expanded[i] += overlap[j] / len(mutual)
    total = 0.0
    for i in range(n):
        for j in range(n):
            if i != j:
                total += ((labels[i] == labels[j]) - (expanded[i, j] + expanded[j, i]) / 2) ** 2
    margins = {"positive_margin": positive_margin, "negative_margin": negative_margin}
    return (
        contextual_weight * total / n**2
        + contrastive_weight * contrastive(embeddings, labels, **margins)
        + mean_weight * (s.mean() - mean_similarity) ** 2
    )


def osap(
    embeddings: Array,
    labels: Array,
    state=None,
    *,
    temperature: float = 0.01,
    slope: float = 10.0,
    scale: float = 32.0,
    margin: float = 0.1,
    after_weight: float = 1.0,
) -> float:
    s = similarities(embeddings)
    losses = []
    for q in queries(labels):
        positives = positives_of(q, labels, with_query=False)
        negatives = [j for j in range(len(labels)) if labels[j] != labels[q]]
        total = 0.0
        for i in positives:
            wrong = 0.0
            for j in negatives:
                x = s[q, j] - s[q, i]
                wrong += 1 + slope * x if x > 0 else 2 * sigmoid(x / temperature)
            right = sum(s[q, j] >= s[q, i] for j in positives)
            push = sum(math.exp(scale * (s[q, j] - s[q, i] + margin)) for j in negatives if s[q, j] < s[q, i])
            pull = sum(math.exp(scale * (s[q, i] - s[q, j] - margin)) for j in positives if s[q, j] < s[q, i])
            after = (math.log(1 + push) + math.log(1 + pull)) / scale
            total += 1 - right / (right + wrong) + after_weight * after
        losses.append(total / len(positives))
    return float(np.mean(losses))
