"""What a method itself sees in the training part: Magnet's clusters of every class, divide-and-conquer's partition.

Both stand in the run's last checkpoint, as training last drew from them. Where there is none, or the data are others
now, the method's own `look` finds them anew in the training part as the kept model embeds it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from nearkin.data import Dataset
from nearkin.methods import Method, make_method
from nearkin.methods.divide_and_conquer import DivideAndConquer
from nearkin.methods.magnet import Magnet
from nearkin.models import Embedder
from nearkin.report.run_facts import RunFacts
from nearkin.training.scoring import embed_everything

log = logging.getLogger("nearkin")
SHOWN_CLASSES = 6
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Group:
    """Items of the training part that the method holds together, with some of them to look at."""

    title: str
    about: str
    items: Sequence[int]


@dataclass(frozen=True, eq=False)
class Grouping:
    """What a method divides the training part into, and where this was read."""

    title: str
    source: str
    groups: list[Group]


def find_grouping(facts: RunFacts, pictures: int = 8) -> Grouping | None:
    """The groups of a run's method, ``pictures`` items of each; None for methods that make none."""
    if facts.train is None or facts.settings.method not in (Magnet.name, DivideAndConquer.name):
        return None
    method = make_method(facts.settings.method, **facts.settings.method_settings)
    group_of = _kept(facts, method)
    source = "as training last found them, from its last checkpoint"
    if group_of is None:
        group_of = _looked_for(facts, method)
        source = "found for this report by the method's own look at the training part, as the kept model embeds it"
    if isinstance(method, Magnet):
        return Grouping("Clusters of classes", source, _clusters(facts, group_of, pictures))
    return Grouping("Partition", source, _parts(facts.train, group_of, pictures))


def _kept(facts: RunFacts, method: Method) -> Indices | None:
    """(items,) the group of every item of the training part, if the checkpoint has it and fits the data."""
    assert facts.train is not None
    try:
        state = torch.load(facts.run.checkpoint_file, map_location="cpu", weights_only=True, mmap=True)
        found = state["sampler"]["index"]["cluster_of"] if isinstance(method, Magnet) else state["method"]["groups"]
    except Exception as error:  # gone, cut short, or of another version: there is another way
        log.info("the last checkpoint tells no groups (%s)", error)
        return None
    return found.numpy().astype(np.int64) if found is not None and len(found) == len(facts.train) else None


def _looked_for(facts: RunFacts, method: Method) -> Indices:
    assert facts.train is not None
    space = embed_everything(Embedder.load(facts.run.folder), facts.train)
    training = facts.settings.training
    method.sampler(facts.train.dense_labels, training.batch_size, training.seed)
    method.on_refresh(space)
    if isinstance(method, Magnet):
        return method.drawing.index.cluster_of
    assert isinstance(method, DivideAndConquer) and method.groups is not None
    return method.groups.numpy()


def _clusters(facts: RunFacts, cluster_of: Indices, pictures: int) -> list[Group]:
    """The clusters of a few classes drawn by chance; of each the items nearest to its mean."""
    train = facts.train
    assert train is not None
    classes = np.random.default_rng(0).permutation(train.present_classes)
    divided = [label for label in classes if len(np.unique(cluster_of[train.labels == label])) > 1]
    shown = [*divided, *(label for label in classes if label not in divided)][:SHOWN_CLASSES]
    rows = np.flatnonzero(np.isin(train.labels, shown))
    points = embed_everything(Embedder.load(facts.run.folder), train.take(rows)).embeddings.cpu().numpy()
    groups = []
    for label in shown:
        clusters = np.unique(cluster_of[train.labels == label])
        for number, cluster in enumerate(clusters, 1):
            own = cluster_of[rows] == cluster
            far = np.square(points[own] - points[own].mean(axis=0)).sum(axis=1)
            nearest = rows[own][np.argsort(far, kind="stable")][:pictures]
            groups.append(
                Group(
                    train.classes[label], f"cluster {number} of {len(clusters)}: {own.sum():,} items", nearest.tolist()
                )
            )
    return groups


def _parts(train: Dataset, part_of: Indices, pictures: int) -> list[Group]:
    """Every learner's items: how many, which classes, some drawn by chance."""
    rng = np.random.default_rng(0)
    groups = []
    for part in np.unique(part_of):
        rows = np.flatnonzero(part_of == part)
        classes = Counter(train.labels[rows].tolist())
        largest = ", ".join(f"{train.classes[label]} ({count})" for label, count in classes.most_common(6))
        about = f"{len(rows):,} items of {len(classes):,} classes; most: {largest}"
        some = rng.choice(rows, min(pictures, len(rows)), replace=False)
        groups.append(Group(f"learner {part + 1}", about, some.tolist()))
    return groups
