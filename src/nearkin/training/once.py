"""Scores that are measured once and read from a file afterwards, as long as they are of the same things."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from nearkin.files import read_json, write_json


def measured_once(folder: Path, of: object, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Scores by name; those of other things, as ``repr(of)`` tells, lie in another file of the folder."""
    file = folder / f"measured-{hashlib.sha256(repr(of).encode()).hexdigest()[:8]}.json"
    if not file.is_file():
        write_json(file, measure())
    scores: dict[str, float] = read_json(file)
    return scores
