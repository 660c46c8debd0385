"""Decoding: whatever a picture file holds becomes eight-bit RGB, or a reason why it cannot."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from nearkin.data.items import ImageFiles
from nearkin.errors import UserError
from nearkin.files import cache_folder, write_text
from nearkin.progress import track

# Of all that Pillow could be made to run by a file's content, only picture formats people have.
FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
MAX_PIXELS = 100_000_000  # a picture beyond this is taken for a decompression bomb

# The limit above is checked before decoding; Pillow's own warning would only repeat it.
warnings.simplefilter("ignore", Image.DecompressionBombWarning)


@dataclass(frozen=True)
class Unreadable:
    """A file that is no readable image, and why."""

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


def to_rgb(image: Image.Image) -> Image.Image:
    """Any Pillow image upright and as RGB: sixteen bits are scaled, transparency lies on white."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode in ("I", "F"):
        return _scaled(np.asarray(image, dtype=np.float64)).convert("RGB")
    if image.has_transparency_data:
        layered = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", image.size, "white"), layered).convert("RGB")
    return image.convert("RGB")


def listed(unreadable: list[Unreadable], most: int = 100) -> str:
    """One line each, and how many more there are."""
    lines = [str(each) for each in unreadable[:most]]
    if len(unreadable) > most:
        lines.append(f"… and {len(unreadable) - most:,} more")
    return "\n  ".join(lines)


def find_unreadable(files: ImageFiles) -> list[Unreadable]:
    """Decodes every file once and lists those that cannot be read.

    That all can be read is remembered until a file changes; a failure is not, for it may be mended in many ways.
    """
    all_readable = cache_folder() / "readable" / files.fingerprint()
    if all_readable.exists():
        return []
    found = [verdict for verdict in track(_verdicts(files), "checking images", len(files)) if verdict]
    if not found:
        with suppress(UserError):  # without a cache the check is only repeated
            write_text(all_readable, "")
    return found


def _verdicts(files: ImageFiles) -> Iterator[Unreadable | None]:
    def verdict(path: Path) -> Unreadable | None:
        outcome = _attempt(path, _decode_coarsely)
        return outcome if isinstance(outcome, Unreadable) else None

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(verdict, files.paths)


def _decode_coarsely(image: Image.Image) -> Image.Image:
    image.draft("RGB", (64, 64))  # a JPEG is still read to its end, but decoded eight times smaller
    image.load()
    return image


def _attempt(path: Path, decode: Callable[[Image.Image], Image.Image]) -> Image.Image | Unreadable:
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return Unreadable(path, f"{image.width}×{image.height} pixels are more than {MAX_PIXELS:,}")
            return decode(image)
    except FileNotFoundError:
        return Unreadable(path, "no such file")
    except Image.DecompressionBombError:
        return Unreadable(path, f"more than {MAX_PIXELS:,} pixels")
    except UnidentifiedImageError:
        return Unreadable(path, "not an image that can be decoded")
    # Decoders meet hostile bytes and raise nearly anything; for the user it is one thing: not readable.
    except Exception as error:
        return Unreadable(path, str(error) or type(error).__name__)


def _scaled(values: npt.NDArray[np.float64]) -> Image.Image:
    """Values of unknown range: eight-bit if they fit, sixteen-bit if whole numbers, else from least to most."""
    low, high = float(values.min()), float(values.max())
    if low >= 0 and high <= 255 and np.array_equal(values, np.round(values)):
        scaled = values
    elif low >= 0 and high <= 65535 and np.array_equal(values, np.round(values)):
        scaled = values / 257
    else:
        scaled = (values - low) / max(high - low, 1e-12) * 255
    return Image.fromarray(scaled.astype(np.uint8))
