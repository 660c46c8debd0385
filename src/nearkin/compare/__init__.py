"""Several methods on the same data, with as many passes over them and the same seeds: one table, nothing done twice."""

from nearkin.compare.comparing import compare
from nearkin.compare.result import COLUMNS, Comparison, mean_in_words

__all__ = ["COLUMNS", "Comparison", "compare", "mean_in_words"]
