"""The small valid files that every case starts from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from PIL.PngImagePlugin import PngInfo

import nearkin


def make_specimens(folder: Path) -> None:
    """Writes images in every format, arrays, a run on images, a run on vectors, and a gallery; always the same."""
    folder.mkdir(parents=True)
    _images(folder / "images")
    _photos(folder / "photos")
    labels = np.repeat(np.arange(8), 6)
    vectors = np.random.default_rng(0).normal(size=(len(labels), 5)).astype(np.float32) + labels[:, None]
    np.savez(folder / "vectors.npz", vectors=vectors, labels=labels, colour=labels % 3)
    images = np.random.default_rng(0).integers(0, 255, (len(labels), 8, 8, 3), dtype=np.uint8)
    split = np.where(labels < 4, "train", "test")
    np.savez(folder / "images.npz", images=images, labels=labels.astype(str), split=split, is_query=labels % 2 == 0)
    small: dict[str, Any] = {"epochs": 1, "batch_size": 9, "per_class": 3, "dim": 8, "workers": 0, "logger": "none"}
    nearkin.train(folder / "photos", out=folder / "run", backbone="small", image_size=16, **small)
    nearkin.train(folder / "vectors.npz", out=folder / "vectors-run", **small)
    nearkin.index(folder / "run", folder / "photos", folder / "gallery").close()
    with nearkin.Gallery.open(folder / "gallery") as gallery:
        gallery.calibrate()


def _photos(folder: Path) -> None:
    """Six classes of six images, with a fixed modification time, because a gallery stores it."""
    rng = np.random.default_rng(0)
    for label in range(6):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(6):
            pixels = 40 * label + rng.integers(0, 40, (24, 20, 3))
            file = folder / f"class{label}" / f"{number}.png"
            Image.fromarray(pixels.astype(np.uint8)).save(file)
            os.utime(file, (1e9, 1e9))


def _images(folder: Path) -> None:
    folder.mkdir()
    rng = np.random.default_rng(0)
    colour = Image.fromarray(rng.integers(0, 255, (24, 32, 3), dtype=np.uint8))
    grey, alpha, palette = colour.convert("L"), colour.convert("RGBA"), colour.quantize(16)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "upright"
    text = PngInfo()
    text.add_text("title", "an image", zip=True)
    text.add_itxt("author", "no one")
    several = {"save_all": True, "append_images": [grey.convert("RGB"), colour.rotate(90)]}
    sixteen = Image.fromarray(rng.integers(0, 65535, (24, 32), dtype=np.uint16))
    for name, image, options in (
        ("baseline.jpg", colour, {}),
        ("progressive.jpg", colour, {"progressive": True, "exif": exif}),
        ("cmyk.jpg", colour.convert("CMYK"), {}),
        ("grey.jpg", grey, {"restart_marker_blocks": 1, "comment": "said"}),
        ("colour.png", colour, {"exif": exif, "pnginfo": text}),
        ("palette.png", palette, {"transparency": 3}),
        ("sixteen.png", sixteen, {}),
        ("alpha.png", alpha, {}),
        ("several.png", colour, several),
        ("palette.gif", palette, {}),
        ("several.gif", palette, several),
        ("colour.bmp", colour, {}),
        ("palette.bmp", palette, {}),
        ("lossy.webp", colour, {"exif": exif}),
        ("lossless.webp", alpha, {"lossless": True}),
        ("several.webp", colour, several),
        ("plain.tiff", colour, {}),
        ("lzw.tiff", colour, {"compression": "tiff_lzw", "exif": exif}),
        ("deflated.tiff", sixteen, {"compression": "tiff_adobe_deflate"}),
        ("jpeg.tiff", colour, {"compression": "jpeg"}),
        ("float.tiff", grey.convert("F"), {}),
        ("colour.avif", colour, {"exif": exif}),
        ("colour.ppm", colour, {}),
        ("grey.pgm", grey, {}),
        ("bits.pbm", grey.convert("1"), {}),
    ):
        image.save(folder / name, **options)
