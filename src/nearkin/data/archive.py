"""An ``.npz`` from anyone: what its arrays declare is read and judged before any of them takes memory."""

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

SMALL = 2**28  # bytes that any file may unpack to
LARGEST_RATIO = 100  # of a file that unpacks to more: data of the real world do not shrink like this


@dataclass(frozen=True)
class Header:
    """What an array says about itself."""

    member: ZipInfo
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def read_archive(file: Path, choose: Callable[[Mapping[str, Header]], Iterable[str]]) -> dict[str, Array]:
    """Those arrays of a file that ``choose`` wants; it sees the headers of all, and may refuse them.

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
            raise ValueError(f"{member.filename} holds Python objects, which are never loaded")
        header = Header(member, shape, dtype)
        if min(shape, default=0) < 0 or header.bytes > member.file_size - stream.tell():
            raise ValueError(f"{member.filename} declares more than it holds: {dtype} of shape {shape}")
    return header


def _declared(stream: IO[bytes]) -> tuple[tuple[int, ...], np.dtype[np.generic]]:
    version = np.lib.format.read_magic(stream)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format is for tables, not for arrays")
    shape, _, dtype = readers[version](stream)
    return shape, dtype


def _check_size(file: Path, total: int) -> None:
    packed = file.stat().st_size
    if total > max(SMALL, LARGEST_RATIO * packed):
        raise UserError(
            f"{file} has {packed / 1e6:,.1f} MB and unpacks to {total / 1e6:,.0f} MB, more than real data do; "
            "if it is your own, write it with numpy.savez, uncompressed"
        )


def _array(archive: ZipFile, header: Header) -> Array:
    with archive.open(header.member) as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    if array.dtype.kind in "SU":
        array = array.astype(np.str_)
        # Python checks short words alone: of longer ones it would make text that no program can print.
        if array.size and array.itemsize and array.ravel().view(np.uint32).max() > sys.maxunicode:
            raise ValueError(f"{header.member.filename} holds numbers that are not letters")
    return array


@contextmanager
def _readable(file: Path) -> Iterator[None]:
    try:
        yield
    except UserError:
        raise
    # Damaged and encrypted files make zipfile, zlib, ast and NumPy raise nearly anything; for the user it is one thing.
    except Exception as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"{file} is not a readable .npz of arrays ({reason}); write it with numpy.savez") from error
