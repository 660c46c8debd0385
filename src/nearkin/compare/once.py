"""Scores that are measured once and read from a file afterwards, as long as they are of the same things."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nearkin.compare.result import COLUMNS
from nearkin.files import write_json


def measured_once(file: Path, of: Any, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """The columns of a table; ``of`` (anything that JSON can hold) tells what they are the scores of."""
    stored = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    if stored.get("of") != of:
        scores = measure()
        stored = {"of": of, "scores": {name: scores[name] for name in COLUMNS}}
        write_json(file, stored)
    found: dict[str, float] = stored["scores"]
    return found
