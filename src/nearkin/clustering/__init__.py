"""Groupings of vectors: nearest neighbours and k-means, usable on their own in anyone's training loop."""

from nearkin.clustering.kmeans import KMeansResult, kmeans
from nearkin.clustering.neighbours import nearest_neighbours

__all__ = ["KMeansResult", "kmeans", "nearest_neighbours"]
