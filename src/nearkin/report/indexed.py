"""What became of the files of an indexed folder, in words."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from nearkin.data.unreadable import listed
from nearkin.search.indexing import Indexed
from nearkin.search.matching import Calibration

SHOWN = 20  # unreadable or missing files that are named


def print_indexed(indexed: Indexed, out: Path) -> None:
    """Counts, files that need attention, and how the gallery is searched."""
    print(_in_words(indexed, out))
    if indexed.unreadable:
        print(f"not readable, left out:\n  {listed(indexed.unreadable, SHOWN)}")
    if indexed.missing:
        more = f"\n  … and {len(indexed.missing) - SHOWN:,} more" if len(indexed.missing) > SHOWN else ""
        names = "\n  ".join(indexed.missing[:SHOWN])
        print(f"in the gallery, but their files are gone (remove them with --prune):\n  {names}{more}")
    Console(highlight=False, soft_wrap=True).print(indexed.searched, markup=False)


def print_calibration(calibration: Calibration) -> None:
    """Where the line to the unknown lies, and what that costs."""
    words = [f"unknown beyond a distance of {calibration.threshold:.4f}"]
    words += [f"of things of other classes {calibration.false_accepts:.1%} would pass"]
    if calibration.true_accepts is not None:
        words += [f"of known ones {calibration.true_accepts:.1%}"]
    if calibration.accuracy is not None:
        words += [f"{calibration.accuracy:.1%} of these with the right label"]
    print(f"{', '.join(words)} (measured on {calibration.items:,} of the gallery's own items)")


def _in_words(indexed: Indexed, out: Path) -> str:
    """
    >>> _in_words(Indexed(added=3, unchanged=2, total=5), Path("photos.index"))
    '5 items in photos.index: 3 added, 2 unchanged'
    """
    counts = {name: getattr(indexed, name) for name in ("added", "changed", "unchanged", "removed")}
    said = [f"{count:,} {name}" for name, count in counts.items() if count]
    return f"{indexed.total:,} items in {out}: {', '.join(said) or 'nothing to do'}"
