"""What is this? The label of the nearest items of a gallery, or "unknown" where they are too far away.

The nearest items vote with 1 / distance², so that a copy of a picture in the gallery gets its label. How far is too
far follows from the gallery itself: an item whose whole class is taken out stands for an unknown thing, and only so
many of these may be accepted.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image

from nearkin.clustering.distances import Distances, row_blocks
from nearkin.clustering.neighbours import nearest_in
from nearkin.errors import UserError
from nearkin.files import write_json
from nearkin.progress import track
from nearkin.search.gallery import Gallery
from nearkin.search.store import Embeddings, Entry, Hit

ITEMS = 2_000  # more of them would hardly move the threshold
CALIBRATION = "calibration.json"


@dataclass(frozen=True)
class Match:
    """What a picture is taken for.

    Attributes:
        label: None where it is unknown.
        distance: of the nearest item with the label that has most votes, accepted or not.
        share: of the votes that this label has.
        hits: those who voted, nearest first.
    """

    label: str | None
    distance: float
    share: float
    hits: list[Hit]


@dataclass(frozen=True)
class Calibration:
    """Where a gallery draws the line between known and unknown, and how well that works on its own items.

    Attributes:
        threshold: the largest distance at which a label is accepted.
        false_accepts: share of unknown things that are accepted all the same.
        true_accepts: share of items that are accepted where the others of their class are in the gallery; None where
            every class has a single item.
        accuracy: share of these that get their own label; None where there are none.
        items: how many were asked.
    """

    threshold: float
    false_accepts: float
    true_accepts: float | None
    accuracy: float | None
    items: int


def match(
    gallery: Gallery,
    pictures: Sequence[Path | Image.Image],
    false_accepts: float = 0.05,
    k: int = 5,
    calibration: Calibration | None = None,
    include_self: bool = False,
) -> list[Match]:
    """The label of every picture by the votes of its k nearest items; none where the nearest of them is too far.

    A file that is in the gallery itself has no vote on itself, as in `calibrate`.

    Args:
        false_accepts, k: see `calibrate`.
        calibration: where it is known already: what `calibrate` gave for the same two.
        include_self: whether a file that is in the gallery votes on itself all the same.

    >>> match(Gallery.open("photos.index"), [Path("query.jpg")])[0].label  # doctest: +SKIP
    'rose'
    """
    line = calibration or calibrate(gallery, false_accepts, k)
    found = gallery.search(gallery.encode(pictures), k, exclude=None if include_self else pictures)
    return [_match(hits, line) for hits in found]


def calibrate(gallery: Gallery, false_accepts: float = 0.05, k: int = 5) -> Calibration:
    """The largest distance at which at most a share of unknown things is accepted; kept until the gallery changes.

    It is measured on up to 2,000 items of the gallery, each as if it had not been there.

    Args:
        false_accepts: the share, from 0 to below 1.
        k: how many items vote.
    """
    if not 0 <= false_accepts < 1:
        raise UserError(f"false_accepts={false_accepts} must be a share from 0 to below 1, such as 0.05")
    if k < 1:
        raise UserError(f"k={k} items cannot vote; choose k from 1")
    entries = gallery.store.entries()
    classes = {entry.label for entry in entries.values() if entry.label}
    if len(classes) < 2:
        found = (
            f"all labelled items of {gallery.path} are '{classes.pop()}'"
            if classes
            else f"{gallery.path} has no labels"
        )
        raise UserError(f"{found}, so nothing can be told apart; index pictures of two classes or more")
    file = gallery.path / CALIBRATION
    of = {"entries": _fingerprint(entries), "asked": false_accepts, "k": k}
    with suppress(OSError, ValueError, KeyError, TypeError):  # without one, or with a damaged one, it is made again
        kept = json.loads(file.read_text(encoding="utf-8"))
        if kept["of"] == of:
            return Calibration(**kept["calibration"])
    calibration = _calibrate(gallery, entries, false_accepts, k)
    with suppress(UserError):  # a gallery that cannot be written to can still be asked
        write_json(file, {"of": of, "calibration": asdict(calibration)})
    return calibration


def _match(hits: list[Hit], calibration: Calibration) -> Match:
    vote = _vote([hit.distance for hit in hits], [hit.entry.label for hit in hits])
    label = vote.label if vote.distance <= calibration.threshold else None
    return Match(label, vote.distance, vote.share, hits)


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


def _calibrate(gallery: Gallery, entries: dict[int, Entry], false_accepts: float, k: int) -> Calibration:
    labels = [entry.label for entry in entries.values()]
    sizes = Counter(labels)
    with_label = [row for row, label in enumerate(labels) if label]
    asked = np.sort(np.random.default_rng(0).permutation(with_label)[:ITEMS])
    without_itself, without_its_class = _neighbours(gallery.store.vectors(list(entries)), labels, asked, k)

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
