"""The image files of all splits of a run, as one list.

Decoded images and the features of a frozen backbone are computed for the whole list, so that runs with other splits of
the same files, such as those of other seeds, can reuse them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from nearkin.data import Dataset, ImageFiles
from nearkin.data.items import Indices

DatasetSplits = dict[str, Dataset | None]


def shared_files(splits: Iterable[Dataset | None]) -> ImageFiles:
    """All image files of the splits, each once, in an order that does not depend on the split."""
    files = [split.items for split in splits if split is not None and isinstance(split.items, ImageFiles)]
    return ImageFiles(sorted({path for items in files for path in items.paths}))


def rows_of(items: ImageFiles, shared: ImageFiles) -> Indices:
    """(items,) the position of each item in the shared list."""
    row_of = {path: row for row, path in enumerate(shared.paths)}
    return np.array([row_of[path] for path in items.paths], dtype=np.int64)
