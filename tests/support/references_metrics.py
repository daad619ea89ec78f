"""Metrics by loops over float64 NumPy, written from their definitions: slow, obvious, the specification."""

import math

import numpy as np


def distances_to(query, items, distance):
    """Float64 distances of one query to all items; on the unit sphere for the cosine."""
    query, items = query.astype(np.float64), items.astype(np.float64)
    if distance == "cosine":
        query = query / np.sqrt((query**2).sum())
        items = items / np.sqrt((items**2).sum(axis=1, keepdims=True))
    return np.sqrt(((items - query) ** 2).sum(axis=1))


def neighbours(query, items, own=-1, distance="euclidean"):
    """Indices of all items but `own`, nearest first, ties by index."""
    found = distances_to(query, items, distance)
    return sorted((i for i in range(len(items)) if i != own), key=lambda i: (found[i], i))


def retrieval(queries, labels, items, item_labels, own, ks, distance="euclidean"):
    """For each query a dict of metrics, or None where it has no positives."""
    results = []
    for query, label, itself in zip(queries, labels, own, strict=True):
        order = neighbours(query, items, itself, distance)
        hits = [item_labels[i] == label for i in order]
        positives = sum(hits)
        if positives == 0:
            results.append(None)
            continue
        row = {"precision@1": float(hits[0])}
        row["r_precision"] = sum(hits[:positives]) / positives
        row["map@r"] = average_precision(hits, positives, positives)
        for k in ks:
            row[f"recall@{k}"] = float(any(hits[:k]))
            row[f"map@{k}"] = average_precision(hits, positives, k)
            row[f"ndcg@{k}"] = gain(hits[:k]) / gain([True] * min(positives, k))
        results.append(row)
    return results


def knn(queries, labels, items, item_labels, own, ks, distance="euclidean"):
    """For each query whether its class wins the vote of the K nearest, or None where it has no positives."""
    results = []
    for query, label, itself in zip(queries, labels, own, strict=True):
        classes = [item_labels[i] for i in neighbours(query, items, itself, distance)]
        row = {}
        for k in ks:
            votes = {}  # in the order in which classes are met: the nearest first
            for each in classes[:k]:
                votes[each] = votes.get(each, 0) + 1
            most = max(votes.values())
            row[f"knn@{k}"] = float(next(each for each in votes if votes[each] == most) == label)
        results.append(row if label in classes else None)
    return results


def average_precision(hits, positives, k):
    """Precision at each hit among the first k, summed, over the most hits there could be."""
    total = sum(sum(hits[: i + 1]) / (i + 1) for i in range(min(k, len(hits))) if hits[i])
    return total / min(positives, k)


def gain(hits):
    """Discounted cumulative gain of hits in order."""
    return sum(1 / math.log2(2 + i) for i, hit in enumerate(hits) if hit)


def mutual_information(truth, found):
    """Mutual information and both entropies of two labellings, in nats."""
    n = len(truth)
    information = 0.0
    for a in set(truth):
        for b in set(found):
            both = sum(x == a and y == b for x, y in zip(truth, found, strict=True)) / n
            if both:
                expected = sum(x == a for x in truth) / n * (sum(y == b for y in found) / n)
                information += both * math.log(both / expected)
    entropies = [
        -sum(c / n * math.log(c / n) for c in np.unique(side, return_counts=True)[1])
        for side in (truth, found)
    ]
    return information, entropies[0], entropies[1]


def average_distance_to_proxy(embeddings, labels, proxies):
    """AvgDTP, the paper's equation."""
    means = []
    for c, proxy in enumerate(proxies):
        own = [np.linalg.norm(e - proxy) for e, label in zip(embeddings, labels, strict=True) if label == c]
        if own:
            means.append(sum(own) / len(own))
    return sum(means) / len(means)


def compactness(embeddings, labels):
    """Mean over classes of two or more of the mean distance between two of its members."""
    means = []
    for c in set(labels):
        rows = [e for e, label in zip(embeddings, labels, strict=True) if label == c]
        pairs = [np.linalg.norm(rows[i] - rows[j]) for i in range(len(rows)) for j in range(i)]
        if pairs:
            means.append(sum(pairs) / len(pairs))
    return sum(means) / len(means)


def separability(embeddings, labels):
    """Mean over classes of the distance from its mean to the nearest other mean."""
    means = [embeddings[labels == c].mean(axis=0) for c in np.unique(labels)]
    nearest = [min(np.linalg.norm(a - b) for b in means if b is not a) for a in means]
    return sum(nearest) / len(nearest)
