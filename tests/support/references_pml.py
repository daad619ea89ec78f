"""Slow loops in float64 for the losses that come from pytorch-metric-learning, written from the papers.

Each takes (embeddings, labels, state, **settings), as `loss_cases.Case` has it; defaults are the papers'.
"""

import math

import numpy as np

from support.loss_cases import Array


def unit(vector: Array) -> Array:
    return vector / math.sqrt(sum(vector**2))


def gap(a: Array, b: Array) -> float:
    return math.sqrt(sum((a - b) ** 2))


def log_sum_exp(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def mean_of_positive(values: list[float]) -> float:
    kept = [value for value in values if value > 0]
    return sum(kept) / len(kept) if kept else 0.0


def others(labels: Array, i: int, same: bool) -> list[int]:
    return [j for j in range(len(labels)) if j != i and (labels[i] == labels[j]) == same]


def contrastive(embeddings, labels, state, *, pos_margin=0.0, neg_margin=1.0):
    z = [unit(e) for e in embeddings]
    positive, negative = [], []
    for i in range(len(z)):
        positive += [max(0.0, gap(z[i], z[j]) - pos_margin) for j in others(labels, i, True)]
        negative += [max(0.0, neg_margin - gap(z[i], z[j])) for j in others(labels, i, False)]
    return mean_of_positive(positive) + mean_of_positive(negative)


def triplet(embeddings, labels, state, *, margin=0.2, mining="semihard"):
    z = [unit(e) for e in embeddings]
    values = []
    for a in range(len(z)):
        for p in others(labels, a, True):
            for n in others(labels, a, False):
                near, far = gap(z[a], z[p]) ** 2, gap(z[a], z[n]) ** 2
                semihard = near < far <= near + margin
                if {"semihard": semihard, "hard": far <= near, "all": far <= near + margin}[mining]:
                    values.append(near - far + margin)
    return mean_of_positive(values)


def n_pair(embeddings, labels, state, *, norm_penalty=0.002):
    members = {int(label): np.flatnonzero(labels == label) for label in np.unique(labels)}
    values = []
    for start in range(0, len(labels), 2):
        pairs = [(rows[start], rows[start + 1]) for rows in members.values() if len(rows) >= start + 2]
        if len(pairs) < 2:
            continue
        for anchor, positive in pairs:
            own = embeddings[anchor] @ embeddings[positive]
            values.append(
                math.log(
                    1
                    + sum(
                        math.exp(embeddings[anchor] @ embeddings[other] - own)
                        for _, other in pairs
                        if other != positive
                    )
                )
            )
    penalty = sum(sum(e**2) for e in embeddings) / len(embeddings)
    return sum(values) / len(values) + norm_penalty * penalty


def lifted_structure(embeddings, labels, state, *, margin=1.0):
    values = []
    for i in range(len(labels)):
        for j in others(labels, i, True):
            terms = [margin - gap(embeddings[i], embeddings[k]) for k in others(labels, i, False)]
            terms += [margin - gap(embeddings[j], embeddings[k]) for k in others(labels, j, False)]
            values.append(max(0.0, log_sum_exp(terms) + gap(embeddings[i], embeddings[j])) ** 2)
    return sum(values) / (2 * len(values))


def margin(embeddings, labels, state, *, margin=0.2, beta=1.2, nu=0.0, sampling="all"):
    assert sampling == "all"
    z, boundaries = [unit(e) for e in embeddings], state["boundaries"].tolist()
    total, count = 0.0, 0
    for a in range(len(z)):
        b = boundaries[int(labels[a])]
        for p in others(labels, a, True):
            for n in others(labels, a, False):
                inner = max(0.0, gap(z[a], z[p]) - b + margin)
                outer = max(0.0, b - gap(z[a], z[n]) + margin)
                total += inner + outer + nu * b
                count += (inner > 0) + (outer > 0)
    return total / count


def multi_similarity(embeddings, labels, state, *, alpha=2.0, beta=40.0, base=0.5, epsilon=0.1):
    z = [unit(e) for e in embeddings]
    total = 0.0
    for i in range(len(z)):
        near = [z[i] @ z[j] for j in others(labels, i, True)]
        far = [z[i] @ z[j] for j in others(labels, i, False)]
        hard_near = [s for s in near if s - epsilon < max(far)]
        hard_far = [s for s in far if s + epsilon > min(near)]
        total += math.log(1 + sum(math.exp(-alpha * (s - base)) for s in hard_near)) / alpha
        total += math.log(1 + sum(math.exp(beta * (s - base)) for s in hard_far)) / beta
    return total / len(z)


def circle(embeddings, labels, state, *, margin=0.4, gamma=80.0):
    z = [unit(e) for e in embeddings]
    values = []
    for i in range(len(z)):
        far = [z[i] @ z[j] for j in others(labels, i, False)]
        near = [z[i] @ z[j] for j in others(labels, i, True)]
        pushed = [gamma * max(0.0, s + margin) * (s - margin) for s in far]
        pulled = [-gamma * max(0.0, 1 + margin - s) * (s - (1 - margin)) for s in near]
        values.append(log_sum_exp([0.0, log_sum_exp(pushed) + log_sum_exp(pulled)]))
    return sum(values) / len(values)


def fast_ap(embeddings, labels, state, *, num_bins=10):
    z, width = [unit(e) for e in embeddings], 4 / num_bins
    values = []
    for i in range(len(z)):
        histogram = {True: np.zeros(num_bins + 1), False: np.zeros(num_bins + 1)}
        for same in (True, False):
            for j in others(labels, i, same):
                for b in range(num_bins + 1):
                    histogram[same][b] += max(0.0, 1 - abs(gap(z[i], z[j]) ** 2 - b * width) / width)
        precision = 0.0
        for b in range(num_bins + 1):
            above = sum(histogram[True][: b + 1])
            if histogram[True][b] > 0:
                precision += histogram[True][b] * above / (above + sum(histogram[False][: b + 1]))
        values.append(1 - precision / len(others(labels, i, True)))
    return sum(values) / len(values)


def supcon(embeddings, labels, state, *, temperature=0.1):
    z = [unit(e) for e in embeddings]
    values = []
    for i in range(len(z)):
        everyone = log_sum_exp([z[i] @ z[a] / temperature for a in range(len(z)) if a != i])
        positives = others(labels, i, True)
        values.append(-sum(z[i] @ z[p] / temperature - everyone for p in positives) / len(positives))
    return sum(values) / len(values)


def proxy_anchor(embeddings, labels, state, *, margin=0.1, alpha=32.0):
    z, q = [unit(e) for e in embeddings], [unit(p) for p in state["proxies"]]
    present, pulled, pushed = 0, 0.0, 0.0
    for j in range(len(q)):
        own = [-alpha * (z[i] @ q[j] - margin) for i in range(len(z)) if labels[i] == j]
        rest = [alpha * (z[i] @ q[j] + margin) for i in range(len(z)) if labels[i] != j]
        present += bool(own)
        pulled += log_sum_exp([0.0, *own])
        pushed += log_sum_exp([0.0, *rest])
    return pulled / present + pushed / len(q)


def soft_triple(
    embeddings, labels, state, *, centers_per_class=10, scale=20.0, gamma=0.1, margin=0.01, tau=0.2
):
    centers = [[unit(w) for w in row] for row in state["centers"]]
    assert all(len(row) == centers_per_class for row in centers)
    total = 0.0
    for i, e in enumerate(embeddings):
        logits = []
        for j, row in enumerate(centers):
            cosines = [unit(e) @ w for w in row]
            weights = [math.exp(cosine / gamma) for cosine in cosines]
            similarity = sum(w * c for w, c in zip(weights, cosines, strict=True)) / sum(weights)
            logits.append(scale * (similarity - (margin if j == labels[i] else 0.0)))
        total += log_sum_exp(logits) - logits[int(labels[i])]
    spread = sum(
        math.sqrt(2 - 2 * min(1.0, row[k] @ row[m]))
        for row in centers
        for k in range(centers_per_class)
        for m in range(k + 1, centers_per_class)
    )
    penalty = spread / (len(centers) * max(1, centers_per_class * (centers_per_class - 1)))
    return total / len(embeddings) + tau * penalty


def classifier(embeddings, labels, logits_of) -> float:
    """The mean over samples of -log softmax(logits_of(e, y))[y]."""
    total = 0.0
    for e, y in zip(embeddings, labels.astype(int), strict=True):
        logits = logits_of(e, y)
        total += log_sum_exp(logits) - logits[y]
    return total / len(embeddings)


def angle(a: Array, b: Array) -> float:
    return math.acos(max(-1.0, min(1.0, unit(a) @ unit(b))))


def normalized_softmax(embeddings, labels, state, *, temperature=0.05):
    return classifier(
        embeddings, labels, lambda e, y: [unit(e) @ unit(p) / temperature for p in state["proxies"]]
    )


def multiplied(t: float, margin: int) -> float:
    """psi of Eq. 6: (-1)^k cos(m t) - 2k for t in [k pi / m, (k + 1) pi / m]."""
    k = math.floor(t * margin / math.pi)
    return (-1) ** k * math.cos(margin * t) - 2 * k


def large_margin_softmax(
    embeddings, labels, state, *, margin=4, scale=1.0, first_plain=1000.0, plain_decay=0.12, last_plain=5.0
):
    plain = max(last_plain, first_plain / (1 + plain_decay * float(state["steps"])))

    def own(t):
        return (plain * math.cos(t) + multiplied(t, margin)) / (1 + plain)

    def logits(e, y):
        angles = [angle(e, p) for p in state["proxies"]]
        lengths = [scale * math.sqrt(sum(e**2)) * math.sqrt(sum(p**2)) for p in state["proxies"]]
        cosines = [own(t) if j == y else math.cos(t) for j, t in enumerate(angles)]
        return [length * cosine for length, cosine in zip(lengths, cosines, strict=True)]

    return classifier(embeddings, labels, logits)


def sphereface(embeddings, labels, state, *, proxy_init="unit", **settings):
    """How proxies were drawn does not matter: `state` has them."""
    state = state | {"proxies": np.array([unit(p) for p in state["proxies"]])}
    return large_margin_softmax(embeddings, labels, state, **settings)


def cosface(embeddings, labels, state, *, margin=0.35, scale=64.0):
    def logits(e, y):
        return [scale * (unit(e) @ unit(p) - margin * (j == y)) for j, p in enumerate(state["proxies"])]

    return classifier(embeddings, labels, logits)


def arcface(embeddings, labels, state, *, margin=0.5, scale=64.0):
    def logits(e, y):
        angles = [angle(e, p) for p in state["proxies"]]
        values = [math.cos(t) for t in angles]
        beyond = angles[y] > math.pi - margin
        values[y] = values[y] - margin * math.sin(margin) if beyond else math.cos(angles[y] + margin)
        return [scale * value for value in values]

    return classifier(embeddings, labels, logits)
