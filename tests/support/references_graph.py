"""Slow loops in float64 from the equations: losses with graphs, networks, classifiers and pair statistics.

Each takes `(embeddings, labels, state, **settings)` and returns the value of the module's forward while it
trains; `state` is the module's state dict as arrays.
"""

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = Mapping[str, Array]


def proxy_nca(embeddings: Array, labels: Array, state: State, *, scale: float = 9.0) -> float:
    total = 0.0
    for e, y in zip(embeddings, labels, strict=True):
        d = [sum((unit(e) - unit(p)) ** 2) for p in state["proxies"]]
        others = sum(math.exp(-scale * d[j]) for j in range(len(d)) if j != y)
        total += -math.log(math.exp(-scale * d[y]) / others)
    return total / len(labels)


def proxy_gml(
    embeddings: Array, labels: Array, state: State, *, proxies_per_class=12, ratio=0.05, weight=0.3
) -> float:
    classes, each, _ = state["class_proxies"].shape
    assert each == proxies_per_class
    proxies = [(c, unit(p)) for c in range(classes) for p in state["class_proxies"][c]]
    count = min(max(math.ceil(ratio * classes * each), 2 * each), classes * each)
    total = 0.0
    for e, y in zip(embeddings, labels, strict=True):
        ranked = sorted(proxies, key=lambda proxy: (proxy[0] != y, -float(unit(e) @ proxy[1])))
        scores: dict[int, float] = {}
        for c, p in ranked[:count]:
            scores[c] = scores.get(c, 0.0) + float(unit(e) @ p)
        total += math.log(sum(map(math.exp, scores.values()))) - scores[int(y)]
    loss = total / len(labels)
    for c, p in proxies:
        scores = {k: sum(float(p @ q) for j, q in proxies if j == k) for k in range(classes)}
        loss += weight * (math.log(sum(map(math.exp, scores.values()))) - scores[c]) / len(proxies)
    return loss


def sgsl(
    embeddings: Array, labels: Array, state: State, *, scale=30.0, threshold=3.0, label_smoothing=0.4
) -> float:
    weights = state["classifier.weight"]
    classes = len(weights)
    entropy, triplet = 0.0, 0.0
    for e, y in zip(embeddings, labels, strict=True):
        log_p = log_softmax([float(w @ e) for w in weights])
        for j in range(classes):
            entropy -= (1 - label_smoothing if j == y else label_smoothing / (classes - 1)) * log_p[j]
        cosines = [float(unit(w) @ unit(e)) for w in weights]
        hardest = math.log(sum(math.exp(scale * cosines[j]) for j in range(classes) if j != y)) / scale
        triplet += math.log(1 + math.exp(hardest - cosines[y]))
    entropy, triplet = entropy / len(labels), triplet / len(labels)
    return entropy + triplet if entropy <= threshold else entropy


def cbml(
    embeddings: Array,
    labels: Array,
    state: State,
    *,
    positive_center=0.5,
    positive_width=0.5,
    negative_center=1.0,
    negative_width=0.01,
    margin=0.1,
    weight=1.0,
    balance=0.2,
) -> float:
    n, total = len(labels), 0.0
    for i in range(n):
        similarity = [float(unit(embeddings[i]) @ unit(embeddings[j])) for j in range(n)]
        positives = [similarity[j] for j in range(n) if j != i and labels[j] == labels[i]]
        negatives = [similarity[j] for j in range(n) if labels[j] != labels[i]]
        if not positives or not negatives:
            continue
        hard_positives = [s for s in positives if s - margin < max(negatives)]
        hard_negatives = [s for s in negatives if s + margin > min(positives)]
        if not hard_positives or not hard_negatives:
            continue
        total += math.log(1 + sum(math.exp(-(s - positive_center) / positive_width) for s in hard_positives))
        total += math.log(1 + sum(math.exp((s - negative_center) / negative_width) for s in hard_negatives))
        center = balance * sum(positives) / len(positives)
        center += (1 - balance) * sum(negatives) / len(negatives)
        total += weight * sum((s - center) ** 2 for s in negatives)
    return total / n


def hist(
    embeddings: Array, labels: Array, state: State, *, tau=32.0, alpha=1.1, weight=1.0, hidden=512
) -> float:
    n, present = len(labels), sorted(set(labels.tolist()))
    d = np.zeros((n, len(state["means"])))
    for i in range(n):
        for c, (mean, log_variance) in enumerate(zip(state["means"], state["log_variances"], strict=True)):
            for z, m, v in zip(unit(embeddings[i]), unit(mean), log_variance, strict=True):
                d[i, c] += (z - m) ** 2 / math.exp(min(max(v, 0.0), 6.0))
    h = np.array([[1.0 if labels[i] == c else math.exp(-alpha * d[i, c]) for c in present] for i in range(n)])
    g = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            reach = sum(h[i, c] * h[j, c] / sum(h[:, c]) for c in range(len(present)))
            g[i, j] = reach / math.sqrt(sum(h[i]) * sum(h[j]))
    inputs = np.array([layer_norm(e) for e in embeddings])
    first = g @ linear(inputs, state, "network.first")
    assert first.shape[1] == hidden
    first = batch_norm(first, state["network.norm.weight"], state["network.norm.bias"])
    logits = g @ linear(np.where(first > 0, first, 0.1 * first), state, "network.second")
    loss = 0.0
    for i, y in enumerate(labels):
        loss -= (log_softmax(-tau * d[i])[y] + weight * log_softmax(logits[i])[y]) / n
    return loss


def intra_batch(
    embeddings: Array,
    labels: Array,
    state: State,
    *,
    temperature=0.2,
    layers=1,
    heads=2,
    concatenate=False,
    dropout=0.0,
    label_smoothing=0.1,
) -> float:
    assert dropout == 0, "the reference knows no dropout"
    nodes = linear(np.array([unit(e) for e in embeddings]), state, "network.first")
    outputs = []
    for layer in range(layers):
        nodes = message_passing(nodes, state, f"network.layers.{layer}", heads)
        outputs.append(nodes)
    nodes = np.array([np.concatenate(rows) for rows in zip(*outputs, strict=True)]) if concatenate else nodes
    refined = batch_norm(nodes, state["norm.weight"], np.zeros(nodes.shape[1]))
    total = 0.0
    for logits in (linear(embeddings, state, "classifier"), refined @ state["refined_classifier.weight"].T):
        for row, y in zip(logits / temperature, labels, strict=True):
            log_p = log_softmax(row)
            total -= (1 - label_smoothing) * log_p[y] + label_smoothing * sum(log_p) / len(log_p)
    return total / len(labels)


def message_passing(nodes: Array, state: State, name: str, heads: int) -> Array:
    """One step: attention of all to all, residual, norm; MLP, residual, norm."""
    n, size = nodes.shape
    projected = nodes @ state[f"{name}.attention.in_proj_weight"].T + state[f"{name}.attention.in_proj_bias"]
    queries, keys, values = projected[:, :size], projected[:, size : 2 * size], projected[:, 2 * size :]
    mixed = np.zeros_like(nodes)
    for head in range(heads):
        part = slice(head * size // heads, (head + 1) * size // heads)
        for i in range(n):
            scores = [float(queries[i, part] @ keys[j, part]) / math.sqrt(size / heads) for j in range(n)]
            for j in range(n):
                share = math.exp(scores[j]) / (1 + sum(math.exp(score) for score in scores))
                mixed[i, part] += share * values[j, part]
    nodes = nodes + linear(mixed, state, f"{name}.attention.out_proj")
    nodes = np.array([layer_norm(node) for node in nodes])
    nodes = nodes * state[f"{name}.norms.0.weight"] + state[f"{name}.norms.0.bias"]
    hidden = np.maximum(linear(nodes, state, f"{name}.mlp.0"), 0)
    nodes = nodes + linear(hidden, state, f"{name}.mlp.3")
    nodes = np.array([layer_norm(node) for node in nodes])
    return nodes * state[f"{name}.norms.1.weight"] + state[f"{name}.norms.1.bias"]


def group_loss(
    embeddings: Array, labels: Array, state: State, *, temperature=24.0, iterations=1, anchors=2, weight=1.0
) -> float:
    n = len(labels)
    logits = linear(embeddings, state, "classifier")
    x = np.exp([log_softmax(row / temperature) for row in logits])
    seen: dict[int, int] = {}
    for i, y in enumerate(labels.tolist()):
        seen[y] = seen.get(y, 0) + 1
        if seen[y] <= anchors:
            x[i] = [1.0 if c == y else 0.0 for c in range(x.shape[1])]
    w = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            a, b = embeddings[i] - embeddings[i].mean(), embeddings[j] - embeddings[j].mean()
            w[i, j] = 1.0 if i == j else max(0.0, float(unit(a) @ unit(b)))
    for _ in range(iterations):
        support = np.array(
            [[sum(w[i, j] * x[j, c] for j in range(n)) for c in range(x.shape[1])] for i in range(n)]
        )
        x = np.array([x[i] * support[i] / sum(x[i] * support[i]) for i in range(n)])
    return sum(-weight * math.log(x[i, y]) - log_softmax(logits[i])[y] for i, y in enumerate(labels)) / n


def unit(vector: Array) -> Array:
    length = math.sqrt(sum(vector**2))
    return vector / length if length else vector


def log_softmax(logits) -> list[float]:
    top = max(logits)
    total = top + math.log(sum(math.exp(logit - top) for logit in logits))
    return [logit - total for logit in logits]


def linear(inputs: Array, state: State, name: str) -> Array:
    return np.array([[float(w @ x) for w in state[f"{name}.weight"]] for x in inputs]) + state[f"{name}.bias"]


def layer_norm(vector: Array, epsilon: float = 1e-5) -> Array:
    mean = sum(vector) / len(vector)
    variance = sum((vector - mean) ** 2) / len(vector)
    return (vector - mean) / math.sqrt(variance + epsilon)


def batch_norm(rows: Array, weight: Array, bias: Array) -> Array:
    return np.array([layer_norm(column) for column in rows.T]).T * weight + bias
