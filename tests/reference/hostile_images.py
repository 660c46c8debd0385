"""Hostile images: files that cost far more to decode than their size suggests, and damaged files.

Each function returns the bytes of one file and is deterministic. ``HOSTILE`` has one file of each kind:

>>> sorted(HOSTILE)[:3]
['bit-flipped jpeg', 'bit-flipped png', 'bit-flipped webp']
>>> len(HOSTILE["huge webp"]())
28
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from io import BytesIO

import numpy as np
from PIL import Image

SOI, EOI, SOS, SOF2 = b"\xff\xd8", b"\xff\xd9", b"\xff\xda", b"\xff\xc2"


def ordinary(kind: str = "JPEG", width: int = 120, height: int = 90, seed: int = 0, **options: object) -> bytes:
    """A small valid image: coloured noise over a gradient."""
    noise = np.random.default_rng(seed).integers(0, 64, (height, width, 3), dtype=np.uint8)
    gradient = np.linspace(0, 190, width, dtype=np.uint8)[None, :, None]
    encoded = BytesIO()
    Image.fromarray(noise + gradient).save(encoded, kind, **options)
    return encoded.getvalue()


def jpeg_of_scans(scans: int = 33_000, width: int = 4_000, height: int = 4_000) -> bytes:
    """A progressive JPEG of empty scans: the decoder still visits all blocks for each scan."""
    quantisation = b"\xff\xdb" + struct.pack(">HB", 67, 0) + bytes([1] * 64)
    frame = SOF2 + struct.pack(">HBHHBBBB", 11, 8, height, width, 1, 1, 0x11, 0)
    refine = SOS + struct.pack(">HBBBBBB", 8, 1, 1, 0, 0, 0, 0x10)  # one more bit of the DC values, without a table
    return SOI + quantisation + frame + refine * scans + EOI


def jpeg_of_markers(size: int = 20_000_000, marker: int = 0xE5) -> bytes:
    """A JPEG that begins with ``size`` bytes of empty segments (APP5); Pillow keeps an object for each."""
    return SOI + struct.pack(">BBH", 0xFF, marker, 2) * (size // 4) + ordinary()[2:]


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width: int, height: int, extra: bytes = b"", rows: int | None = None) -> bytes:
    """A black PNG; ``extra``: chunks before the pixels; ``rows``: number of pixel rows that the file really has."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(bytes((1 + 3 * width) * (height if rows is None else rows)))
    body = png_chunk(b"IHDR", head) + extra + png_chunk(b"IDAT", pixels) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def png_of_text(chunks: int = 60, length: int = 1_000_000) -> bytes:
    """A PNG whose compressed texts (zTXt) expand to ``chunks`` × ``length`` bytes."""
    text = zlib.compress(bytes(length), 9)
    return png(8, 8, b"".join(png_chunk(b"zTXt", b"key%d\0\0" % number + text) for number in range(chunks)))


def png_of_chunks(chunks: int = 1_000_000, kind: bytes = b"prVt") -> bytes:
    """A PNG with very many empty private chunks; Pillow keeps them all."""
    return png(8, 8, png_chunk(kind, b"") * chunks)


def webp_of_size(width: int = 16_383, height: int = 6_092) -> bytes:
    """A lossless WebP of one colour, whose pixels take no bits: 28 bytes for 99.8 megapixels."""
    bits, position = 0, 0
    codes = [(0b0001, 4)] * 5  # Huffman codes of one symbol for green, red, blue, alpha, distance
    for value, length in [(0x2F, 8), (width - 1, 14), (height - 1, 14), (0, 1), (0, 3), (0, 3), *codes]:
        bits |= value << position
        position += length
    body = bits.to_bytes(-(-position // 8), "little")
    body += bytes(len(body) % 2)
    chunk = b"VP8L" + struct.pack("<I", len(body)) + body
    return b"RIFF" + struct.pack("<I", 4 + len(chunk)) + b"WEBP" + chunk


def gif_of_comments(size: int = 20_000_000) -> bytes:
    """A GIF that begins with ``size`` bytes of comment, in blocks of 255."""
    whole = ordinary("GIF")
    blocks = (b"\xff" + bytes(255)) * (size // 256)
    start = 13 + 3 * 2 ** ((whole[10] & 7) + 1)  # after the header and the palette
    return whole[:start] + b"\x21\xfe" + blocks + b"\0" + whole[start:]


def ppm_of_numbers(count: int = 8_000_000) -> bytes:
    """A PPM in plain text, which Pillow reads in Python: its header looks ordinary, but it takes seconds."""
    return b"P3 3000 3000 255\n" + b"1 " * count


def ppm_of_comments(size: int = 2_000_000) -> bytes:
    """A PPM of empty comments; Pillow copies the rest of the file for each."""
    return b"P3 3000 3000 255\n" + b"#\n" * (size // 2)


def tags(count: int, length: int, offset: int, first: int = 0x8000) -> bytes:
    """An EXIF or TIFF directory of ``count`` byte strings of ``length`` bytes, all at the same ``offset``."""
    entries = b"".join(struct.pack("<HHII", first + number, 1, length, offset) for number in range(count))
    return b"II*\0" + struct.pack("<IH", 8, count) + entries + struct.pack("<I", 0)


def with_exif(exif: bytes, kind: str = "JPEG") -> bytes:
    """A valid JPEG or PNG with the given EXIF bytes."""
    whole = ordinary(kind, dpi=(72, 72))  # otherwise Pillow looks for it in the EXIF, and hides the error
    if kind == "PNG":
        return whole[:33] + png_chunk(b"eXIf", exif) + whole[33:]
    segment = b"Exif\0\0" + exif
    return SOI + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + whole[2:]


def png_of_shared_tags(count: int = 1_000, length: int = 1_000_000) -> bytes:
    """EXIF tags that share the same bytes; a reader that copies them needs ``count`` × ``length`` bytes."""
    return with_exif(tags(count, length, 0) + bytes(length), "PNG")


def png_of_warnings(count: int = 32_000) -> bytes:
    """EXIF tags that claim more bytes than the file has; Pillow warns about each."""
    return with_exif(tags(count, 2**31, 0), "PNG")


def truncated(content: bytes, keep: float = 0.6) -> bytes:
    return content[: int(len(content) * keep)]


def bit_flipped(content: bytes, flips: int = 30, seed: int = 0) -> bytes:
    """The same file with some random bits flipped."""
    damaged = bytearray(content)
    rng = np.random.default_rng(seed)
    for place, bit in zip(rng.integers(len(damaged), size=flips), rng.integers(8, size=flips), strict=True):
        damaged[place] ^= 1 << int(bit)
    return bytes(damaged)


SLOW = "ppm of numbers"  # only a time limit stops it
# No reader may take more than about two seconds and 300 MB for these, whether it reads or refuses them.
BOMBS: dict[str, Callable[[], bytes]] = {
    "jpeg of scans": jpeg_of_scans,
    "jpeg of markers": jpeg_of_markers,
    "png of text": png_of_text,
    "png of chunks": png_of_chunks,
    "png of shared tags": png_of_shared_tags,
    "huge png": lambda: png(20_000, 20_000, rows=1),
    "huge webp": webp_of_size,
    "gif of comments": gif_of_comments,
    "ppm of comments": ppm_of_comments,
    SLOW: ppm_of_numbers,
}
DAMAGED: dict[str, Callable[[], bytes]] = {
    "empty": lambda: b"",
    "text": lambda: b"<svg onload=alert(1)>" * 9,
    "broken exif": lambda: with_exif(b"XX no TIFF header"),
    "short exif": lambda: with_exif(b"II"),
    "exif without end": lambda: with_exif(b"II*\0\xff\xff\xff\x7f"),
    "png of warnings": png_of_warnings,
    **{f"truncated {kind.lower()}": lambda kind=kind: truncated(ordinary(kind)) for kind in ("JPEG", "PNG", "WEBP")},
    **{
        f"bit-flipped {kind.lower()}": lambda kind=kind: bit_flipped(ordinary(kind)) for kind in ("JPEG", "PNG", "WEBP")
    },
}
HOSTILE = BOMBS | DAMAGED
