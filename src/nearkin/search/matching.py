"""What is this? The label of the nearest items of a gallery, or "unknown" where they are too far away.

The nearest items vote with 1 / distance², so that a copy of an image in the gallery gets its label. How far is too far
follows from the gallery itself: an item whose whole class is taken out stands for an unknown thing, and only a given
share of these may be accepted.
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

ITEMS = 2_000  # more of them would hardly move the threshold


def calibrate(store: Store, false_accepts: float, k: int, cache: Path) -> Calibration:
    """The largest distance at which at most a share of unknown things is accepted.

    It is measured on up to 2,000 items, each as if it had not been there.

    Args:
        false_accepts: the share, from 0 to below 1.
        k: how many items vote.
        cache: a file in which the calibration is kept until the items change.
    """
    if not 0 <= false_accepts < 1:
        raise UserError(f"false_accepts={false_accepts} must be a share from 0 to below 1, such as 0.05")
    if k < 1:
        raise UserError(f"k={k} items cannot vote; choose k from 1")
    entries = store.entries()
    classes = {entry.label for entry in entries.values() if entry.label}
    if len(classes) < 2:
        found = f"all labelled items of the gallery are '{classes.pop()}'" if classes else "the gallery has no labels"
        raise UserError(f"{found}, so nothing can be told apart; index images of two classes or more")
    of = {"entries": _fingerprint(entries), "asked": false_accepts, "k": k}
    with suppress(OSError, ValueError, KeyError, TypeError):  # a missing or damaged one is made again
        kept = read_json(cache)
        if kept["of"] == of:
            return Calibration(**checked_fields(Calibration, kept["calibration"], str(cache)))
    calibration = _calibrate(store, entries, false_accepts, k)
    with suppress(UserError):  # a gallery that cannot be written to can still be searched
        write_json(cache, {"of": of, "calibration": asdict(calibration)})
    return calibration


def match(result: SearchResult, calibration: Calibration) -> MatchResult:
    """The label of a query by the votes of its nearest items; none where the nearest of them is too far."""
    vote = _vote(result.distances, result.labels)
    label = vote.label if vote.distance <= calibration.threshold else None
    return MatchResult(result.query, label, vote.distance, vote.share, result.hits, calibration)


@dataclass(frozen=True)
class _Vote:
    label: str
    share: float
    distance: float


def _vote(distances: Sequence[float], labels: Sequence[str]) -> _Vote:
    """The label with the largest sum of 1 / d², its share, and the distance of its nearest item.

    Distances ascend. Items without a label have no vote; of labels with equal sums the one that is nearest wins.

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
    asked = np.sort(np.random.default_rng(0).permutation(with_label)[:ITEMS])
    without_itself, without_its_class = _neighbours(store.vectors(list(entries)), labels, asked, k)

    unknown = [_vote(*voters) for voters in without_its_class]
    allowed = math.floor(false_accepts * len(asked) + 1e-9)  # 0.29 · 100 is a little less than 29
    first_refused = sorted(vote.distance for vote in unknown)[allowed]
    threshold = math.nextafter(first_refused, -math.inf)

    truth = [labels[row] for row in asked]
    known = [(_vote(*voters), label) for voters, label in zip(without_itself, truth, strict=True)]
    answers = [(vote, label) for vote, label in known if sizes[label] > 1]
    right = [vote.label == label for vote, label in answers if vote.distance <= threshold]
    return Calibration(
        threshold=threshold,
        false_accepts=sum(vote.distance <= threshold for vote in unknown) / len(asked),
        true_accepts=len(right) / len(answers) if answers else None,
        accuracy=sum(right) / len(right) if right else None,
        items=len(asked),
    )


Voters = tuple[list[float], list[str]]


def _neighbours(
    vectors: Embeddings, labels: list[str], asked: npt.NDArray[np.int64], k: int
) -> tuple[list[Voters], list[Voters]]:
    """Distances and labels of the k nearest of every asked row: all but itself, and all but its whole class."""
    everything = torch.from_numpy(vectors)
    classes = torch.from_numpy(np.unique(labels, return_inverse=True)[1])
    to_all = Distances(everything)
    rows_of = torch.arange(len(labels))
    without_itself: list[Voters] = []
    without_its_class: list[Voters] = []
    blocks = [torch.from_numpy(asked[block]) for block in row_blocks(len(asked), len(labels))]
    for rows in track(blocks, "calibrating"):
        block = to_all.block(everything[rows])
        itself = rows_of == rows[:, None]
        its_class = classes == classes[rows][:, None]
        for voters, taken_out in ((without_itself, itself), (without_its_class, its_class)):
            block.squares.masked_fill_(taken_out, torch.inf)
            distances, nearest = nearest_in(block, min(k, len(labels)))
            as_searched = (distances * block.scale).float()  # or a threshold between two roundings would divide them
            for found, places in zip(as_searched.tolist(), nearest.tolist(), strict=True):
                there = [distance for distance in found if distance < math.inf]
                voters.append((there, [labels[place] for place in places[: len(there)]]))
    return without_itself, without_its_class


def _fingerprint(entries: dict[int, Entry]) -> str:
    digest = hashlib.sha256()
    for id, entry in entries.items():
        digest.update(f"{id}\0{entry.path}\0{entry.label}\0{entry.size}\0{entry.modified}\n".encode())
    return digest.hexdigest()
