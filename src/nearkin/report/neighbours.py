"""The picture of nearest neighbours: one query a row, right and wrong neighbours framed in green and red."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.evaluation import Evaluation
from nearkin.files import atomic_path
from nearkin.report.thumbnails import thumbnail
from nearkin.space import Space

RIGHT, WRONG, QUERY = "#2a9d4a", "#d1373c", "#444444"


def draw_neighbours(
    file: Path, dataset: Dataset, space: Space, evaluation: Evaluation, rows: int = 12, seed: int = 0
) -> None:
    """Draws random queries with their nearest neighbours; the lower third are queries whose first one is wrong."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    labels = space.labels.numpy()
    queries, neighbours = space.queries.numpy(), evaluation.neighbours.numpy()
    chosen = _choose(labels[neighbours[:, 0]] == labels[queries], rows, seed)
    columns = 1 + neighbours.shape[1]
    figure, grid = plt.subplots(len(chosen), columns, figsize=(0.8 * columns, 0.82 * len(chosen) + 0.6), squeeze=False)
    for axes, row in zip(grid, chosen, strict=True):
        for place, (axis, item) in enumerate(zip(axes, [queries[row], *neighbours[row]], strict=True)):
            right = labels[item] == labels[queries[row]]
            _draw(axis, dataset, int(item), QUERY if place == 0 else RIGHT if right else WRONG)
    grid[0][0].set_title("query", fontsize=9)
    grid[0][1].set_title("nearest →", fontsize=9)
    figure.suptitle(
        f"Nearest neighbours in {dataset.name}: green same class, red another "
        f"(the lower {len(chosen) // 3} rows: queries whose first neighbour is wrong)",
        fontsize=10,
    )
    figure.tight_layout(pad=0.6, rect=(0, 0, 1, 0.985))
    with atomic_path(file) as partial:
        figure.savefig(partial, dpi=110)
    plt.close(figure)


def _choose(first_is_right: np.typing.NDArray[np.bool_], rows: int, seed: int) -> np.typing.NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    wrong = np.flatnonzero(~first_is_right)
    errors = rng.choice(wrong, min(rows // 3, len(wrong)), replace=False)
    others = np.setdiff1d(np.arange(len(first_is_right)), errors)
    return np.concatenate([rng.choice(others, min(rows - len(errors), len(others)), replace=False), errors])


def _draw(axis: object, dataset: Dataset, item: int, colour: str) -> None:
    from matplotlib.axes import Axes

    assert isinstance(axis, Axes)
    picture = thumbnail(dataset.items, item, 96)
    if picture is not None:
        axis.imshow(np.asarray(picture))
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set(color=colour, linewidth=3)
