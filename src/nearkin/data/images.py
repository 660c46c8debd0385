"""Decoding: whatever a picture file holds becomes eight-bit RGB, or a reason why it cannot."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from nearkin.files import open_regular

# Of all that Pillow could be made to run by a file's content, only picture formats people have.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 100_000_000  # a picture beyond this is taken for a decompression bomb

# The limit above is checked before decoding; Pillow's own warning would only repeat it.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Unreadable:
    """A file that is not a readable image, and why."""

    path: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def read_image(path: Path) -> Image.Image | Unreadable:
    """The first frame of an image file, upright, as eight-bit RGB.

    The failure is a value, not an exception, so that it can travel out of a worker process as one line.

    >>> print(read_image(Path("no-such-file.jpg")))
    no-such-file.jpg: no such file
    """
    return _attempt(path, to_rgb)


def read_small(path: Path, side: int) -> Image.Image | Unreadable:
    """The same for a thumbnail: a large picture is decoded only as finely as a square of ``side`` pixels can show.

    It is still at least twice as wide or as high as that, if the file is, so that scaling it down looks good.

    >>> read_small(Path("no-such-file.jpg"), side=64).reason
    'no such file'
    """

    def decode(image: Image.Image) -> Image.Image:
        image.draft("RGB", (2 * side, 2 * side))  # a JPEG leaves out what is finer
        return to_rgb(image, max(1, max(image.size) // (2 * side)))

    return _attempt(path, decode)


def image_size(path: Path) -> tuple[int, int] | None:
    """Width and height of the upright picture, read from the file's head alone; None where it cannot be read.

    >>> image_size(Path("no-such-file.jpg"))
    """
    on_its_side = False

    def read_orientation(image: Image.Image) -> Image.Image:
        nonlocal on_its_side
        if image.format == "JPEG":  # cameras' format; a PNG would be decoded for this
            on_its_side = image.getexif().get(ExifTags.Base.Orientation, 1) >= 5
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
    if image.getexif().get(ExifTags.Base.Orientation, 1) != 1:  # a copy, which most pictures do without
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16") or image.mode in ("I", "F"):
        image = _scaled(image)
    if image.mode in ("1", "P", "PA"):  # whose values have no mean
        image = image.convert("RGBA" if image.has_transparency_data else "RGB")
    if smaller > 1:
        image = image.reduce(smaller)
    if image.has_transparency_data:
        layered = image if image.mode == "RGBA" else image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(layered, mask=layered)
    image.load()
    return image if image.mode == "RGB" else image.convert("RGB")


def decode_coarsely(path: Path) -> Image.Image | Unreadable:
    """As little as shows that an image file can be read: a JPEG is decoded to its end, but eight times smaller."""

    def decode(image: Image.Image) -> Image.Image:
        image.draft("RGB", (64, 64))
        image.load()
        return image

    return _attempt(path, decode)


def _attempt(path: Path, decode: Callable[[Image.Image], Image.Image]) -> Image.Image | Unreadable:
    try:
        with open_regular(path) as file, Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return Unreadable(path, f"{image.width}×{image.height} pixels are more than {MAX_PIXELS:,}")
            return decode(image)
    except FileNotFoundError:
        return Unreadable(path, "no such file")
    except IsADirectoryError:
        return Unreadable(path, "a folder, not a picture")
    except Image.DecompressionBombError:
        return Unreadable(path, f"more than {MAX_PIXELS:,} pixels")
    except UnidentifiedImageError:
        return Unreadable(path, "not an image that can be decoded")
    # Decoders meet hostile bytes and raise nearly anything; for the user it is one thing: not readable.
    except Exception as error:
        return Unreadable(path, str(error) or type(error).__name__)


def _scaled(image: Image.Image) -> Image.Image:
    """Sixteen bits lose the lower eight; of values of unknown range (modes I and F), see `_range`."""
    low, per_step = (0.0, 256.0) if image.mode.startswith("I;16") else _range(image)
    return Image.fromarray(np.concatenate([((values - low) / per_step).astype(np.uint8) for values in _strips(image)]))


def _range(image: Image.Image) -> tuple[float, float]:
    """What becomes 0, and how much one step is: eight bits if the values fit, sixteen if whole, else all there is."""
    low, high = (float(end) for end in image.getextrema())  # type: ignore[arg-type]
    if low >= 0 and high <= 65535 and all((values == np.round(values)).all() for values in _strips(image)):
        return 0.0, 1.0 if high <= 255 else 257.0
    return low, max(high - low, 1e-12) / 255


def _strips(image: Image.Image, rows: int = 256) -> Iterator[npt.NDArray[np.float64]]:
    """A few rows (rows, width) at a time: of a large picture, all at once would take several times its memory."""
    for top in range(0, image.height, rows):
        strip = image.crop((0, top, image.width, min(top + rows, image.height)))
        yield np.asarray(strip, dtype=np.float64)
