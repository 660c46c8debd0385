"""Decoding: whatever an image file holds becomes eight-bit RGB, or a reason why it cannot.

What a few bytes of a file's head show to be too much is refused before it is decoded, here and so by every reader.
`data/decoders.py` puts a firm limit on the rest.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from PIL import AvifImagePlugin, ExifTags, Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin  # noqa: F401

from nearkin.files import open_regular
from nearkin.names import is_utf8

# Of all that Pillow could be made to run by a file's content, only picture formats people have. Those imported above
# are the ones among them that it would only load together with all others.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
NOT_AN_IMAGE = "not an image that can be decoded"
MAX_BYTES = 2**28  # of a file
MAX_PIXELS = 100_000_000  # a picture beyond this is taken for a decompression bomb
MAX_PIXELS_OF = {"WEBP": 14_000_000, "AVIF": 14_000_000}  # whose decoders take some 21 bytes for a pixel
PHOTO = 16_000_000  # pixels; a larger image is made smaller while it is decoded
LONGEST = 16  # times its short side; the ends of a longer image are cut off
MAX_SEGMENTS = 1_000  # of a JPEG before its pixels; Pillow keeps an object for each
MAX_SCANS = 100  # of a JPEG, all of which is gone through for each; programs write ten
# Of a PNG: pixels come in pieces of 8 kB or more, a text may unfold to a megabyte, and Pillow keeps all the others.
MAX_CHUNKS = {"pixels": 100_000, "compressed text": 16, "other data": 1_000}
MAX_COMMENTS = 100  # in a PPM of plain text; Pillow copies what is left of it for each

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_MARKER = re.compile(rb"\xff([^\x00\x01\xc8\xd0-\xd8\xf0-\xfd\xff])")  # of a JPEG, but for those that stand alone
_SEQUENTIAL, _PROGRESSIVE, _END, _SCAN = (b"\xc0", b"\xc1", b"\xc9"), (b"\xc2", b"\xca"), b"\xd9", b"\xda"
_CHUNKS = {b"IDAT": "pixels", b"fdAT": "pixels", b"fcTL": "pixels"} | dict.fromkeys(
    (b"zTXt", b"iTXt", b"iCCP"), "compressed text"
)
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

# Pillow warns of every damaged tag in a sentence of its own, and of sizes, which are checked here.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Unreadable:
    """A file that is not a readable image, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class BeyondLimits(Unreadable):
    """An image that takes more memory or time to decode than one may."""


def read_image(source: Path | bytes) -> Image.Image | Unreadable:
    """The first frame of an image file, upright, as eight-bit RGB; one of more than 16 megapixels is made smaller.

    The failure is a value, not an exception, so that it can travel out of a worker process as one line.

    Args:
        source: the file, or what it holds.

    >>> print(read_image(Path("no-such-file.jpg")))
    no-such-file.jpg: no such file
    """
    return _attempt(source, _whole)


def read_resized(source: Path | bytes, short: int, resampling: Image.Resampling) -> Image.Image | Unreadable:
    """As `read_image`, then with a short side of ``short`` pixels: what `make_transform` would do with it first."""

    def decode(image: Image.Image) -> Image.Image:
        image = without_long_ends(_whole(image))
        width, height = (side * short // min(image.size) for side in image.size)
        return image if image.size == (width, height) else image.resize((width, height), resampling)

    return _attempt(source, decode)


def read_small(source: Path | bytes, side: int) -> Image.Image | Unreadable:
    """The same for a thumbnail: a large picture is decoded only as finely as a square of ``side`` pixels can show.

    It is still at least twice as wide or as high as that, if the file is, so that scaling it down looks good.

    >>> read_small(Path("no-such-file.jpg"), side=64).reason
    'no such file'
    """

    def decode(image: Image.Image) -> Image.Image:
        image.draft("RGB", (2 * side, 2 * side))
        return to_rgb(image, max(1, max(image.size) // (2 * side)))

    return _attempt(source, decode)


def image_size(path: Path) -> tuple[int, int] | None:
    """Width and height of the upright picture, read from the file's head alone; None where it cannot be read.

    >>> image_size(Path("no-such-file.jpg"))
    """
    on_its_side = False

    def read_orientation(image: Image.Image) -> Image.Image:
        nonlocal on_its_side
        if image.format == "JPEG":  # cameras' format; a PNG would be decoded for this
            on_its_side = _orientation(image) >= 5
        return image

    opened = _attempt(path, read_orientation)
    if isinstance(opened, Unreadable):
        return None
    return (opened.height, opened.width) if on_its_side else opened.size


def to_rgb(image: Image.Image, smaller: int = 1) -> Image.Image:
    """Any Pillow image upright and as RGB: sixteen bits are scaled, transparency becomes white.

    Args:
        smaller: makes it this many times smaller on the way, which takes less memory than to do so afterwards.

    >>> to_rgb(Image.new("LA", (9, 6)), smaller=3).size
    (3, 2)
    """
    image.load()
    upright = _UPRIGHT.get(_orientation(image))  # now: a TIFF has turned itself while it was loaded
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        from nearkin.data.depth import eight_bits  # imported here: few images need NumPy, and most decoders do without

        image = eight_bits(image)
    if image.mode in ("1", "P", "PA"):  # whose values have no mean
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    if smaller > 1:
        image = image.reduce(smaller)
    if image.has_transparency_data:
        layered = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(layered, mask=layered)
    image = image if image.mode == "RGB" else image.convert("RGB")
    return image if upright is None else image.transpose(upright)


def without_long_ends(picture: Image.Image) -> Image.Image:
    """A strip of 1 × 60,000 pixels would have four billion with its short side at 256.

    >>> without_long_ends(Image.new("L", (2, 100))).size, without_long_ends(Image.new("L", (30, 20))).size
    ((2, 32), (30, 20))
    """
    width, height = (min(side, LONGEST * min(picture.size)) for side in picture.size)
    if (width, height) == picture.size:
        return picture
    left, top = (picture.width - width) // 2, (picture.height - height) // 2
    return picture.crop((left, top, left + width, top + height))


class _TooMuch(Exception):
    """A file beyond one of the limits above; says which."""


def _attempt(source: Path | bytes, decode: Callable[[Image.Image], Image.Image]) -> Image.Image | Unreadable:
    path = source if isinstance(source, Path) else Path("upload")
    if not is_utf8(str(path)):
        return Unreadable(path, "its name is not UTF-8; rename it")
    try:
        with _opened(source) as stream:
            _check_head(stream)
            with Image.open(stream, formats=FORMATS) as image:
                _check_size(image.format or "", image.width, image.height)
                return decode(image)
    except FileNotFoundError:
        return Unreadable(path, "no such file")
    except IsADirectoryError:
        return Unreadable(path, "a folder, not a picture")
    except _TooMuch as error:
        return BeyondLimits(path, str(error))
    except Image.DecompressionBombError:
        return BeyondLimits(path, f"more than {MAX_PIXELS:,} pixels")
    except MemoryError:
        return BeyondLimits(path, "takes too much memory to decode")
    except UnidentifiedImageError:
        return Unreadable(path, NOT_AN_IMAGE)
    # Decoders meet hostile bytes and raise nearly anything; for the user it is one thing: not readable.
    except Exception as error:
        return Unreadable(path, " ".join(str(error).split()) or type(error).__name__)


def _opened(source: Path | bytes) -> BinaryIO:
    if isinstance(source, bytes):
        return BytesIO(source)
    file = open_regular(source)
    if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
        file.close()
        raise _TooMuch(f"{size / 1e6:,.0f} MB are more than {MAX_BYTES / 1e6:,.0f} MB")
    return file


def _check_head(stream: BinaryIO) -> None:
    """Raises `_TooMuch` for what is cheap to make and dear to open: segments without end, an image in 33,000 scans."""
    head = stream.read(2**15)
    if head.startswith(JPEG):
        if not _is_sequential(head) and (rest := stream.read()):
            _is_sequential(head + rest)
    elif head.startswith(PNG):
        _check_png(stream)
    elif head[:2] in (b"P1", b"P2", b"P3") and (head + stream.read()).count(b"#") > MAX_COMMENTS:
        raise _TooMuch(f"more than {MAX_COMMENTS} comments")
    elif head[8:12] == b"WEBP":
        _check_size("WEBP", *_webp_size(head))  # when Pillow has opened it, it has memory for all pixels
    stream.seek(0)


def _check_size(kind: str, width: int, height: int) -> None:
    most = MAX_PIXELS_OF.get(kind, MAX_PIXELS)
    if width * height > most:
        raise _TooMuch(f"{width}×{height} pixels are more than {most:,}")


def _is_sequential(content: bytes) -> bool:
    """Whether all pixels of a JPEG come in one scan, as usual; False where ``content`` does not go so far."""
    segments = scans = components = position = 0
    progressive = False
    while (found := _MARKER.search(content, position)) and (kind := found[1]) != _END:
        body = found.end() + 2
        position = found.end() + int.from_bytes(content[found.end() : body])
        if kind in _SEQUENTIAL or kind in _PROGRESSIVE:
            progressive, components = kind in _PROGRESSIVE, int.from_bytes(content[body + 5 : body + 6])
        if kind != _SCAN:
            segments += 1
        elif not progressive and int.from_bytes(content[body : body + 1]) >= components:
            return True
        else:
            scans += 1
        if segments > MAX_SEGMENTS:
            raise _TooMuch(f"more than {MAX_SEGMENTS:,} segments")
        if scans > MAX_SCANS:
            raise _TooMuch(f"more than {MAX_SCANS} scans")
        if scans == 1 and content.count(b"\xff" + _SCAN, position) < MAX_SCANS:
            break  # other bytes may look like a scan, but none hides
    return False


def _check_png(stream: BinaryIO) -> None:
    stream.seek(len(PNG))
    left = MAX_CHUNKS.copy()
    while len(head := stream.read(8)) == 8:
        kind = _CHUNKS.get(head[4:], "other data")
        left[kind] -= 1
        if left[kind] < 0:
            raise _TooMuch(f"more than {MAX_CHUNKS[kind]:,} chunks of {kind}")
        stream.seek(int.from_bytes(head[:4]) + 4, 1)


def _webp_size(head: bytes) -> tuple[int, int]:
    if head[12:16] == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    both = int.from_bytes(head[21:25] if head[12:16] == b"VP8L" else head[26:30], "little")
    if head[12:16] == b"VP8L":
        return 1 + (both & 0x3FFF), 1 + (both >> 14 & 0x3FFF)
    return both & 0x3FFF, both >> 16 & 0x3FFF


def _whole(image: Image.Image) -> Image.Image:
    if (factor := _shrink_factor(image)) > 1:
        image.draft("RGB", (image.width // factor, image.height // factor))  # a JPEG leaves out what is finer
    return to_rgb(image, _shrink_factor(image))


def _shrink_factor(image: Image.Image) -> int:
    return max(1, math.ceil(math.sqrt(image.width * image.height / PHOTO)))


def _orientation(image: Image.Image) -> int:
    """What the EXIF data say of it, 1 (upright) to 8; they may be damaged where the pixels are not."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1
