"""The embedded dataset: pictures of Unicode glyphs in sixteen typefaces, rendered on first use.

A class is a shape. Every glyph that at least ten of the faces hold is a candidate; candidates that look the
same in half of the faces that hold both (Latin A, Greek Alpha, Cyrillic A) are one class, named after the
lowest code point, and only that glyph is rendered for it. Glyphs are centred, so a comma and an apostrophe
are one shape, but keep their size relative to the capitals of their face, so ``c`` and ``C`` are two: the
warps change sizes by less than the third that lies between these.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
import PIL
from matplotlib.ft2font import FT2Font
from PIL import Image, ImageDraw, ImageFont

from nearkin.data.dataset import Dataset
from nearkin.data.items import ImageArray, Indices
from nearkin.errors import UserError
from nearkin.files import atomic_path, cache_folder
from nearkin.progress import track

FACES = (
    *(f"DejaVuSans{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}" for style in ("", "Bol", "Italic", "BolIta")),
)
TRAITS = {"serif": ("Serif", "STIX"), "mono": ("Mono",), "bold": ("Bol",), "italic": ("Ita", "Oblique")}
FACES_NEEDED = 10

CAPITAL_HEIGHT = 0.6  # in picture sides
LARGEST_EXTENT = 0.8  # in picture sides; what is larger is shrunk
SUPERSAMPLING = 3

# Each is drawn evenly from minus to plus its bound; together they bring the Recall@1 of raw pixels to 0.6.
ROTATION = 12.0  # degrees
SCALING = 0.1
SHEAR = 0.2
SHIFT = 0.08  # in picture sides

COMPARED_SIZE = 28
ALIKE = 0.02  # squared distance of two blurred pictures, over the larger of their squared norms
LEAST_INK = 4.0  # white pixels at the compared size

FORMAT = 2  # to be raised whenever the same arguments give other pictures

Arrays = dict[str, npt.NDArray[Any]]
Pictures = npt.NDArray[np.float32]


def glyphs(classes: int = 400, per_class: int = 26, size: int = 28, seed: int = 0, test_per_class: int = 0) -> Dataset:
    """White glyphs on black: one class per shape, every example in some typeface and with its own small warp.

    The first half of the classes is "train", the second "test"; with ``test_per_class`` every class is in both, and the
    last examples of each are "test". Plain shapes are taken before accented
    letters, modifiers and drawing pieces, which come in only when ``classes`` exceeds the number of plain
    ones. The classes are shuffled, so both halves hold the same kinds of glyph. Equal arguments give equal
    pictures, kept in the cache.

    Args:
        classes: how many shapes, at most ``len(distinct_glyphs())``.
        per_class: examples of each; they go round the faces that show the glyph.
        size: side of the square pictures in pixels.
        seed: of the choice of shapes, the order of the faces and the warps.
        test_per_class: of each class, how many examples are tested on; 0: the second half of the classes is.

    Every example has the attributes "face" (str), "serif", "mono", "bold" and "italic" (bool).

    >>> data = glyphs(classes=10, per_class=4)  # doctest: +SKIP
    >>> data.items.pixels.shape, data.classes[0], data.attributes["face"][0]  # doctest: +SKIP
    ((40, 28, 28), 'U+2051 ⁑', 'DejaVuSerif-BoldItalic')
    """
    minima = {"classes": (classes, 4), "per_class": (per_class, 2), "size": (size, 8), "seed": (seed, 0)}
    for name, (value, least) in minima.items():
        if value < least:
            raise UserError(f"glyphs: {name} must be at least {least}, not {value}")
    if not 0 <= test_per_class < per_class:
        raise UserError(f"glyphs: test_per_class must be from 0 to {per_class - 1}, not {test_per_class}")
    stored = _cached(
        f"{classes}x{per_class}-{size}px-seed{seed}",
        ("pixels", "codepoints", "faces"),
        lambda: _render(classes, per_class, size, seed),
    )
    faces = stored["faces"]
    attributes = {"face": np.array(FACES)[faces]}
    for trait, marks in TRAITS.items():
        attributes[trait] = np.array([any(mark in face for mark in marks) for face in FACES])[faces]
    labels, places = np.repeat(np.arange(classes), per_class), np.tile(np.arange(per_class), classes)
    trained_on = places < per_class - test_per_class if test_per_class else labels < classes // 2
    return Dataset(
        name="glyphs",
        items=ImageArray(stored["pixels"]),
        labels=labels,
        classes=[f"U+{code:04X} {chr(code)}" for code in stored["codepoints"].tolist()],
        split=np.where(trained_on, "train", "test"),
        attributes=attributes,
    )


def distinct_glyphs() -> Indices:
    """The code points of all shapes there are to choose from, ascending."""
    codepoints: Indices = _shapes()["codepoints"]
    return codepoints


def _shapes() -> Arrays:
    return _cached("shapes", ("codepoints", "shows"), _find_shapes)


def _cached(name: str, keys: tuple[str, ...], build: Callable[[], Arrays]) -> Arrays:
    """The arrays stored under ``name``, built and stored if they are not there or cannot be read."""
    versions = f"v{FORMAT}-matplotlib{matplotlib.__version__}-pillow{PIL.__version__}"
    target = cache_folder() / "glyphs" / f"{name}-{versions}.npz"
    if target.exists():
        try:
            with np.load(target, allow_pickle=False) as stored:
                return {key: stored[key] for key in keys}
        except Exception:  # damage shows as any of a dozen types, and building again mends them all
            pass
    arrays = build()
    try:
        with atomic_path(target) as partial:
            np.savez(partial, allow_pickle=False, **arrays)
    except UserError as error:  # a cache that cannot be written costs time, not the pictures
        warnings.warn(f"{error}, or set NEARKIN_CACHE to another folder", stacklevel=3)
    return arrays


def _render(classes: int, per_class: int, size: int, seed: int) -> Arrays:
    shapes = _shapes()
    random = np.random.default_rng(seed)
    chosen = _choose(shapes["codepoints"], classes, random)
    codepoints = shapes["codepoints"][chosen]
    rounds = [np.resize(random.permutation(np.flatnonzero(shapes["shows"][i])), per_class) for i in chosen]
    warps = _warps(classes * per_class, size * SUPERSAMPLING, random).reshape(classes, per_class, 6)
    faces = [_Face(name, size) for name in FACES]
    pixels = np.empty((classes, per_class, size, size), dtype=np.uint8)
    for i, code in enumerate(track(codepoints.tolist(), "rendering glyphs")):
        upright = {k: faces[k].draw(code) for k in set(rounds[i].tolist())}
        for j, k in enumerate(rounds[i].tolist()):
            pixels[i, j] = _warped(upright[k], warps[i, j].tolist())
    faces_used = np.concatenate(rounds)
    return {"pixels": pixels.reshape(-1, size, size), "codepoints": codepoints, "faces": faces_used}


def _choose(codepoints: Indices, classes: int, random: np.random.Generator) -> Indices:
    """Positions of plain shapes, then of others; shuffled again, so that both halves hold the same kinds."""
    if classes > len(codepoints):
        raise UserError(f"glyphs: classes must be at most {len(codepoints)}, the distinct shapes, not {classes}")
    shuffled = random.permutation(len(codepoints))
    plain = np.array([_is_plain(chr(code)) for code in codepoints[shuffled]])
    return random.permutation(np.concatenate([shuffled[plain], shuffled[~plain]])[:classes])


def _is_plain(glyph: str) -> bool:
    modifier = unicodedata.category(glyph) in ("Lm", "Sk")
    bracket_piece, box_piece = "\u239b" <= glyph <= "\u23ae", "\u2500" <= glyph <= "\u259f"
    return not (modifier or bracket_piece or box_piece or unicodedata.decomposition(glyph))


def _warps(count: int, side: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """(count, 6) affine maps from the pixels of the warped picture to those of the upright one."""
    rotation, scaling, shear, across, down = random.uniform(-1.0, 1.0, (5, count))
    cos, sin = np.cos(np.radians(ROTATION * rotation)), np.sin(np.radians(ROTATION * rotation))
    scale, slant = np.exp(SCALING * scaling), SHEAR * shear
    xx, xy = scale * cos, scale * (cos * slant - sin)
    yx, yy = scale * sin, scale * (sin * slant + cos)
    x, y = side * (0.5 + SHIFT * across), side * (0.5 + SHIFT * down)  # where the centre goes
    return np.stack([xx, xy, side / 2 - xx * x - xy * y, yx, yy, side / 2 - yx * x - yy * y], axis=1)


def _warped(upright: Image.Image, warp: list[float]) -> npt.NDArray[np.uint8]:
    resampled = upright.transform(upright.size, Image.Transform.AFFINE, warp, Image.Resampling.BILINEAR)
    return np.asarray(resampled.reduce(SUPERSAMPLING))


class _Face:
    """One typeface at one picture size."""

    def __init__(self, name: str, size: int) -> None:
        path = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf")
        self.codepoints = frozenset(FT2Font(path).get_charmap())
        self.side = size * SUPERSAMPLING
        _, top, _, bottom = ImageFont.truetype(path, 1000).getbbox("H", anchor="ls")
        points = 1000 * CAPITAL_HEIGHT * self.side / (bottom - top)
        self.font = ImageFont.truetype(path, points, layout_engine=ImageFont.Layout.BASIC)

    def draw(self, code: int) -> Image.Image:
        """The glyph in the middle of a picture, upright and supersampled."""
        sheet = Image.new("L", (5 * self.side // 2, 2 * self.side))  # holds every glyph of every face
        origin = (self.side // 2, 5 * self.side // 4)
        ImageDraw.Draw(sheet).text(origin, chr(code), fill=255, font=self.font, anchor="ls")
        ink = sheet.crop(sheet.getbbox())
        largest = round(LARGEST_EXTENT * self.side)
        ink.thumbnail((largest, largest), Image.Resampling.LANCZOS)
        picture = Image.new("L", (self.side, self.side))
        picture.paste(ink, ((self.side - ink.width) // 2, (self.side - ink.height) // 2))
        return picture


def _find_shapes() -> Arrays:
    """The lowest code point of each shape, and (shapes, faces) which faces show it as no other shape."""
    faces = [_Face(name, COMPARED_SIZE) for name in FACES]
    codes, counts = np.unique(np.concatenate([list(face.codepoints) for face in faces]), return_counts=True)
    # Letters, numbers, punctuation and symbols: no marks, separators, controls or private use.
    shown = np.array([unicodedata.category(chr(code))[0] in "LNPS" for code in codes])
    codes = codes[shown & (counts >= FACES_NEEDED)]
    shows = np.array([[code in face.codepoints for face in faces] for code in codes.tolist()])
    inked = np.ones(len(codes), dtype=np.bool_)
    alike = []  # for each face the pairs (lower, higher) that look the same in it
    for i, face in enumerate(track(faces, "finding glyphs that look alike")):
        here = np.flatnonzero(shows[:, i])
        drawn = [face.draw(code).reduce(SUPERSAMPLING) for code in codes[here].tolist()]
        pictures = np.stack([np.asarray(picture) for picture in drawn]).astype(np.float32) / np.float32(255)
        inked[here] &= pictures.sum(axis=(1, 2)) >= LEAST_INK
        alike.append(here[_alike_pairs(pictures)])
    pairs, times = np.unique(np.concatenate(alike), axis=0, return_counts=True)
    shared = (shows[pairs[:, 0]] & shows[pairs[:, 1]]).sum(axis=1)
    lowest = _lowest_connected(len(codes), pairs[2 * times >= shared])
    # Where two shapes coincide in a few faces (т is m in italics), those faces show the lower one alone.
    stands = lowest == np.arange(len(codes))
    for i, (lower, higher) in enumerate(pair.T for pair in alike):
        shows[higher[stands[lower] & stands[higher]], i] = False
    kept = stands & inked
    return {"codepoints": codes[kept].astype(np.int64), "shows": shows[kept]}


def _alike_pairs(pictures: Pictures) -> Indices:
    """(pairs, 2) positions, the lower first, of the pictures that are nearly equal."""
    for axis in (1, 2):  # blurred, so that an edge that is off by a part of a pixel is the same edge
        pictures = (np.roll(pictures, 1, axis) + 2 * pictures + np.roll(pictures, -1, axis)) / np.float32(4)
    flat = pictures.reshape(len(pictures), -1)
    norms = np.square(flat).sum(axis=1)
    distances = norms[:, None] + norms - 2 * (flat @ flat.T)
    return np.argwhere(np.triu(distances <= ALIKE * np.maximum(norms[:, None], norms), 1))


def _lowest_connected(count: int, pairs: Indices) -> Indices:
    """For each of ``count`` nodes the lowest one that the pairs connect it with."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(pairs)), pairs.T), shape=(count, count))
    component: Indices = connected_components(links, directed=False)[1]
    return np.unique(component, return_index=True)[1][component]
