"""Matching: classifies a query by its nearest items in a gallery, or as unknown if they are too far away.

The nearest items vote with weight 1 / distance², so that a copy of an image in the gallery gets that image's label. The
largest accepted distance is calibrated on the gallery's own items. To stand for an unknown class, an item is searched
without all items of its own class; at most a given share of these may be accepted.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from nearkin.clustering.distances import Distances, row_blocks
from nearkin.clustering.neighbours import nearest_in
from nearkin.errors import UserError
from nearkin.fields import checked_fields
from nearkin.files import read_json, write_json
from nearkin.progress import track
from nearkin.search.results import Calibration, MatchResult, SearchResult
from nearkin.search.store import Embeddings, Entry, Store

ITEMS = 2_000  # more items hardly change the threshold


def calibrate(store: Store, false_accepts: float, k: int, cache: Path) -> Calibration:
    """Finds the largest distance at which at most a given share of unknown images is accepted.

    It is measured on up to 2,000 items, each searched as if it were not in the gallery.

    Args:
        false_accepts: share of unknown images that may be accepted, at least 0 and below 1.
        k: number of items that vote.
        cache: file for the calibration, valid until the items change.
    """
    if not 0 <= false_accepts < 1:
        raise UserError(f"false_accepts must be >= 0 and < 1, such as 0.05, got {false_accepts}")
    if k < 1:
        raise UserError(f"k must be an integer >= 1, got {k}")
    entries = store.entries()
    classes = {entry.label for entry in entries.values() if entry.label}
    if len(classes) < 2:
        found = f"the gallery has only one class, '{classes.pop()}'" if classes else "the gallery has no labels"
        raise UserError(f"{found}; index images of two classes or more")
    key = {"entries": _fingerprint(entries), "false_accepts": false_accepts, "k": k}
    with suppress(OSError, ValueError, KeyError, TypeError):  # if missing or damaged, it is computed again
        cached = read_json(cache)
        if cached["key"] == key:
            return Calibration(**checked_fields(Calibration, cached["calibration"], str(cache)))
    calibration = _calibrate(store, entries, false_accepts, k)
    with suppress(UserError):  # a read-only gallery has no cache
        write_json(cache, {"key": key, "calibration": asdict(calibration)})
    return calibration


def match(result: SearchResult, calibration: Calibration) -> MatchResult:
    """Labels a query by a vote of its nearest items; the label is None if they are too far away."""
    vote = _vote(result.distances, result.labels)
    label = vote.label if vote.distance <= calibration.threshold else None
    return MatchResult(result.query, label, vote.distance, vote.share, result.hits, calibration)


@dataclass(frozen=True)
class _Vote:
    label: str
    share: float
    distance: float


def _vote(distances: Sequence[float], labels: Sequence[str]) -> _Vote:
    """The label with the largest sum of 1 / d², its share of the votes, and the distance of its nearest item.

    ``distances`` must ascend. Items without a label do not vote. In a tie, the label of the nearest item wins.

    >>> labels = ["rose", "tulip", "tulip"]
    >>> _vote([0.9, 1.0, 1.0], labels).label, _vote([0.1, 1.0, 1.0], labels).label
    ('tulip', 'rose')
    """
    sums: dict[str, float] = {}
    nearest: dict[str, float] = {}
    for distance, label in zip(distances, labels, strict=True):
        if label:
            sums[label] = sums.get(label, 0.0) + max(distance, 1e-9) ** -2
            nearest.setdefault(label, distance)
    if not sums:
        return _Vote("", 0.0, math.inf)
    winner = max(sums, key=sums.__getitem__)
    return _Vote(winner, sums[winner] / sum(sums.values()), nearest[winner])


def _calibrate(store: Store, entries: dict[int, Entry], false_accepts: float, k: int) -> Calibration:
    labels = [entry.label for entry in entries.values()]
    sizes = Counter(labels)
    with_label = [row for row, label in enumerate(labels) if label]
    sample = np.sort(np.random.default_rng(0).permutation(with_label)[:ITEMS])
    without_itself, without_its_class = _neighbours(store.vectors(list(entries)), labels, sample, k)

    unknown = [_vote(*voters) for voters in without_its_class]
    allowed = math.floor(false_accepts * len(sample) + 1e-9)  # 0.29 · 100 is slightly below 29 in floating point
    first_refused = sorted(vote.distance for vote in unknown)[allowed]
    threshold = math.nextafter(first_refused, -math.inf)

    truth = [labels[row] for row in sample]
    known = [(_vote(*voters), label) for voters, label in zip(without_itself, truth, strict=True)]
    answers = [(vote, label) for vote, label in known if sizes[label] > 1]
    right = [vote.label == label for vote, label in answers if vote.distance <= threshold]
    return Calibration(
        threshold=threshold,
        false_accepts=sum(vote.distance <= threshold for vote in unknown) / len(sample),
        true_accepts=len(right) / len(answers) if answers else None,
        accuracy=sum(right) / len(right) if right else None,
        items=len(sample),
    )


Voters = tuple[list[float], list[str]]


def _neighbours(
    vectors: Embeddings, labels: list[str], sample: npt.NDArray[np.int64], k: int
) -> tuple[list[Voters], list[Voters]]:
    """Distances and labels of each sampled row's k nearest: without the row itself, and without its whole class."""
    everything = torch.from_numpy(vectors)
    classes = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    to_all = Distances(everything)
    all_rows = torch.arange(len(labels))
    without_itself: list[Voters] = []
    without_its_class: list[Voters] = []
    blocks = [torch.from_numpy(sample[block]) for block in row_blocks(len(sample), len(labels))]
    for rows in track(blocks, "calibrating"):
        block = to_all.block(everything[rows])
        itself = all_rows == rows[:, None]
        its_class = classes == classes[rows][:, None]
        for voters, excluded in ((without_itself, itself), (without_its_class, its_class)):
            block.squares.masked_fill_(excluded, torch.inf)
            distances, nearest = nearest_in(block, min(k, len(labels)))
            rounded = (distances * block.scale).float()  # as in a search, so that the threshold separates the same
            for row, columns in zip(rounded.tolist(), nearest.tolist(), strict=True):
                finite = [distance for distance in row if distance < math.inf]
                voters.append((finite, [labels[column] for column in columns[: len(finite)]]))
    return without_itself, without_its_class


def _fingerprint(entries: dict[int, Entry]) -> str:
    digest = hashlib.sha256()
    for id, entry in entries.items():
        digest.update(f"{id}\0{entry.path}\0{entry.label}\0{entry.size}\0{entry.modified}\n".encode())
    return digest.hexdigest()
