"""CSV files of images: ``path,label`` and, optionally, ``split,is_query,is_gallery`` and further attributes."""

from __future__ import annotations

import csv
import io
import os
import re
from pathlib import Path

import numpy as np

from nearkin.data.dataset import SPLITS, Dataset, Mask, encode_labels
from nearkin.data.items import ImageFiles
from nearkin.errors import UserError
from nearkin.files import open_regular
from nearkin.names import check_names

REQUIRED = ("path", "label")
KNOWN = (*REQUIRED, "split", "is_query", "is_gallery")
# Absolute paths and "..", by the rules of every operating system, so that a list is accepted everywhere or nowhere.
LEADS_OUT = re.compile(r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)")
TRUTH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}


def load_table(file: Path) -> Dataset:
    """Reads a CSV. Paths are relative to its folder; any other column becomes an attribute."""
    columns = _columns(file)
    paths = [_inside(file, line, path) for line, path in enumerate(columns["path"], start=2)]
    labels, classes = encode_labels(columns["label"])
    return Dataset(
        name=file.stem,
        items=ImageFiles(paths),
        labels=labels,
        classes=classes,
        split=np.array(_choices(file, "split", columns["split"])) if "split" in columns else None,
        is_query=_mask(file, "is_query", columns),
        is_gallery=_mask(file, "is_gallery", columns),
        attributes={name: np.array(values) for name, values in columns.items() if name not in KNOWN},
    )


def leads_out(path: str) -> bool:
    """Whether a path from an untrusted list could leave the folder it is relative to.

    >>> leads_out("birds/1.jpg"), leads_out("../1.jpg"), leads_out("/etc/passwd")
    (False, True, True)
    """
    return bool(LEADS_OUT.search(path))


def _columns(file: Path) -> dict[str, list[str]]:
    try:
        with open_regular(file) as raw, io.TextIOWrapper(raw, "utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            header = [name.strip() for name in reader.fieldnames or ()]
            reader.fieldnames = header
            rows = list(reader)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"{file} is not a readable CSV ({error}); save it as comma-separated UTF-8") from error
    missing = [name for name in REQUIRED if name not in header]
    if missing:
        found = ", ".join(header) or "nothing"
        raise UserError(f"{file} has no column '{missing[0]}'; its first line must name path,label (found: {found})")
    twice = {name for name in header if header.count(name) > 1}
    if twice:
        raise UserError(f"{file} names the column '{twice.pop()}' twice; rename or remove one of them")
    if not rows:
        raise UserError(f"{file} has a header but no rows; add one line per image")
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise UserError(f"{file}, line {line}: expected {len(header)} fields, as in the header")
        if not row["path"].strip() or not row["label"].strip():
            raise UserError(f"{file}, line {line}: path and label must not be empty")
    return {name: [row[name].strip() for row in rows] for name in header}


def _inside(file: Path, line: int, path: str) -> Path:
    check_names([path], f"{file}, line {line}: path")
    folders = [Path(os.path.abspath(file.parent)), file.parent.resolve()]  # noqa: PTH100 (links stay)
    within = next((Path(path).relative_to(each) for each in folders if Path(path).is_relative_to(each)), Path(path))
    if leads_out(str(within)):
        raise UserError(
            f"{file}, line {line}: path '{path}' has .. in it or is not in the folder of the CSV, {folders[0]}; "
            "move the CSV to a folder that contains the images"
        )
    return file.parent / within


def _choices(file: Path, name: str, values: list[str]) -> list[str]:
    for line, value in enumerate(values, start=2):
        if value not in SPLITS:
            raise UserError(f"{file}, line {line}: {name} '{value}' is not one of {', '.join(SPLITS)}")
    return values


def _mask(file: Path, name: str, columns: dict[str, list[str]]) -> Mask | None:
    if name not in columns:
        return None
    for line, value in enumerate(columns[name], start=2):
        if value.lower() not in TRUTH:
            raise UserError(f"{file}, line {line}: {name} '{value}' is neither true nor false; write 1 or 0")
    return np.array([TRUTH[value.lower()] for value in columns[name]])
