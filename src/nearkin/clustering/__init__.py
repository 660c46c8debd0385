"""Groupings of vectors: neighbours, k-means and medoids, usable on their own in anyone's training loop."""

from nearkin.clustering.facilities import FacilityLocation, class_medoids, facility_location
from nearkin.clustering.kmeans import KMeansResult, kmeans
from nearkin.clustering.neighbours import nearest_neighbours

__all__ = [
    "FacilityLocation",
    "KMeansResult",
    "class_medoids",
    "facility_location",
    "kmeans",
    "nearest_neighbours",
]
