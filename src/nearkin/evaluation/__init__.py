"""Scores of embeddings with labels: retrieval, clustering, classification and diagnostics."""

from nearkin.evaluation.attribute_columns import column_concentrations
from nearkin.evaluation.attributes import AttributeConcentration, attribute_concentration
from nearkin.evaluation.classification import (
    classifier_error,
    error_rate,
    nearest_cluster_error,
    nearest_cluster_labels,
    soft_knn_error,
    soft_knn_labels,
)
from nearkin.evaluation.clusters import cluster_scores, find_clusters
from nearkin.evaluation.diagnostics import Diagnostics, PairDistances, diagnostics
from nearkin.evaluation.evaluate import evaluate
from nearkin.evaluation.galleries import cmc, random_galleries, random_gallery_scores
from nearkin.evaluation.intervals import PairedDifference, confidence_intervals, paired_difference
from nearkin.evaluation.metrics import Metric, describe, known_metrics, metric, score_name, score_text
from nearkin.evaluation.ranks import PositiveRanks, average_precision, average_precision_at_r, r_precision, recall_at
from nearkin.evaluation.result import EvaluationResult
from nearkin.evaluation.retrieval import Retrieval, retrieve

__all__ = [
    "AttributeConcentration",
    "Diagnostics",
    "EvaluationResult",
    "Metric",
    "PairDistances",
    "PairedDifference",
    "PositiveRanks",
    "Retrieval",
    "attribute_concentration",
    "average_precision",
    "average_precision_at_r",
    "classifier_error",
    "cluster_scores",
    "cmc",
    "column_concentrations",
    "confidence_intervals",
    "describe",
    "diagnostics",
    "error_rate",
    "evaluate",
    "find_clusters",
    "known_metrics",
    "metric",
    "nearest_cluster_error",
    "nearest_cluster_labels",
    "paired_difference",
    "r_precision",
    "random_galleries",
    "random_gallery_scores",
    "recall_at",
    "retrieve",
    "score_name",
    "score_text",
    "soft_knn_error",
    "soft_knn_labels",
]
