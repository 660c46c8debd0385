"""Results of a gallery. They print as text and convert to JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nearkin.data.images import Unreadable
from nearkin.data.summary import counted
from nearkin.data.unreadable import listed
from nearkin.search.store import Hit

SHOWN = 20  # missing or unreadable files to list


@dataclass(frozen=True, repr=False)
class SearchResult:
    """The items nearest to one query, nearest first.

    Attributes:
        query: its path, or "image 3" or "embedding 3" if it has none.
        hits: the items found, each with its distance.

    >>> from nearkin.search import Entry
    >>> result = SearchResult("query.jpg", [Hit(7, Entry("/photos/rose/1.jpg", "rose", 0, 0), 0.25)])
    >>> print(result)
    query.jpg
    rank  distance  label  path
       1    0.2500  rose   /photos/rose/1.jpg
    >>> result
    <SearchResult for query.jpg: 1 hit, nearest 'rose' at 0.2500>
    >>> result.labels
    ['rose']
    """

    query: str
    hits: list[Hit]

    @property
    def paths(self) -> list[str]:
        return [hit.path for hit in self.hits]

    @property
    def labels(self) -> list[str]:
        return [hit.label for hit in self.hits]

    @property
    def distances(self) -> list[float]:
        return [hit.distance for hit in self.hits]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __repr__(self) -> str:
        nearest = f", nearest {(self.labels[0] or self.paths[0])!r} at {self.distances[0]:.4f}" if self.hits else ""
        return f"<SearchResult for {self.query}: {counted(len(self), 'hit')}{nearest}>"

    def __str__(self) -> str:
        rows = [(str(rank), f"{hit.distance:.4f}", hit.label, hit.path) for rank, hit in enumerate(self.hits, start=1)]
        return f"{self.query}\n{text_table(('rank', 'distance', 'label', 'path'), rows, '>><<')}"

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON."""
        return {"query": self.query, "hits": _as_dicts(self.hits)}


@dataclass(frozen=True)
class Calibration:
    """The distance that separates known from unknown, and how well it works on the gallery's own items.

    Attributes:
        threshold: the largest distance at which a label is accepted.
        false_accepts: share of items of unknown classes that are accepted by mistake.
        true_accepts: share of items of known classes that are accepted; None if every class has a single item.
        accuracy: share of the latter that get the right label; None if there are none.
        items: number of items it was measured on.

    >>> print(Calibration(0.5, 0.05, 0.9, 0.8, items=9))
    unknown above distance 0.5000; accepts 5.0% of unknown images and 90.0% of known ones, 80.0% of these with the \
right label (measured on 9 items of the gallery)
    """

    threshold: float
    false_accepts: float
    true_accepts: float | None
    accuracy: float | None
    items: int

    def __str__(self) -> str:
        accepted = f"{self.false_accepts:.1%} of unknown images"
        if self.true_accepts is not None:
            accepted += f" and {self.true_accepts:.1%} of known ones"
        if self.accuracy is not None:
            accepted += f", {self.accuracy:.1%} of these with the right label"
        return (
            f"unknown above distance {self.threshold:.4f}; accepts {accepted} "
            f"(measured on {self.items:,} items of the gallery)"
        )


@dataclass(frozen=True, repr=False)
class MatchResult:
    """The class of one query.

    Attributes:
        query: its path, or "image 3" or "embedding 3" if it has none.
        label: the label with the most votes; None if it was not accepted.
        distance: distance of the nearest item with the most voted label, accepted or not; infinite if no item voted.
        share: that label's share of the votes.
        hits: the items that voted, nearest first.
        calibration: the largest accepted distance and how it was measured.
    """

    query: str
    label: str | None
    distance: float
    share: float
    hits: list[Hit]
    calibration: Calibration

    def __repr__(self) -> str:
        return f"<MatchResult for {self}>"

    def __str__(self) -> str:
        label = "unknown" if self.label is None else self.label
        return f"{self.query}: {label} ({self.share:.0%} of the votes, distance {self.distance:.4f})"

    def to_dict(self) -> dict[str, Any]:
        """Values for JSON, which has no infinity."""
        return {
            "query": self.query,
            "label": self.label,
            "distance": self.distance if math.isfinite(self.distance) else None,
            "share": self.share,
            "threshold": self.calibration.threshold,
            "hits": _as_dicts(self.hits),
        }


@dataclass
class IndexResult:
    """The result of indexing.

    Attributes:
        added: number of new files.
        changed: number of files with new content or a new label.
        unchanged: number of files that were already up to date.
        missing: items whose files are gone from the data's folder; they stay unless pruned.
        removed: number of pruned items.
        unreadable: files that could not be read; earlier items of these files stay unless pruned.
        searched: a sentence on how the gallery is searched.
        total: number of items in the gallery.

    >>> print(IndexResult(added=3, unchanged=2, total=5, searched="5 items are searched exactly."))
    5 items: 3 added, 2 unchanged
    5 items are searched exactly.
    """

    added: int = 0
    changed: int = 0
    unchanged: int = 0
    missing: list[str] = field(default_factory=list)
    removed: int = 0
    unreadable: list[Unreadable] = field(default_factory=list)
    searched: str = ""
    total: int = 0

    def __str__(self) -> str:
        counts = {name: getattr(self, name) for name in ("added", "changed", "unchanged", "removed")}
        done = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
        lines = [f"{self.total:,} items: {done or 'nothing to do'}"]
        if self.unreadable:
            lines.append(f"unreadable, skipped:\n  {listed(self.unreadable, SHOWN)}")
        if self.missing and not self.removed:
            lines.append("files missing, items still in the gallery (prune to remove them):")
            lines += [f"  {path}" for path in self.missing[:SHOWN]]
            if len(self.missing) > SHOWN:
                lines.append(f"  … and {len(self.missing) - SHOWN:,} more")
        return "\n".join([*lines, self.searched])


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]], align: str) -> str:
    """A plain-text table; ``align`` has < (left) or > (right) for each column.

    >>> print(text_table(("label", "votes"), [("rose", "3")], "<>"))
    label  votes
    rose       3
    """
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)).rstrip()
        for row in (header, *rows)
    )


def _as_dicts(hits: list[Hit]) -> list[dict[str, Any]]:
    return [{"id": hit.id, "path": hit.path, "label": hit.label, "distance": hit.distance} for hit in hits]
