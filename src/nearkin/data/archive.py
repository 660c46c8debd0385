"""Reads untrusted ``.npz`` files: checks the headers of all arrays before any array takes memory."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from zipfile import ZipFile, ZipInfo

import numpy as np

from nearkin.data.pixels import Array
from nearkin.errors import UserError
from nearkin.files import open_regular

SMALL = 2**28  # bytes; any file may unpack to this much
LARGEST_RATIO = 100  # for a file that unpacks to more: real data do not compress better


@dataclass(frozen=True)
class Header:
    """The declared shape and type of an array."""

    member: ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_archive(file: Path, choose: Callable[[Mapping[str, Header]], Iterable[str]]) -> dict[str, Array]:
    """Reads some arrays of a file.

    Args:
        choose: gets the headers of all arrays and returns the names of those to read, or raises.

    >>> np.savez("/tmp/x.npz", a=np.zeros(3), b=np.ones(2))  # doctest: +SKIP
    >>> read_archive(Path("/tmp/x.npz"), lambda headers: [n for n in headers if n != "a"])  # doctest: +SKIP
    {'b': array([1., 1.])}
    """
    with _readable(file), open_regular(file) as stream, ZipFile(stream) as archive:
        headers = {
            member.filename.removesuffix(".npy"): _header(archive, member)
            for member in archive.infolist()
            if member.filename.endswith(".npy")
        }
        wanted = list(choose(headers))
        _check_size(file, sum(headers[name].bytes for name in wanted))
        return {name: _array(archive, headers[name]) for name in wanted}


def _header(archive: ZipFile, member: ZipInfo) -> Header:
    with archive.open(member) as stream:
        shape, dtype = _declared(stream)
        if dtype.hasobject:
            raise ValueError(f"{member.filename} contains Python objects, which are never loaded")
        header = Header(member, shape, dtype)
        if min(shape, default=0) < 0 or header.bytes > member.file_size - stream.tell():
            raise ValueError(f"{member.filename} declares more data than it contains: {dtype} of shape {shape}")
    return header


def _declared(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"format version {version} is for structured arrays, which are not supported")
    shape, _, dtype = readers[version](stream)
    return shape, dtype


def _check_size(file: Path, total: int) -> None:
    packed = file.stat().st_size
    if total > max(SMALL, LARGEST_RATIO * packed):
        raise UserError(
            f"{file} has {packed / 1e6:,.1f} MB but unpacks to {total / 1e6:,.0f} MB, more than real data would; "
            "if you trust it, save it uncompressed with numpy.savez"
        )


def _array(archive: ZipFile, header: Header) -> Array:
    with archive.open(header.member) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    if array.dtype.kind in "SU":
        array = array.astype(np.str_)
        # Python checks code points of short strings only, and would make unprintable text from longer ones.
        if array.size and array.itemsize and array.ravel().view(np.uint32).max() > sys.maxunicode:
            raise ValueError(f"{header.member.filename} contains invalid Unicode code points")
    return array


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    # On damaged or encrypted files, zipfile, zlib, ast and NumPy raise nearly any exception. All mean: not readable.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{file} is not a readable .npz file of arrays ({reason}); save it with numpy.savez") from error
