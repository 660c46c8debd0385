"""Images in every supported format, damaged in their bytes or in the structure of their format."""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

from benchmarks.campaign.mutate import EXTREMES, LARGEST, damaged
from benchmarks.campaign.worker import Action, Failure, Sandbox
from tests.reference.hostile_images import HOSTILE

MOST_PARTS = 30_000  # largest number of repetitions of a part


def case(rng: Random, sandbox: Sandbox) -> Action:
    """One damaged image: read it, search for it, or index or embed it among good ones."""
    name, content = damaged_image(rng, sandbox)
    file = sandbox.input / "class" / name
    file.parent.mkdir()
    file.write_bytes(content)
    way = rng.randrange(10)
    if way < 6:
        return lambda: read_every_way(file)
    if way == 6:
        return lambda: sandbox.nearkin("search", sandbox.specimens / "gallery", file)
    good = (sandbox.specimens / "photos" / "class0" / "0.png").read_bytes()
    for number in range(3):
        (file.parent / f"good{number}.png").write_bytes(good)
    if way == 7:
        return lambda: sandbox.nearkin("index", sandbox.specimens / "run", sandbox.input, "-o", sandbox.out / "gallery")
    return lambda: _embed(sandbox)


def damaged_image(rng: Random, sandbox: Sandbox) -> tuple[str, bytes]:
    """The name and the content of a file."""
    if rng.random() < 0.05:
        return _known(rng)
    files = sorted((sandbox.specimens / "images").iterdir())
    file = rng.choice(files)
    content = file.read_bytes()
    by_format = PARTS.get(file.suffix)
    way = rng.random()
    if by_format is not None and way < 0.6:
        content = by_format(content, rng)
    elif way < 0.8:
        content = damaged(content, rng, first=128)
    else:
        content = damaged(content, rng)
    if rng.random() < 0.1:  # a name with another format
        file = rng.choice(files)
    return file.name, content[:LARGEST]


def _known(rng: Random) -> tuple[str, bytes]:
    """A known decompression bomb, unchanged or with a damaged header."""
    content = HOSTILE[rng.choice(sorted(HOSTILE))]()
    return "known.jpg", content if rng.random() < 0.5 else damaged(content, rng, first=128)


def read_every_way(file: Path) -> None:
    """Reads a file that passes the check with all readers, none of which may fail."""
    from nearkin.data.images import Unreadable, image_size, read_image, read_small
    from nearkin.data.items import ImageFiles
    from nearkin.data.unreadable import find_unreadable
    from nearkin.errors import UserError

    image_size(file)
    if refused := find_unreadable(ImageFiles([file])):
        raise UserError(refused[0].reason)
    for image in (read_image(file), read_small(file, 64)):
        if isinstance(image, Unreadable):
            raise Failure("disagreement", f"the file passes the check but cannot be read: {image.reason}")


def _embed(sandbox: Sandbox) -> None:
    """Embeds a folder; the three good images must be embedded, whatever the fourth is."""
    import numpy as np

    vectors = sandbox.out / "vectors.npz"
    sandbox.nearkin("embed", sandbox.specimens / "run", sandbox.input, "-o", vectors)
    with np.load(vectors) as found:
        if len(found["vectors"]) < 3 or not np.isfinite(found["vectors"]).all():
            raise Failure("wrong", f"{len(found['vectors'])} vectors, or some that are not finite")


def _shuffled(parts: list[bytes], rng: Random, change: Callable[[bytes, Random], bytes]) -> bytes:
    """Joins the parts of a file, with one of them damaged, repeated, moved or dropped."""
    place = rng.randrange(len(parts))
    way = rng.randrange(6)
    if way < 3:
        parts[place] = change(parts[place], rng)
    elif way == 3:
        times = min(rng.choice((1, 3, 100, MOST_PARTS)), LARGEST // max(1, len(parts[place])))
        parts[place] *= max(1, times)
    elif way == 4:
        parts.insert(rng.randrange(len(parts) + 1), parts.pop(place))
    else:
        del parts[place]
    return b"".join(parts)


def _png(content: bytes, rng: Random) -> bytes:
    """Damages PNG chunks; checksums stay valid, so that the damage passes the first check."""
    chunks, place = [], 8
    while place + 12 <= len(content):
        (length,) = struct.unpack_from(">I", content, place)
        chunks.append(content[place : place + 12 + length])
        place += 12 + length

    def change(chunk: bytes, rng: Random) -> bytes:
        kind, held = chunk[4:8], chunk[8:-4]
        if rng.random() < 0.2:
            kind = rng.choice((b"zTXt", b"iTXt", b"iCCP", b"PLTE", b"tRNS", b"acTL", b"fcTL", b"eXIf", b"cHRM"))
        if kind == b"zTXt" and rng.random() < 0.5:
            held = b"title\0\0" + zlib.compress(bytes(rng.choice((10_000, 10_000_000))))
        else:
            held = damaged(held, rng)[:500_000]
        length = rng.choice(EXTREMES) % 2**32 if rng.random() < 0.1 else len(held)
        return struct.pack(">I", length) + kind + held + struct.pack(">I", zlib.crc32(kind + held))

    return content[:8] + _shuffled(chunks, rng, change)


def _jpeg(content: bytes, rng: Random) -> bytes:
    """Damages JPEG segments: tables, frame and scan headers, scan data."""
    return _shuffled(re.split(rb"(?=\xff[\xc0-\xcf\xda-\xef\xfe])", content), rng, _sized_part)


def _sized_part(part: bytes, rng: Random) -> bytes:
    """Damages a segment and keeps its two length bytes valid, or damages only these."""
    if len(part) < 5 or rng.random() < 0.3:
        return part[:2] + damaged(part[2:4], rng) + part[4:]
    held = damaged(part[4:], rng)[:65_000]
    return part[:2] + struct.pack(">H", len(held) + 2) + held


def _riff(content: bytes, rng: Random) -> bytes:
    """Damages WebP chunks; the length of the file stays valid."""
    chunks, place = [], 12
    while place + 8 <= len(content):
        (length,) = struct.unpack_from("<I", content, place + 4)
        chunks.append(content[place : place + 8 + length + length % 2])
        place += 8 + length + length % 2
    held = b"WEBP" + _shuffled(chunks, rng, lambda chunk, rng: chunk[:8] + damaged(chunk[8:], rng, first=24))
    return b"RIFF" + struct.pack("<I", len(held)) + held


def _tiff(content: bytes, rng: Random) -> bytes:
    """Puts extreme types, counts, values and offsets into entries of the first TIFF directory."""
    data = bytearray(content)
    (directory,) = struct.unpack_from("<I", data, 4)
    (entries,) = struct.unpack_from("<H", data, directory)
    for _ in range(rng.choice((1, 1, 2, 5))):
        entry = directory + 2 + 12 * rng.randrange(entries)
        offset, form = rng.choice(((0, "<H"), (2, "<H"), (4, "<I"), (8, "<I"), (8, "<H")))
        known = (0, 1, 2, 3, 4, 5, 7, 8, 12, 16, 24, 32, 254, 256, 257, 273, 322, 34665, 2_000, 50_000, directory)
        struct.pack_into(form, data, entry + offset, rng.choice((*known, *EXTREMES)) % 256 ** struct.calcsize(form))
    return bytes(data)


def _gif(content: bytes, rng: Random) -> bytes:
    """Damages GIF blocks, found by their first bytes."""
    return _shuffled(re.split(rb"(?=\x21[\xf9\xfe\xff]|\x2c\x00\x00)", content), rng, damaged)


def _netpbm(content: bytes, rng: Random) -> bytes:
    """Puts odd sizes and depths into the text header of a Netpbm file."""
    numbers = ("0", "1", "-1", "65535", "65536", "9999", "99999", "9" * 30, "1e3", "0x10", " " * 5_000, "#" * 5_000, "")
    fields = re.split(rb"(\s)", content, maxsplit=3)
    fields[rng.randrange(len(fields) - 1)] = rng.choice(numbers).encode()
    return rng.choice((b"", b"P", b"P3\n")) * rng.randrange(2) + b"".join(fields)


def _boxes(content: bytes, rng: Random) -> bytes:
    """Puts extreme sizes and fields into AVIF boxes, found by their names."""
    data = bytearray(content)
    boxes = rb"ftyp|meta|hdlr|pitm|iloc|iinf|iprp|ipco|ispe|pixi|av1C|mdat"
    names = [found.start() for found in re.finditer(boxes, data)]
    for _ in range(rng.choice((1, 2))):
        place = rng.choice(names) + rng.choice((-4, 4, 8, 12, 16))
        struct.pack_into(">I", data, max(0, min(place, len(data) - 4)), rng.choice((*EXTREMES, 9_000, 60_000)) % 2**32)
    return bytes(data)


PARTS: dict[str, Callable[[bytes, Random], bytes]] = {
    ".png": _png, ".jpg": _jpeg, ".webp": _riff, ".tiff": _tiff, ".gif": _gif, ".avif": _boxes,
    ".ppm": _netpbm, ".pgm": _netpbm, ".pbm": _netpbm,
}  # fmt: skip
