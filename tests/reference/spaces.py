"""Points whose distances float32 cannot tell apart, but float64 computes without rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import strategies as st

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")),
]


@st.composite
def difficult_points(draw, least=2, most=40):
    """(n, dim) tight groups, duplicates, points far from the origin, outliers, at any scale; float32 or float64.

    Coordinates are integer multiples of a power of two with 24 bits (26 in float64), so that squared differences and
    their sums are exact in float64, in any order.
    """
    n, dim = draw(st.integers(least, most)), draw(st.integers(1, 3))
    dtype, bits = draw(st.sampled_from([(torch.float32, 23), (torch.float64, 25)]))
    centres = st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1))
    groups = draw(st.lists(st.tuples(*[centres] * dim), min_size=1, max_size=3))
    group = draw(st.lists(st.sampled_from(groups), min_size=n, max_size=n))
    reach = draw(st.sampled_from([0, 1, 3, 2 ** (bits - 12)]))
    offsets = draw(st.lists(st.integers(-reach, reach), min_size=n * dim, max_size=n * dim))
    points = torch.tensor(group, dtype=torch.float64) + torch.tensor(offsets, dtype=torch.float64).reshape(n, dim)
    return (points * 2.0 ** draw(st.sampled_from([-110, -30, 0, 80]))).to(dtype)


def three_tight_groups(items=600, dim=32, seed=0):
    """Unit vectors (items, dim) and labels: 60 classes of radius 1e-5 in three groups of radius 3e-4."""
    generator = torch.Generator().manual_seed(seed)

    def directions(*shape):
        return torch.nn.functional.normalize(torch.randn(*shape, dim, generator=generator, dtype=torch.float64), dim=-1)

    centres = (directions(3, 1) + 3e-4 * directions(3, 20)).reshape(60, dim)
    labels = torch.arange(items) % 60
    return torch.nn.functional.normalize(centres[labels] + 1e-5 * directions(items)).float(), labels
