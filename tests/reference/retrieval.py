"""Retrieval straight from its definitions: numpy loops in float64, every ranking fully sorted."""

from __future__ import annotations

import numpy as np


def ranked_gallery(x, queries, gallery):
    """For each query, all gallery rows except itself, by distance, then by row."""
    rankings = []
    for q in queries:
        others = [g for g in gallery if g != q]
        rankings.append(sorted(others, key=lambda g: (np.sqrt(((x[q] - x[g]) ** 2).sum()), g)))
    return rankings


def relevance(labels, queries, rankings):
    """For each query, whether each item of its ranking has the same class."""
    return [[labels[g] == labels[q] for g in ranking] for q, ranking in zip(queries, rankings, strict=True)]


def recall_at(relevant, k):
    return float(any(relevant[:k]))


def precision_at(relevant, i):
    return sum(relevant[:i]) / i


def r_precision(relevant):
    return precision_at(relevant, sum(relevant))


def average_precision_at_r(relevant):
    r = sum(relevant)
    return sum(precision_at(relevant, i) * relevant[i - 1] for i in range(1, r + 1)) / r


def average_precision(relevant):
    r = sum(relevant)
    return sum(precision_at(relevant, i) for i in range(1, len(relevant) + 1) if relevant[i - 1]) / r


def scores(x, labels, queries, gallery, recall_ks):
    """The means over the queries with at least one positive, with nearkin's names."""
    lists = relevance(labels, queries, ranked_gallery(x, queries, gallery))
    scored = [relevant for relevant in lists if any(relevant)]
    return {
        **{f"recall@{k}": np.mean([recall_at(relevant, k) for relevant in scored]) for k in recall_ks},
        "r_precision": np.mean([r_precision(relevant) for relevant in scored]),
        "map@r": np.mean([average_precision_at_r(relevant) for relevant in scored]),
        "map": np.mean([average_precision(relevant) for relevant in scored]),
        "queries": len(scored),
        "queries_without_positives": len(lists) - len(scored),
    }


def nearest(queries, gallery, k, exclude):
    """(distances, rows) of the k nearest gallery rows, ties by row; exclude is -1 for none."""
    distances, rows = [], []
    for query, own in zip(queries, exclude, strict=True):
        row_distances = [np.sqrt(((query - other) ** 2).sum()) for other in gallery]
        order = sorted((d, g) for g, d in enumerate(row_distances) if g != own)[:k]
        distances.append([d for d, _ in order])
        rows.append([g for _, g in order])
    return np.array(distances), np.array(rows)
