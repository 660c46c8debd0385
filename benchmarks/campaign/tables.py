"""Lists of images (CSV) and arrays (npz), with damaged bytes or hostile values."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from random import Random

from benchmarks.campaign.mutate import ESCAPE, EXTREMES, MARKUP, damaged, damaged_zip, payload
from benchmarks.campaign.worker import Action, Sandbox

CELLS = (
    "", " ", "--1", "-1", "9" * 5_000, "1e999", "nan", "\0", "\x7f", ESCAPE, MARKUP, "é中\u202e", "\udcff", "a\nb",
    '"', '""', "'", ",", "=1+1", "/etc/passwd", "../../../home/thesis.txt", "C:\\x", "..", ".", "class0", "pipe",
    "zero", "loop", "A" * 300, "A" * 200_000, "class0/0.png/x", "~", "train", "TEST", "yes", "2", "None",
)  # fmt: skip
HEADERS = (
    "path,label", "path,label,split", "path,label,is_query,is_gallery", "path,label,split,colour,size", "label,path",
    "path,label,label", "path,label,", " path , label ", "Path,Label", "path;label", "path,label," + "x," * 3_000 + "y",
)  # fmt: skip
SHAPES = (
    "(48, 5)", "(48,)", "()", "(0, 5)", "(-1, 5)", "(4611686018427387904,)", "(2000000000, 5)", "(48, 5", "(1.5,)",
    "(True, 5)", f"({'9' * 400},)", "((48, 5),)", "(" * 500 + ")" * 500, "(48, 5, 1, 1, 1)", "(300000, 5)",
)  # fmt: skip
TYPES = (
    "<f4", "<f8", "<i8", "|O", "|V8", "<U99999999", "|S0", "<M8[ns]", "<c16", "[('a', '<f4')]", "|V2147483647", "<f16",
    "object", "\\x00", ">u2", "|b1", "<f2",
)  # fmt: skip


def case(rng: Random, sandbox: Sandbox) -> Action:
    """One damaged file: load, embed or evaluate it."""
    if rng.random() < 0.4:
        file = sandbox.input / "list.csv"
        file.write_bytes(_csv(rng, sandbox))
        run = sandbox.specimens / "run"
    else:
        name, reader = rng.choice((("images.npz", "run"), ("vectors.npz", "vectors-run")))
        file, run = sandbox.input / name, sandbox.specimens / reader
        file.write_bytes(_npz((sandbox.specimens / name).read_bytes(), rng, sandbox.home / "executed"))
    way = rng.randrange(10)
    if way == 0:
        return lambda: sandbox.nearkin("embed", run, file, "-o", sandbox.out / "vectors.npz")
    if way == 1:
        return lambda: sandbox.nearkin("evaluate", run, "--data", file, "--out", sandbox.out / "scores.json")
    return lambda: _load(file)


def _load(file: Path) -> None:
    from nearkin.data import load_dataset, without_unreadable

    dataset, _ = without_unreadable(load_dataset(file))
    assert len(dataset) > 0


def _csv(rng: Random, sandbox: Sandbox) -> bytes:
    """Rows of good images with some hostile cells; the folder also has a pipe, a device and a link loop."""
    for label in range(2):
        folder = sandbox.input / f"class{label}"
        folder.mkdir()
        for number in range(2):
            (folder / f"{number}.png").write_bytes((sandbox.specimens / "photos" / folder.name / "0.png").read_bytes())
    os.mkfifo(sandbox.input / "pipe")
    (sandbox.input / "zero").symlink_to("/dev/zero")
    (sandbox.input / "loop").symlink_to("loop")
    header = rng.choice(HEADERS) if rng.random() < 0.3 else HEADERS[rng.randrange(4)]
    lines = [header]
    for row in range(rng.choice((0, 1, 4, 4, 4, 40))):
        valid = [f"class{row % 2}/{row // 2 % 2}.png", f"class{row % 2}", rng.choice(("train", "test", "1")), "1", "2"]
        cells = [rng.choice(CELLS) if rng.random() < 0.05 else cell for cell in valid]
        lines.append(",".join(cells[: header.count(",") + 1]))
    text = rng.choice(("\n", "\n", "\r\n", "\r")).join(lines)
    coding = rng.choice(("utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16", "latin-1"))
    content = text.encode(coding, "surrogateescape" if coding == "utf-8" else "replace")
    return damaged(content, rng) if rng.random() < 0.3 else content


def _npz(content: bytes, rng: Random, target: Path) -> bytes:
    way = rng.random()
    if way < 0.1:
        return payload(target) if way < 0.02 else damaged(content, rng)
    if way < 0.15:
        return _bomb(rng)
    return damaged_zip(content, rng, target, _npy)


def _npy(content: bytes, rng: Random) -> bytes:
    """An array with a wrong header, or with other numbers."""
    way = rng.randrange(4)
    if way == 0:
        return damaged(content, rng, first=128)
    (length,) = struct.unpack_from("<H", content, 8)
    header, data = content[10 : 10 + length].decode("latin-1"), content[10 + length :]
    if way == 1:
        values = bytearray(data)
        for _ in range(3):
            number = rng.choice((struct.pack("<f", float("nan")), struct.pack("<f", float("inf")), rng.randbytes(4)))
            place = rng.randrange(max(1, len(values) - 4))
            values[place : place + 4] = number
        data = bytes(values)
    elif way == 2:
        shape, kind = rng.choice(SHAPES), rng.choice(TYPES)
        header = f"{{'descr': '{kind}', 'fortran_order': {rng.choice(('True', 'False', '0'))}, 'shape': {shape}, }}"
    else:
        header = rng.choice((header.replace("}", "'more': 1}"), header[:-20], "[]", "{" * 300, "__import__('os')", ""))
    encoded = header.encode("latin-1", "replace")
    size = rng.choice(EXTREMES) % 65536 if rng.random() < 0.1 else len(encoded)
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", size) + encoded + data


def _bomb(rng: Random) -> bytes:
    """An archive of a few megabytes that unpacks to gigabytes of zeros."""
    shape = rng.choice(("(2000000000,)", "(200000, 10000)", "(500, 1000, 1000, 3)", "(16000000000,)"))
    name = rng.choice(("vectors", "images", "labels", "split", "other"))
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}}}".ljust(117) + "\n"
    start = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode()
    packer = zlib.compressobj(9, wbits=-15)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(50_000_000)) + packer.flush(zlib.Z_FULL_FLUSH)
    data = first + zeros * 40 + packer.flush()
    size = min(len(start) + 40 * 50_000_000, 2**32 - 1)
    file = f"{name}.npy".encode()
    about = struct.pack(
        "<5H3IH", 20, 0, 8, 0, 0, 0, len(data), size, len(file)
    )  # the wrong checksum is only noticed at the end
    local = b"PK\x03\x04" + about + bytes(2) + file
    entry = b"PK\x01\x02" + bytes([20, 0]) + about + bytes(16) + file
    end = struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, len(entry), len(local) + len(data), 0)
    return local + data + entry + end
