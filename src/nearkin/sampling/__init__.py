"""Which items make a batch."""

from nearkin.sampling.base import BatchSampler, share_of
from nearkin.sampling.groups import GroupSampler, PairSampler
from nearkin.sampling.random import RandomSampler
from nearkin.sampling.ratio import ClassRatioSampler

__all__ = ["BatchSampler", "ClassRatioSampler", "GroupSampler", "PairSampler", "RandomSampler", "share_of"]
