"""Shared by all benchmarks: reads official list files and makes a dataset from them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.data.dataset import Dataset, encode_labels
from nearkin.data.items import ImageFiles
from nearkin.data.table import leads_out
from nearkin.errors import UserError
from nearkin.files import open_regular, read_text

Row = tuple[str, list[str]]  # its place ("FILE, line 3") and its values


@dataclass(frozen=True, slots=True)
class Entry:
    """One image in an official list.

    Attributes:
        path: path as written in the list.
        class_id: a key of the listing's classes.
        split: "train", "validation" or "test".
        place: file and line of the entry, for messages.
        below: subfolder of the dataset's folder that ``path`` is relative to.
        role: "query" or "gallery", if the dataset separates them.
    """

    path: str
    class_id: str
    split: str
    place: str
    below: str = ""
    role: str = ""


@dataclass(frozen=True)
class Listing:
    """Content of the official lists: the images, class names by class id, further columns by name."""

    entries: Sequence[Entry]
    classes: Mapping[str, str]
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)


def text_rows(file: Path, columns: str, header_line: int = 0) -> Iterator[Row]:
    """Yields the rows of a table whose values are separated by spaces.

    Args:
        columns: column names, separated by spaces; every row must have that many values.
        header_line: number of the line with the column names, 0 if there is none; rows begin after it.
    """
    try:
        lines = read_text(file).removeprefix("\ufeff").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _cannot_read(file, error) from error
    header = lines[header_line - 1].split() if 0 < header_line <= len(lines) else []
    if header_line and header != columns.split():
        raise UserError(f"{file}, line {header_line}: expected the column names '{columns}'")
    for number, line in enumerate(lines[header_line:], start=header_line + 1):
        values = line.split()
        if not values:
            continue
        place = f"{file}, line {number}"
        if len(values) != len(columns.split()):
            raise UserError(f"{place}: expected '{columns}', found '{line.strip()[:80]}'")
        yield place, values


def mat_rows(file: Path, *variables: str) -> Iterator[Row]:
    """Yields the entries of MATLAB arrays of equal length as rows; "annotations.class" is a field of a struct."""
    from scipy.io import loadmat  # here: slow to import

    try:
        with open_regular(file) as opened:
            content = loadmat(opened, squeeze_me=True)
    except Exception as error:  # truncated or other files make the parser raise many types
        raise _cannot_read(file, error) from error
    columns = [_mat_column(file, content, variable) for variable in variables]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise UserError(f"{file}: {' and '.join(variables)} have different lengths, {lengths}")
    for number, values in enumerate(zip(*columns, strict=True), start=1):
        yield f"{file}, entry {number}", [_text(value) for value in values]


def whole_number(text: str, place: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise UserError(f"{place}: expected an integer, found '{text[:80]}'")
    return int(text)


def first_existing(folder: Path, *candidates: str) -> Path:
    """Returns the first of ``candidates`` that exists, else the first, which is then reported as missing."""
    paths = [folder / candidate for candidate in candidates]
    return next((path for path in paths if path.exists()), paths[0])


def to_dataset(name: str, folder: Path, listing: Listing) -> Dataset:
    """Makes a dataset from a listing, with classes in the order of their official ids; raises if images are missing."""
    class_ids = encode_labels(list(listing.classes))[1]
    position = {class_id: i for i, class_id in enumerate(class_ids)}
    for entry in listing.entries:
        if entry.class_id not in position:
            raise UserError(f"{entry.place}: class {entry.class_id} is not among the {len(position)} known classes")
    paths = [_inside(folder, entry) for entry in listing.entries]
    _check_present(name, paths)
    roles = np.array([entry.role for entry in listing.entries], dtype=np.str_)
    has_roles = bool((roles != "").any())
    return Dataset(
        name=name,
        items=ImageFiles(paths),
        labels=np.array([position[entry.class_id] for entry in listing.entries], dtype=np.int64),
        classes=[listing.classes[class_id] for class_id in class_ids],
        split=np.array([entry.split for entry in listing.entries], dtype=np.str_),
        is_query=roles == "query" if has_roles else None,
        is_gallery=roles == "gallery" if has_roles else None,
        attributes={key: np.array(column, dtype=np.str_) for key, column in listing.attributes.items()},
    )


def _cannot_read(file: Path, error: Exception) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(f"{file} is missing: unpack the dataset's archives again, including their folders")
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return UserError(f"could not read {file}: {reason}; download it again if it is damaged")


def _mat_column(file: Path, content: Mapping[str, Any], variable: str) -> list[Any]:
    name, _, column = variable.partition(".")
    try:
        array = np.atleast_1d(content[name])
        return list((array[column] if column else array).ravel().tolist())
    except (KeyError, ValueError, IndexError) as error:  # no such variable; no such field; not a struct
        raise UserError(f"{file} contains no '{variable}'; use the official file") from error


def _text(value: object) -> str:
    """Converts to text; MATLAB writes integers as doubles by default."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _inside(folder: Path, entry: Entry) -> Path:
    if leads_out(entry.path):
        raise UserError(f"{entry.place}: path '{entry.path}' leaves the dataset's folder; use the official file")
    return folder.joinpath(entry.below, entry.path)


def _check_present(name: str, paths: Sequence[Path]) -> None:
    """Lists each folder once, since checking 100,000 files one by one is slow on network drives."""
    names_in = cache(_file_names)
    missing = [path for path in paths if path.name not in names_in(path.parent)]
    if missing:
        raise UserError(
            f"{name}: {len(missing):,} of the {len(paths):,} listed images are missing, the first is "
            f"{missing[0]}; unpack the image archive again"
        )


def _file_names(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries)
    except OSError:
        return frozenset()
