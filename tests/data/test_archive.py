"""Untrusted .npz files: every defect gives one sentence, and nothing is allocated for data that are only declared."""

from __future__ import annotations

import io
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nearkin.data import archive as archive_module
from nearkin.data import load_dataset
from nearkin.errors import UserError

GOOD = {"vectors": np.eye(4), "labels": np.array([0, 0, 1, 1])}


def npy(array: object, **changes: object) -> bytes:
    """An array as NumPy writes it, optionally with a false header."""
    stream = io.BytesIO()
    if not changes:
        np.save(stream, np.asarray(array))
        return stream.getvalue()
    header = {"descr": "<f8", "fortran_order": False, "shape": (4, 4)} | changes
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue() + np.asarray(array).tobytes()


def write(file: Path, members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file


def archive(file: Path, **arrays: object) -> Path:
    return write(file, {f"{name}.npy": npy(array) for name, array in (GOOD | arrays).items()})


def encrypted(content: bytes) -> bytes:
    """The same file with the encryption flag set in every entry."""
    changed = bytearray(content)
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = changed.find(mark)
        while at >= 0:
            changed[at + offset] |= 1
            at = changed.find(mark, at + 1)
    return bytes(changed)


HOSTILE: dict[str, Callable[[Path], object]] = {
    "a member that is damaged": lambda file: file.write_bytes(
        archive(file).read_bytes().replace(np.eye(4).tobytes()[:9], b"x" * 9)
    ),
    "a file that ends early": lambda file: file.write_bytes(archive(file).read_bytes()[:300]),
    "encryption": lambda file: file.write_bytes(encrypted(archive(file).read_bytes())),
    "labels that are no array": lambda file: write(file, {"vectors.npy": npy(np.eye(4)), "labels.npy": b"0,0,1,1"}),
    "labels of another name": lambda file: write(file, {"vectors.npy": npy(np.eye(4)), "labels": npy([0, 0, 1, 1])}),
    "a huge shape": lambda file: write(
        file, {"vectors.npy": npy(np.eye(4), shape=(4, 10**12)), "labels.npy": npy([0, 0, 1, 1])}
    ),
    "a negative shape": lambda file: write(
        file, {"vectors.npy": npy(np.eye(4), shape=(4, -4)), "labels.npy": npy([0, 0, 1, 1])}
    ),
    "a dtype that does not exist": lambda file: write(
        file, {"vectors.npy": npy(np.eye(4), descr="<q9"), "labels.npy": npy([0, 0, 1, 1])}
    ),
    "a header of deep nesting": lambda file: write(
        file, {"vectors.npy": b"\x93NUMPY\x01\x00\x88\x13" + b"(" * 5000, "labels.npy": npy([0, 0, 1, 1])}
    ),
    "Python objects": lambda file: np.savez(file, **(GOOD | {"more": np.array([{}, 1], dtype=object)})),
    "letters that are not": lambda file: archive(file, labels=np.full(4, 0x7FFFFFFF, np.uint32).view("<U1")),
    "words with such letters": lambda file: archive(file, labels=np.full(32, 0x01000041, np.uint32).view("<U8")),
    "half of a letter": lambda file: archive(file, labels=np.array(["a", "b\ud800", "a", "b"])),
    "a scalar split": lambda file: archive(file, split="train"),
    "a split for every number": lambda file: archive(file, split=np.full((4, 4), "train")),
    "a split of numbers": lambda file: archive(file, split=np.zeros(4)),
    "a split that is not ASCII": lambda file: archive(file, split=np.array([b"\xff"] * 4)),
    "a scalar mask": lambda file: archive(file, is_query=True),
    "scalar labels": lambda file: archive(file, labels=3),
    "fewer labels": lambda file: archive(file, labels=[0, 1]),
    "not an archive": lambda file: file.write_bytes(npy(np.eye(4))),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_every_defect_gives_one_sentence(tmp_path: Path, what: str) -> None:
    file = tmp_path / "x.npz"
    HOSTILE[what](file)
    with pytest.raises(UserError, match=r"x\.npz|class"):
        load_dataset(file)


def test_other_members_are_ignored(tmp_path: Path) -> None:
    members = {f"{name}.npy": npy(array) for name, array in GOOD.items()}
    file = write(tmp_path / "x.npz", members | {"readme.txt": b"hello", "long.npy": npy(np.zeros(9))})
    assert not load_dataset(file).attributes


def test_labels_may_be_bytes(tmp_path: Path) -> None:
    assert load_dataset(archive(tmp_path / "x.npz", labels=[b"a", b"b", b"a", b"b"])).classes == ["a", "b"]


@pytest.mark.parametrize(("labels", "reason"), [(3, "equal lengths"), (2_000_000, "unpacks to 18 MB")])
def test_a_small_file_that_unpacks_to_a_lot_takes_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, labels: int, reason: str
) -> None:
    monkeypatch.setattr(archive_module, "SMALL", 2**20)
    np.savez_compressed(tmp_path / "x.npz", vectors=np.zeros((2_000_000, 1)), labels=np.zeros(labels, np.int8))
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=reason):
            load_dataset(tmp_path / "x.npz")
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()
