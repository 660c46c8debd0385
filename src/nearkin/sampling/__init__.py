"""Batch samplers, for ``DataLoader(dataset, batch_sampler=sampler)``."""

from nearkin.sampling.base import LabelBatchSampler, share_of
from nearkin.sampling.class_neighbourhoods import ClassNeighbourhoodSampler
from nearkin.sampling.groups import GroupSampler, PairSampler, enough_per_class
from nearkin.sampling.neighbourhoods import ClusterIndex, NeighbourhoodSampler
from nearkin.sampling.partition import PartitionSampler
from nearkin.sampling.random import RandomBatchSampler
from nearkin.sampling.ratio import ClassRatioSampler, fitting_ratio

__all__ = [
    "ClassNeighbourhoodSampler",
    "ClassRatioSampler",
    "ClusterIndex",
    "GroupSampler",
    "LabelBatchSampler",
    "NeighbourhoodSampler",
    "PairSampler",
    "PartitionSampler",
    "RandomBatchSampler",
    "enough_per_class",
    "fitting_ratio",
    "share_of",
]
