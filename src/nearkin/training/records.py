"""Writes and reads the lines of a run's ``metrics.jsonl``."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from nearkin.errors import UserError
from nearkin.files import parse_json, read_text

Record = dict[str, Any]

SCORES = ("recall@1", "map@r")
KINDS = {"training": ("loss", "learning_rate"), **dict.fromkeys(("backbone", "before", "evaluation", "final"), SCORES)}


def as_line(record: Mapping[str, Any]) -> str:
    """A record as a line of JSON, without numbers that are not finite.

    >>> as_line({"kind": "training", "epoch": 1, "loss": 0.5, "spread": math.nan})
    '{"kind": "training", "epoch": 1, "loss": 0.5}\\n'
    """
    finite = {name: value for name, value in record.items() if not isinstance(value, float) or math.isfinite(value)}
    return json.dumps(finite) + "\n"


def read_records(file: Path) -> list[Record]:
    """All records of a run; skips a last line that a killed process did not finish."""
    if not file.is_file():
        return []
    try:
        *lines, unfinished = read_text(file).split("\n")
    except ValueError as error:
        raise UserError(f"{file} is not a text file ({error}); restore the original") from error
    return [*_records(file, lines), *_last(unfinished)]


def _records(file: Path, lines: Iterable[str]) -> Iterator[Record]:
    for number, line in enumerate(lines, start=1):
        try:
            yield parse_record(line)
        except ValueError as error:
            raise UserError(f"line {number} of {file} is damaged ({error}); delete that line") from error


def _last(line: str) -> Iterator[Record]:
    with suppress(ValueError):
        yield parse_record(line)


def parse_record(line: str) -> Record:
    """Parses a line and checks all that reports and resumed runs rely on; a ValueError says what is wrong.

    >>> parse_record('{"kind": "training", "epoch": 1, "step": 3, "loss": "high", "learning_rate": 0.1}')
    Traceback (most recent call last):
    ValueError: loss is not a number
    """
    record = parse_json(line, dict)
    kind = record.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"kind is not one of {', '.join(KINDS)}")
    for name in ("epoch", "step"):
        if type(record.get(name)) is not int or record[name] < 0:
            raise ValueError(f"{name} is not an integer >= 0")
    if kind != "training" and not isinstance(record.get("split"), str):
        raise ValueError("split is not a string")
    for name in (*KINDS[kind], *(record.keys() - {"kind", "split"})):
        if type(record.get(name)) not in (int, float):
            raise ValueError(f"{name} is not a number")
    return record
