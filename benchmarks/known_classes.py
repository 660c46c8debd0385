"""Glyphs for experiments on known classes: every class is in both splits, with new examples in the test split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.data import ImageArray, load_dataset
from nearkin.files import atomic_path


def known_classes(
    file: Path, source: str = "glyphs", new: int = 6, left_out: int = 0, traits: Sequence[str] = ()
) -> Path:
    """Writes the glyphs as ``.npz`` with a split within every class, unless the file exists.

    Args:
        source: ``glyphs``, with options if wanted.
        new: number of test examples per class: the last ones before those left out.
        left_out: number of examples per class, from the end, that are in neither split.
        traits: attributes of the glyphs to keep.

    >>> known_classes(Path("known.npz"), "glyphs:classes=10,per_class=20")  # doctest: +SKIP
    """
    if not file.exists():
        glyphs = load_dataset(source)
        assert isinstance(glyphs.items, ImageArray)
        from_the_end = np.zeros(len(glyphs), int)
        for label in glyphs.present_classes:
            own = np.flatnonzero(glyphs.labels == label)
            from_the_end[own] = np.arange(len(own))[::-1]
        split = np.where(from_the_end < left_out + new, "test", "train")
        kept = from_the_end >= left_out
        with atomic_path(file) as partial:
            columns: dict[str, Any] = {"images": glyphs.items.pixels, "labels": glyphs.labels, "split": split}
            columns |= {trait: glyphs.attributes[trait] for trait in traits}
            np.savez(partial, allow_pickle=False, **{name: column[kept] for name, column in columns.items()})
    return file
