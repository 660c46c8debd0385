"""A model that needs no training: it embeds an image as its mean colour. And images of one colour to try it with."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
from PIL import Image
from torch import Tensor

from nearkin.data.transforms import Preprocess
from nearkin.search.gallery import Gallery
from nearkin.search.local import LocalStore
from nearkin.search.store import Entry

LABELS = {"red": (200, 30, 30), "green": (30, 200, 30), "<b>blue</b>": (30, 30, 200)}
PER_LABEL = 8


class MeanColour:
    """An embedder that counts its calls, and fails for one colour."""

    POISON = (1, 2, 3)
    model = SimpleNamespace(spec=SimpleNamespace(dim=3, preprocess=Preprocess(8, 8, 3, (0.0,) * 3, (1.0,) * 3)))

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def encode(self, images: Sequence[Tensor], progress: bool = True) -> npt.NDArray[np.float32]:
        assert not progress
        self.calls.append(len(images))
        self.may_go_on.wait(10)
        colours = [np.asarray(image, dtype=np.float32).mean(axis=(1, 2)) for image in images]
        if any(np.allclose(colour, self.POISON) for colour in colours):
            raise RuntimeError("the model failed in /secret/folder")
        return np.stack(colours) / 255


def colour_of(label: str, number: int) -> tuple[int, int, int]:
    red, green, blue = list(LABELS.values())[list(LABELS).index(label)]
    return red + number, green + 2 * number, blue + 3 * number


def image_bytes(colour: tuple[int, int, int] = (200, 30, 30), kind: str = "PNG", side: int = 32) -> bytes:
    encoded = BytesIO()
    Image.new("RGB", (side, side), colour).save(encoded, kind)
    return encoded.getvalue()


def make_gallery(folder: Path, embedder: MeanColour) -> Gallery:
    """A real gallery of 24 images in a real store. Ids start at 1, in the order of the labels."""
    entries, vectors = [], []
    for place, label in enumerate(LABELS):
        images = folder / "secret" / f"folder{place}"
        images.mkdir(parents=True)
        for number in range(PER_LABEL):
            path = images / f"<i>{number}.png"
            path.write_bytes(image_bytes(colour_of(label, number), side=96))
            entries.append(Entry(str(path), label, path.stat().st_size, path.stat().st_mtime_ns))
            vectors.append(np.asarray(colour_of(label, number), dtype=np.float32) / 255)
    store = LocalStore(folder / "secret" / "gallery.index", dim=3)
    store.put(entries, np.stack(vectors))
    return Gallery(folder / "secret" / "gallery.index", embedder, store, [folder])  # type: ignore[arg-type]
