"""The words of a run's report: what scores mean, and how its model was chosen."""

from __future__ import annotations

from nearkin.methods.spectral import WITH_SC

MEANINGS = {
    "recall": "share of queries with an item of their class among the K nearest",
    "r_precision": "of a query's R nearest items, the share that is of its class, which has R further items",
    "map@r": "like R-precision, but early places count more: precision at every right place up to R, over R",
    "map": "mean average precision over the whole ranking",
    "queries": "queries with an item of their class to find",
    "queries_without_positives": "queries that are alone in their class, left out of the means",
    "nmi_geometric": "what k-means clusters and classes tell about each other, over the geometric mean of entropies",
    "nmi_arithmetic": "what k-means clusters and classes tell about each other, over the mean of entropies",
    "ami": "NMI above what chance would give",
    "ari": "pairs that clusters and classes both join or both part, above what chance would give",
    "pairwise_f1": "of pairs in one cluster against pairs in one class",
    "soft_knn_error": "share of items that soft votes of their nearest training items put in a wrong class",
    "nearest_cluster_error": "share of items that soft votes of the nearest clusters put in a wrong class",
}
CHOICES = {
    "best-on-test": ("paper", "paper: the best point of the test curve, which is optimistic"),
    "best-on-validation": ("fair", "fair: models chosen on held-out training classes"),
    "last": ("fair", "fair: the model of the last epoch, nothing chosen by test scores"),
}


def meaning(score: str) -> str:
    """
    >>> meaning("recall@4").endswith("among the K nearest")
    True
    """
    plain = score.removeprefix(WITH_SC)
    return MEANINGS.get(plain, MEANINGS.get(plain.partition("@")[0], ""))


def choice(keep: str) -> tuple[str, str]:
    """The kind of protocol, "fair" or "paper", and the same in words."""
    return CHOICES.get(keep, CHOICES["last"])
