"""Attribute concentration by loops over items, attributes and neighbours."""

from __future__ import annotations

from statistics import mean

import numpy as np


def concentration(x, table, size, queries, gallery):
    """(items, share, chance) of each attribute: means over the queries that have it; ties go to the lowest row."""
    found = []
    for attribute in range(table.shape[1]):
        shares, chances = [], []
        for query in queries:
            if not table[query, attribute]:
                continue
            others = [item for item in gallery if item != query]
            nearest = sorted(others, key=lambda item: (np.linalg.norm(x[query] - x[item]), gallery.index(item)))[:size]
            shares.append(mean(float(table[item, attribute]) for item in nearest))
            chances.append(mean(float(table[item, attribute]) for item in others))
        found.append((len(shares), mean(shares), mean(chances)) if shares else (0, np.nan, np.nan))
    return found
