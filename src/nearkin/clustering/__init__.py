"""Nearest neighbours, k-means, medoids and spectral clustering of vectors, for any training loop."""

from nearkin import _mkl  # noqa: F401
from nearkin.clustering.facilities import FacilityLocation, class_medoids, facility_location
from nearkin.clustering.grouped_kmeans import GroupedKMeans, choose_clusters, kmeans_per_group
from nearkin.clustering.kmeans import KMeansResult, kmeans
from nearkin.clustering.matching import match_clusters
from nearkin.clustering.neighbours import nearest_in_other_groups, nearest_neighbours
from nearkin.clustering.spectral import spectral_embedding, spectral_partition

__all__ = [
    "FacilityLocation",
    "GroupedKMeans",
    "KMeansResult",
    "choose_clusters",
    "class_medoids",
    "facility_location",
    "kmeans",
    "kmeans_per_group",
    "match_clusters",
    "nearest_in_other_groups",
    "nearest_neighbours",
    "spectral_embedding",
    "spectral_partition",
]
