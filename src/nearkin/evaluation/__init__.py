"""Vectors and labels -> scores."""

from nearkin.evaluation.attribute_columns import column_concentrations
from nearkin.evaluation.attributes import AttributeConcentration, attribute_concentration
from nearkin.evaluation.classification import error_rate, nearest_cluster_labels, soft_knn_labels
from nearkin.evaluation.clusters import cluster_scores, find_clusters
from nearkin.evaluation.diagnostics import Diagnostics, PairDistances, diagnostics
from nearkin.evaluation.evaluate import Evaluation, evaluate
from nearkin.evaluation.galleries import cmc, random_galleries, random_gallery_scores
from nearkin.evaluation.intervals import PairedDifference, confidence_intervals, paired_difference
from nearkin.evaluation.ranks import (
    PositiveRanks,
    average_precision,
    average_precision_at_r,
    first_rank,
    r_precision,
    recall_at,
)
from nearkin.evaluation.retrieval import Retrieval, retrieve

__all__ = [
    "AttributeConcentration",
    "Diagnostics",
    "Evaluation",
    "PairDistances",
    "PairedDifference",
    "PositiveRanks",
    "Retrieval",
    "attribute_concentration",
    "average_precision",
    "average_precision_at_r",
    "cluster_scores",
    "cmc",
    "column_concentrations",
    "confidence_intervals",
    "diagnostics",
    "error_rate",
    "evaluate",
    "find_clusters",
    "first_rank",
    "nearest_cluster_labels",
    "paired_difference",
    "r_precision",
    "random_galleries",
    "random_gallery_scores",
    "recall_at",
    "retrieve",
    "soft_knn_labels",
]
