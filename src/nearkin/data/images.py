"""Decodes image files to eight-bit RGB, or returns the reason why it cannot.

Every reader goes through the checks here: a file whose header announces too much is refused before it is decoded.
`data/decoders.py` enforces hard limits on the rest.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

from PIL import AvifImagePlugin, ExifTags, Image, TiffImagePlugin, UnidentifiedImageError, WebPImagePlugin  # noqa: F401

from nearkin.files import open_regular
from nearkin.names import is_utf8

# Pillow picks a decoder by content. Only common formats are allowed, to keep the attack surface small. The plugins
# imported above are those that Pillow would otherwise load only together with all its others.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
NOT_AN_IMAGE = "not an image that can be decoded"
MAX_BYTES = 2**28  # file size
MAX_PIXELS = 100_000_000  # more is treated as a decompression bomb
MAX_PIXELS_OF = {"WEBP": 14_000_000, "AVIF": 14_000_000}  # these decoders need about 21 bytes per pixel
SHRINK_ABOVE = 16_000_000  # pixels; a larger image is reduced while it is decoded
# A JPEG is decoded at the lowest resolution that exceeds the one it will be resized to by this factor. Of a photo, 99 %
# of the resized pixels then differ by at most 2 from those of a full decode. A photo of 12 megapixels is decoded at a
# quarter of its width for a short side of 256.
COVER = 2.9
MAX_ASPECT_RATIO = 16  # a longer image is cropped
MAX_SEGMENTS = 1_000  # in a JPEG before its pixels; Pillow keeps an object for each
MAX_SCANS = 100  # in a JPEG; decoding one scan goes over the whole image, and encoders write about ten
# In a PNG: pixels come in chunks of 8 kB or more, a text can expand to a megabyte, and Pillow keeps all other chunks.
MAX_CHUNKS = {"pixels": 100_000, "compressed text": 16, "other data": 1_000}
MAX_COMMENTS = 100  # in a plain-text PPM; Pillow copies the rest of the file for each

JPEG, PNG = b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n"
_MARKER = re.compile(rb"\xff([^\x00\x01\xc8\xd0-\xd8\xf0-\xfd\xff])")  # of a JPEG, except those without a segment
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

# Pillow warns about every damaged tag, and about sizes, which are checked here.
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Unreadable:
    """A file that could not be read as an image, and the reason."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class BeyondLimits(Unreadable):
    """An image that would take too much memory or time to decode."""


def read_image(source: Path | bytes, short: int | None = None) -> Image.Image | Unreadable:
    """Reads the first frame of an image file, upright, as eight-bit RGB; above 16 megapixels, at a reduced size.

    A failure is returned, not raised, so that a worker process can send it as one line.

    Args:
        source: the file, or its content.
        short: the short side that the image will be resized to. A JPEG with far more pixels than that is decoded at a
            half, a quarter or an eighth of its resolution, which is faster. The resized image is nearly the same.

    >>> print(read_image(Path("no-such-file.jpg")))
    no-such-file.jpg: no such file
    """
    return _attempt(source, partial(_whole, short=short))


def read_small(source: Path | bytes, side: int) -> Image.Image | Unreadable:
    """Like `read_image`, for a thumbnail: decodes a large image at no higher resolution than ``side`` pixels need.

    The longer side stays at least ``2 * side`` pixels, if it is that long in the file, so that scaling down looks good.

    >>> read_small(Path("no-such-file.jpg"), side=64).reason
    'no such file'
    """

    def decode(image: Image.Image) -> Image.Image:
        image.draft("RGB", (2 * side, 2 * side))
        return to_rgb(image, max(1, max(image.size) // (2 * side)))

    return _attempt(source, decode)


def image_size(path: Path) -> tuple[int, int] | None:
    """Returns width and height of the upright image, read from the header alone; None if it cannot be read.

    >>> image_size(Path("no-such-file.jpg"))
    """
    on_its_side = False

    def read_orientation(image: Image.Image) -> Image.Image:
        nonlocal on_its_side
        if image.format == "JPEG":  # what cameras write; for a PNG, this would decode the image
            on_its_side = _orientation(image) >= 5
        return image

    opened = _attempt(path, read_orientation)
    if isinstance(opened, Unreadable):
        return None
    return (opened.height, opened.width) if on_its_side else opened.size


def to_rgb(image: Image.Image, reduce: int = 1) -> Image.Image:
    """Converts any Pillow image to upright RGB: scales sixteen bits to eight, puts transparency on white.

    Args:
        reduce: factor by which to shrink the image. Reducing here takes less memory than reducing the result.

    >>> to_rgb(Image.new("LA", (9, 6)), reduce=3).size
    (3, 2)
    """
    image.load()
    upright = _UPRIGHT.get(_orientation(image))  # after `load`, which turns a TIFF upright itself
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        from nearkin.data.depth import eight_bits  # here: few images need it, and it imports NumPy

        image = eight_bits(image)
    if image.mode in ("1", "P", "PA"):  # their values cannot be averaged
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    if reduce > 1:
        image = image.reduce(reduce)
    if image.has_transparency_data:
        layered = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(layered, mask=layered)
    image = image if image.mode == "RGB" else image.convert("RGB")
    return image if upright is None else image.transpose(upright)


def limit_aspect_ratio(image: Image.Image) -> Image.Image:
    """Crops the centre of an image whose sides differ by more than a factor of 16.

    Without this, a strip of 1 × 60,000 pixels would have four billion after resizing its short side to 256.

    >>> limit_aspect_ratio(Image.new("L", (2, 100))).size, limit_aspect_ratio(Image.new("L", (30, 20))).size
    ((2, 32), (30, 20))
    """
    width, height = (min(side, MAX_ASPECT_RATIO * min(image.size)) for side in image.size)
    if (width, height) == image.size:
        return image
    left, top = (image.width - width) // 2, (image.height - height) // 2
    return image.crop((left, top, left + width, top + height))


class _TooMuch(Exception):
    """A file exceeds one of the limits above; the message names it."""


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
        return Unreadable(path, "is a folder, not an image")
    except _TooMuch as error:
        return BeyondLimits(path, str(error))
    except Image.DecompressionBombError:
        return BeyondLimits(path, f"more than {MAX_PIXELS:,} pixels")
    except MemoryError:
        return BeyondLimits(path, "takes too much memory to decode")
    except UnidentifiedImageError:
        return Unreadable(path, NOT_AN_IMAGE)
    # On hostile bytes, decoders raise nearly any exception. To the user, all mean the same: not readable.
    except Exception as error:
        return Unreadable(path, " ".join(str(error).split()) or type(error).__name__)


def _opened(source: Path | bytes) -> BinaryIO:
    if isinstance(source, bytes):
        return BytesIO(source)
    file = open_regular(source)
    if (size := os.fstat(file.fileno()).st_size) > MAX_BYTES:
        file.close()
        raise _TooMuch(f"{size / 1e6:,.0f} MB exceed the limit of {MAX_BYTES / 1e6:,.0f} MB")
    return file


def _check_head(stream: BinaryIO) -> None:
    """Raises `_TooMuch` for files that are cheap to make and expensive to open, such as a JPEG with 33,000 scans."""
    head = stream.read(2**15)
    if head.startswith(JPEG):
        if not _is_sequential(head) and (rest := stream.read()):
            _is_sequential(head + rest)
    elif head.startswith(PNG):
        _check_png(stream)
    elif head[:2] in (b"P1", b"P2", b"P3") and (head + stream.read()).count(b"#") > MAX_COMMENTS:
        raise _TooMuch(f"more than {MAX_COMMENTS} comments")
    elif head[8:12] == b"WEBP":
        _check_size("WEBP", *_webp_size(head))  # Pillow allocates memory for all pixels when it opens one
    stream.seek(0)


def _check_size(kind: str, width: int, height: int) -> None:
    most = MAX_PIXELS_OF.get(kind, MAX_PIXELS)
    if width * height > most:
        raise _TooMuch(f"{width}×{height} pixels exceed the limit of {most:,}")


def _is_sequential(content: bytes) -> bool:
    """Whether a JPEG has all its pixels in one scan, as most do; False if ``content`` ends before that is known."""
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
            break  # other bytes may look like a scan, but no scan is missed
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


def _whole(image: Image.Image, short: int | None) -> Image.Image:
    if (factor := max(_shrink_factor(image), _spare_factor(image, short))) > 1:
        image.draft("RGB", (image.width // factor, image.height // factor))  # decodes a JPEG at a lower resolution
    return to_rgb(image, _shrink_factor(image))


def _spare_factor(image: Image.Image, short: int | None) -> int:
    """By how much a JPEG can shrink while it is decoded: a factor that keeps the aspect ratio, to the pixel."""
    width, height = image.size
    fitting = (f for f in (8, 4, 2) if short and min(width, height) >= f * COVER * short and not width % f + height % f)
    return next(fitting, 1)


def _shrink_factor(image: Image.Image) -> int:
    return max(1, math.ceil(math.sqrt(image.width * image.height / SHRINK_ABOVE)))


def _orientation(image: Image.Image) -> int:
    """Returns the EXIF orientation, 1 (upright) to 8; 1 if the EXIF data are damaged, since the pixels may be fine."""
    try:
        return int(image.getexif().get(ExifTags.Base.Orientation, 1))
    except Exception:
        return 1
