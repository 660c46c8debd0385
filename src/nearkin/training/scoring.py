"""The split to evaluate, and the scores of a space."""

from __future__ import annotations

from collections.abc import Sequence

from nearkin.data import Dataset, Splits
from nearkin.data.hierarchy import true_classes
from nearkin.evaluation import EvaluationResult, column_concentrations, evaluate
from nearkin.methods import Method
from nearkin.space import Space


def split_to_measure(splits: Splits, split: str) -> tuple[Dataset, Dataset | None]:
    """A split with its true classes (not collapsed pairs), and the training split if it has the same classes."""
    measured, train = true_classes(getattr(splits, split)), true_classes(splits.train)
    return measured, train if split != "train" and train.knows_classes_of(measured) else None


def score_space(
    space: Space,
    method: Method | None = None,
    trained_on: Space | None = None,
    recall_at: int | Sequence[int] = (1, 2, 4, 8),
    clustering: str | None = "kmeans",
    protocol: str = "",
) -> EvaluationResult:
    """The scores of a space: those of `evaluate`, with the dataset's protocol, and of the method's read-out.

    Args:
        space: the space to evaluate.
        method: the method whose read-out adds scores.
        trained_on: the training split, if it has other items of the same classes.
        recall_at, clustering, protocol: as in `evaluate`.
    """
    result = evaluate(space, recall_at=recall_at, clustering=clustering, protocol=protocol)
    if method is not None:
        several = (recall_at,) if isinstance(recall_at, int) else recall_at
        result.scores.update(method.read_out(space, trained_on, several, clustering))
    return result


def concentrations(space: Space, dataset: Dataset) -> dict[str, dict[str, float]]:
    """The concentration of every attribute of the dataset, by neighbourhood size and for "chance"."""
    found = column_concentrations(space, dataset.attributes)
    sizes = sorted({size for each in found.values() for size in each.sizes})
    shares = {
        str(size): {name: each.means[size] for name, each in found.items() if size in each.sizes} for size in sizes
    }
    return shares | {"chance": {name: each.chance for name, each in found.items()}}
