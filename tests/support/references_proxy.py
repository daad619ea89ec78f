"""Slow loops in float64, from the equations: the proxy and classifier losses besides the warped softmax.

Each takes `(embeddings, labels, state, **settings)` and returns what the module's forward must return.
"""

import math

import numpy as np

from support.loss_cases import Array


def power(embeddings: Array, labels: Array, state, *, exponent=1.5, scale=1.0, proxy_init="") -> float:
    """Table 3: both distances to a power."""
    total = 0.0
    for e, y in zip(embeddings, labels, strict=True):
        t = [_distance(e, p) for p in state["proxies"]]
        total += _log_sum([scale * (t[y] ** exponent - other**exponent) for other in t])
    return total / len(labels)


def scaled(embeddings: Array, labels: Array, state, *, factor=1.1, scale=1.0, proxy_init="") -> float:
    """Table 3: the distance to its own proxy alone times a factor."""
    total = 0.0
    for e, y in zip(embeddings, labels, strict=True):
        t = [_distance(e, p) for p in state["proxies"]]
        gaps = [scale * (factor * t[y] - t[j]) for j in range(len(t)) if j != y]
        total += _log_sum([0.0, *gaps])
    return total / len(labels)


def magface(
    embeddings: Array,
    labels: Array,
    state,
    *,
    scale=64.0,
    lower_norm=10.0,
    upper_norm=110.0,
    lower_margin=0.45,
    upper_margin=0.8,
    regularizer=35.0,
    proxy_init="",
) -> float:
    """The angle itself plus a margin that grows with the bounded length, and the reward of length."""
    total = 0.0
    for e, y in zip(embeddings, labels, strict=True):
        length = min(max(_length(e), lower_norm), upper_norm)
        share = (length - lower_norm) / (upper_norm - lower_norm)
        margin = lower_margin + share * (upper_margin - lower_margin)
        angles = [math.acos(min(max(_cosine(e, p), -1.0), 1.0)) for p in state["proxies"]]
        if angles[y] < math.pi / 2:
            angles[y] += margin
        total += _softmax_loss([scale * math.cos(angle) for angle in angles], y)
        total += regularizer * (length / upper_norm**2 + 1 / length)
    return total / len(labels)


def l2_softmax(embeddings: Array, labels: Array, state, *, alpha=16.0, proxy_init="") -> float:
    """A linear classifier on embeddings of length alpha."""
    total = 0.0
    for e, y in zip(embeddings, labels, strict=True):
        fixed = alpha * e / _length(e)
        logits = [float(sum(w * fixed)) + b for w, b in zip(state["weight"], state["bias"], strict=True)]
        total += _softmax_loss(logits, y)
    return total / len(labels)


def cross_entropy(
    embeddings: Array,
    labels: Array,
    state,
    *,
    label_smoothing=0.1,
    dropout=0.0,
    feature_norm=False,
    proxy_init="",
) -> float:
    """The divergence of softmax from the smoothed target; the norm by the batch's own moments."""
    assert dropout == 0.0
    if feature_norm:
        columns = [(column - column.mean()) / math.sqrt(column.var() + 1e-5) for column in embeddings.T]
        embeddings = np.stack(columns, axis=1)
    classes, total = len(state["bias"]), 0.0
    for e, y in zip(embeddings, labels, strict=True):
        logits = [float(sum(w * e)) + b for w, b in zip(state["weight"], state["bias"], strict=True)]
        for j in range(classes):
            wanted = 1 - label_smoothing if j == y else label_smoothing / (classes - 1)
            if wanted > 0:
                total += wanted * (math.log(wanted) + _softmax_loss(logits, j))
    return total / len(labels)


def center_contrastive(
    embeddings: Array, labels: Array, state, *, scale=32.0, margin=0.1, weight=1.0, proxy_init=""
) -> float:
    """Softmax over centres on the sphere, less a margin, and the squared distance to its own centre."""
    total = 0.0
    for e, y in zip(embeddings, labels, strict=True):
        cosines = [_cosine(e, p) for p in state["proxies"]]
        logits = [scale * (cosine - margin * (j == y)) for j, cosine in enumerate(cosines)]
        own = state["proxies"][y]
        total += _softmax_loss(logits, y) + weight * _distance(e / _length(e), own / _length(own)) ** 2
    return total / len(labels)


def hierarchical_proxies(
    embeddings: Array,
    labels: Array,
    state,
    *,
    loss="proxy_nca_pp",
    weight=1.0,
    scale=9.0,
    coarse_classes=None,
    refresh=0,
) -> float:
    """The loss on the classes and, weighted, on the means of their clusters."""
    proxies, clusters = state["fine.proxies"], state["assignment"]
    points = [p / _length(p) if loss == "proxy_nca_pp" else p for p in proxies]
    coarse = []
    for cluster in range(int(max(clusters)) + 1):
        members = [point for point, found in zip(points, clusters, strict=True) if found == cluster]
        coarse.append(sum(members) / len(members))
    total = 0.0
    for e, y in zip(embeddings, labels, strict=True):
        for level, own, share in ((proxies, y, 1.0), (coarse, int(clusters[y]), weight)):
            if loss == "proxy_nca_pp":
                gaps = [_distance(e / _length(e), p / _length(p)) ** 2 for p in level]
            else:
                gaps = [_distance(e, p) for p in level]
            total += share * _softmax_loss([-scale * gap for gap in gaps], own)
    return total / len(labels)


def _length(vector: Array) -> float:
    return math.sqrt(sum(float(value) ** 2 for value in vector))


def _distance(first: Array, second: Array) -> float:
    return _length(first - second)


def _cosine(first: Array, second: Array) -> float:
    products = (float(a) * float(b) for a, b in zip(first, second, strict=True))
    return sum(products) / (_length(first) * _length(second))


def _log_sum(values: list[float]) -> float:
    top = max(values)
    return top + math.log(sum(math.exp(value - top) for value in values))


def _softmax_loss(logits: list[float], label: int) -> float:
    return _log_sum(logits) - logits[label]
