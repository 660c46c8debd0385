"""What all benchmarks share: reading official list files, and making a dataset of what they list."""

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

Row = tuple[str, list[str]]  # where it stands ("FILE, line 3") and its values


@dataclass(frozen=True, slots=True)
class Entry:
    """One image of an official list.

    Attributes:
        path: as the list spells it.
        class_id: a key of the listing's classes.
        split: "train", "validation" or "test".
        place: where it is listed, for messages.
        below: the folder inside the dataset's folder that ``path`` starts from.
        role: "query" or "gallery" where the two are different sets.
    """

    path: str
    class_id: str
    split: str
    place: str
    below: str = ""
    role: str = ""


@dataclass(frozen=True)
class Listing:
    """What the official lists say: the images, the class names by class id, further columns by name."""

    entries: Sequence[Entry]
    classes: Mapping[str, str]
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)


def text_rows(file: Path, columns: str, header_line: int = 0) -> Iterator[Row]:
    """The rows of a table whose values are separated by blanks.

    Args:
        columns: the names of the columns, separated by blanks; every row must have as many values.
        header_line: the number of the line that repeats ``columns``, 0 if none does; rows begin after it.
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
    """The entries of MATLAB arrays of one length, side by side; "annotations.class" is a struct's field."""
    from scipy.io import loadmat  # imported here because it is slow

    try:
        with open_regular(file) as opened:
            content = loadmat(opened, squeeze_me=True)
    except Exception as error:  # the parser fails in many ways on a file that is cut off or of another kind
        raise _cannot_read(file, error) from error
    columns = [_mat_column(file, content, variable) for variable in variables]
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise UserError(f"{file}: {' and '.join(variables)} have different lengths, {lengths}")
    for number, values in enumerate(zip(*columns, strict=True), start=1):
        yield f"{file}, entry {number}", [_text(value) for value in values]


def whole_number(text: str, place: str) -> int:
    if not re.fullmatch("[0-9]{1,18}", text):
        raise UserError(f"{place}: expected a whole number, found '{text[:80]}'")
    return int(text)


def first_existing(folder: Path, *candidates: str) -> Path:
    """The first of ``candidates`` that is there, else the first of all, which is then reported as missing."""
    paths = [folder / candidate for candidate in candidates]
    return next((path for path in paths if path.exists()), paths[0])


def to_dataset(name: str, folder: Path, listing: Listing) -> Dataset:
    """The dataset of a listing, its classes in the order of their official ids; all images must be there."""
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
        return UserError(f"{file} is missing: unpack the dataset's archives again, with their folders")
    reason = (isinstance(error, OSError) and error.strerror) or str(error)
    return UserError(f"could not read {file}: {reason}; get it again if it is damaged")


def _mat_column(file: Path, content: Mapping[str, Any], variable: str) -> list[Any]:
    name, _, column = variable.partition(".")
    try:
        array = np.atleast_1d(content[name])
        return list((array[column] if column else array).ravel().tolist())
    except (KeyError, ValueError, IndexError) as error:  # no such variable; no such field; no struct at all
        raise UserError(f"{file} holds no '{variable}': is it the official file?") from error


def _text(value: object) -> str:
    """MATLAB writes whole numbers as doubles unless told otherwise."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _inside(folder: Path, entry: Entry) -> Path:
    if leads_out(entry.path):
        raise UserError(f"{entry.place}: '{entry.path}' leads out of the dataset's folder")
    return folder.joinpath(entry.below, entry.path)


def _check_present(name: str, paths: Sequence[Path]) -> None:
    """One look into each folder, because asking for 100,000 files one by one is slow on network drives."""
    names_in = cache(_file_names)
    missing = [path for path in paths if path.name not in names_in(path.parent)]
    if missing:
        raise UserError(
            f"{name}: {len(missing):,} of the {len(paths):,} listed images are missing, the first is "
            f"{missing[0]}; unpack the archive of the images again"
        )


def _file_names(folder: Path) -> frozenset[str]:
    try:
        with os.scandir(folder) as entries:
            return frozenset(entry.name for entry in entries)
    except OSError:
        return frozenset()
