"""Slow loops in float64, written from the equations alone: what the losses are held to."""

import math

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def warped_softmax(
    embeddings: Array, proxies: Array, labels: Array, *, alpha, k1, k2, scale: float = 1.0, delta: float = 1.0
) -> tuple[Array, Array, Array]:
    """Eq. 7 and 8: losses [N], and the gradients of their sum for embeddings and proxies."""
    n, c, _ = (*embeddings.shape[:1], *proxies.shape)
    alpha, k1, k2 = (np.broadcast_to(value, (c,)) for value in (alpha, k1, k2))
    losses = np.zeros(n)
    grad_embeddings, grad_proxies = np.zeros_like(embeddings), np.zeros_like(proxies)
    for i in range(n):
        y = int(labels[i])
        t = [math.sqrt(sum((a - b) ** 2 for a, b in zip(embeddings[i], p, strict=True))) for p in proxies]
        if t[y] < alpha[y]:
            own, slope = k1[y] * t[y] + delta * (1 - k1[y]) * t[y], k1[y]
        else:
            own, slope = k2[y] * t[y] + (1 - k2[y]) * alpha[y], k2[y]
        gaps = [scale * (own - t[j]) for j in range(c) if j != y]
        top = max([0.0, *gaps])
        total = math.exp(-top) + sum(math.exp(gap - top) for gap in gaps)
        losses[i] = top + math.log(total)
        for j in range(c):
            if j == y:
                weight = sum(math.exp(gap - top) for gap in gaps) / total * scale * slope
            else:
                weight = -math.exp(scale * (own - t[j]) - top) / total * scale
            if t[j] > 0:  # on a proxy the direction is undefined and the gradient zero
                unit = (embeddings[i] - proxies[j]) / t[j]
                grad_embeddings[i] += weight * unit
                grad_proxies[j] -= weight * unit
    return losses, grad_embeddings, grad_proxies


def proxy_nca_pp(embeddings: Array, proxies: Array, labels: Array, *, scale: float = 9.0) -> Array:
    """Squared distances between unit vectors, scaled, through a softmax: losses [N]."""
    losses = np.zeros(len(embeddings))
    for i, e in enumerate(embeddings):
        z = e / math.sqrt(sum(e**2))
        logits = [-scale * sum((z - p / math.sqrt(sum(p**2))) ** 2) for p in proxies]
        losses[i] = math.log(sum(math.exp(logit) for logit in logits)) - logits[int(labels[i])]
    return losses
