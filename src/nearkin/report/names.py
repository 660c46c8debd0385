"""What scores are called where people read them."""

from __future__ import annotations

from nearkin.methods.spectral import WITH_SC

NAMES = {
    "r_precision": "R-precision",
    "map@r": "MAP@R",
    "map": "mAP",
    "queries_without_positives": "Queries without a positive",
    "nmi_geometric": "NMI (geometric)",
    "nmi_arithmetic": "NMI (arithmetic)",
    "ami": "AMI",
    "ari": "ARI",
    "pairwise_f1": "Pairwise F1",
    "soft_knn_error": "Soft kNN error",
    "nearest_cluster_error": "k-nearest-cluster error",
}


def score_name(score: str) -> str:
    """
    >>> score_name("recall@1"), score_name("map@r")
    ('Recall@1', 'MAP@R')
    """
    plain = score.removeprefix(WITH_SC)
    return NAMES.get(plain, plain.replace("_", " ").capitalize()) + (", with SC" if score != plain else "")
