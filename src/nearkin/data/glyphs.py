"""The built-in dataset: images of Unicode glyphs in sixteen typefaces, rendered on first use.

A class is a shape. Every glyph that at least ten faces contain is a candidate. Candidates that look the same in half
of the faces that contain both (Latin A, Greek Alpha, Cyrillic A) form one class. It is named after the lowest code
point, and only that glyph is rendered. Glyphs are centred, so a comma and an apostrophe are one shape. They keep
their size relative to the capitals of their face, so ``c`` and ``C`` are two shapes: their sizes differ by a third,
and the warps change sizes by less.
"""

from __future__ import annotations

import unicodedata
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
from PIL import Image

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

CAPITAL_HEIGHT = 0.6  # relative to the side of the image
LARGEST_EXTENT = 0.8  # relative to the side of the image; larger glyphs are shrunk
SUPERSAMPLING = 3

# Each is drawn uniformly between minus and plus its bound; together they lower the Recall@1 of raw pixels to 0.6.
ROTATION = 12.0  # degrees
SCALING = 0.1
SHEAR = 0.2
SHIFT = 0.08  # relative to the side of the image

COMPARED_SIZE = 28
ALIKE = 0.02  # squared distance of two blurred images, divided by the larger of their squared norms
LEAST_INK = 4.0  # white pixels at the compared size

FORMAT = 2  # raise this whenever the same arguments give other images

Arrays = dict[str, npt.NDArray[Any]]
Images = npt.NDArray[np.float32]


def glyphs(classes: int = 400, per_class: int = 26, size: int = 28, seed: int = 0, test_per_class: int = 0) -> Dataset:
    """White glyphs on black: one class per shape, each image in one of the typefaces and with a small random warp.

    The first half of the classes is "train", the second half "test". With ``test_per_class``, every class is in both
    splits, and its last images are "test". Accented letters, modifiers and box-drawing pieces are used only if
    ``classes`` exceeds the number of plain shapes. The classes are shuffled, so both halves contain the same kinds of
    glyphs. The same arguments give the same images, which are cached.

    Args:
        classes: number of shapes, at most ``len(distinct_glyphs())``.
        per_class: images per class; they cycle through the faces that show the glyph.
        size: side of the square images in pixels.
        seed: random seed for the choice of shapes, the order of the faces and the warps.
        test_per_class: test images per class; 0: the second half of the classes is the test split.

    Every image has the attributes "face" (str), "serif", "mono", "bold" and "italic" (bool).

    >>> data = glyphs(classes=10, per_class=4)  # doctest: +SKIP
    >>> data.items.pixels.shape, data.classes[0], data.attributes["face"][0]  # doctest: +SKIP
    ((40, 28, 28), 'U+2051 ⁑', 'DejaVuSerif-BoldItalic')
    """
    minima = {"classes": (classes, 4), "per_class": (per_class, 2), "size": (size, 8), "seed": (seed, 0)}
    for name, (value, least) in minima.items():
        if value < least:
            raise UserError(f"glyphs: {name} must be an integer >= {least}, got {value}")
    if not 0 <= test_per_class < per_class:
        raise UserError(f"glyphs: test_per_class must be from 0 to {per_class - 1}, got {test_per_class}")
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
    is_train = places < per_class - test_per_class if test_per_class else labels < classes // 2
    return Dataset(
        name="glyphs",
        items=ImageArray(stored["pixels"]),
        labels=labels,
        classes=[f"U+{code:04X} {chr(code)}" for code in stored["codepoints"].tolist()],
        split=np.where(is_train, "train", "test"),
        attributes=attributes,
    )


def distinct_glyphs() -> Indices:
    """Returns the code points of all available shapes, ascending."""
    codepoints: Indices = _shapes()["codepoints"]
    return codepoints


def _shapes() -> Arrays:
    return _cached("shapes", ("codepoints", "shows"), _find_shapes)


def _cached(name: str, keys: tuple[str, ...], build: Callable[[], Arrays]) -> Arrays:
    """Returns the arrays cached under ``name``; builds and caches them if they are missing or unreadable."""
    versions = f"v{FORMAT}-matplotlib{version('matplotlib')}-pillow{PIL.__version__}"
    target = cache_folder() / "glyphs" / f"{name}-{versions}.npz"
    if target.exists():
        try:
            with np.load(target, allow_pickle=False) as stored:
                return {key: stored[key] for key in keys}
        except Exception:  # a damaged file raises any of a dozen types; building it again fixes all of them
            pass
    arrays = build()
    try:
        with atomic_path(target) as partial:
            np.savez(partial, allow_pickle=False, **arrays)
    except UserError as error:  # the images are complete even if they cannot be cached
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
    """Picks plain shapes first, then others, and shuffles them, so that both halves contain the same kinds."""
    if classes > len(codepoints):
        raise UserError(
            f"glyphs: classes must be at most {len(codepoints)}, the number of distinct shapes, got {classes}"
        )
    shuffled = random.permutation(len(codepoints))
    plain = np.array([_is_plain(chr(code)) for code in codepoints[shuffled]])
    return random.permutation(np.concatenate([shuffled[plain], shuffled[~plain]])[:classes])


def _is_plain(glyph: str) -> bool:
    modifier = unicodedata.category(glyph) in ("Lm", "Sk")
    bracket_piece, box_piece = "\u239b" <= glyph <= "\u23ae", "\u2500" <= glyph <= "\u259f"
    return not (modifier or bracket_piece or box_piece or unicodedata.decomposition(glyph))


def _warps(count: int, side: int, random: np.random.Generator) -> npt.NDArray[np.float64]:
    """(count, 6) affine maps from the pixels of the warped image to those of the upright image."""
    rotation, scaling, shear, across, down = random.uniform(-1.0, 1.0, (5, count))
    cos, sin = np.cos(np.radians(ROTATION * rotation)), np.sin(np.radians(ROTATION * rotation))
    scale, slant = np.exp(SCALING * scaling), SHEAR * shear
    xx, xy = scale * cos, scale * (cos * slant - sin)
    yx, yy = scale * sin, scale * (sin * slant + cos)
    x, y = side * (0.5 + SHIFT * across), side * (0.5 + SHIFT * down)  # the new centre
    return np.stack([xx, xy, side / 2 - xx * x - xy * y, yx, yy, side / 2 - yx * x - yy * y], axis=1)


def _warped(upright: Image.Image, warp: list[float]) -> npt.NDArray[np.uint8]:
    resampled = upright.transform(upright.size, Image.Transform.AFFINE, warp, Image.Resampling.BILINEAR)
    return np.asarray(resampled.reduce(SUPERSAMPLING))


class _Face:
    """A typeface at one image size."""

    def __init__(self, name: str, size: int) -> None:
        import matplotlib  # here: slow to import
        from matplotlib.ft2font import FT2Font
        from PIL import ImageFont

        path = str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{name}.ttf")
        self.codepoints = frozenset(FT2Font(path).get_charmap())
        self.side = size * SUPERSAMPLING
        _, top, _, bottom = ImageFont.truetype(path, 1000).getbbox("H", anchor="ls")
        points = 1000 * CAPITAL_HEIGHT * self.side / (bottom - top)
        self.font = ImageFont.truetype(path, points, layout_engine=ImageFont.Layout.BASIC)

    def draw(self, code: int) -> Image.Image:
        """Draws the glyph in the centre of an image, upright and supersampled."""
        from PIL import ImageDraw

        sheet = Image.new("L", (5 * self.side // 2, 2 * self.side))  # large enough for every glyph of every face
        origin = (self.side // 2, 5 * self.side // 4)
        ImageDraw.Draw(sheet).text(origin, chr(code), fill=255, font=self.font, anchor="ls")
        ink = sheet.crop(sheet.getbbox())
        largest = round(LARGEST_EXTENT * self.side)
        ink.thumbnail((largest, largest), Image.Resampling.LANCZOS)
        image = Image.new("L", (self.side, self.side))
        image.paste(ink, ((self.side - ink.width) // 2, (self.side - ink.height) // 2))
        return image


def _find_shapes() -> Arrays:
    """Finds the lowest code point of each shape, and (shapes, faces) which faces draw it unlike any other shape."""
    faces = [_Face(name, COMPARED_SIZE) for name in FACES]
    codes, counts = np.unique(np.concatenate([list(face.codepoints) for face in faces]), return_counts=True)
    # Letters, numbers, punctuation and symbols; not marks, separators, control or private-use characters.
    visible = np.array([unicodedata.category(chr(code))[0] in "LNPS" for code in codes])
    codes = codes[visible & (counts >= FACES_NEEDED)]
    shows = np.array([[code in face.codepoints for face in faces] for code in codes.tolist()])
    inked = np.ones(len(codes), dtype=np.bool_)
    alike = []  # for each face, the pairs (lower, higher) that look the same
    for i, face in enumerate(track(faces, "finding glyphs that look alike")):
        here = np.flatnonzero(shows[:, i])
        drawn = [face.draw(code).reduce(SUPERSAMPLING) for code in codes[here].tolist()]
        images = np.stack([np.asarray(image) for image in drawn]).astype(np.float32) / np.float32(255)
        inked[here] &= images.sum(axis=(1, 2)) >= LEAST_INK
        alike.append(here[_alike_pairs(images)])
    pairs, times = np.unique(np.concatenate(alike), axis=0, return_counts=True)
    shared = (shows[pairs[:, 0]] & shows[pairs[:, 1]]).sum(axis=1)
    lowest = _lowest_connected(len(codes), pairs[2 * times >= shared])
    # If two shapes coincide in only a few faces (italic т looks like m), those faces show only the lower one.
    is_lowest = lowest == np.arange(len(codes))
    for i, (lower, higher) in enumerate(pair.T for pair in alike):
        shows[higher[is_lowest[lower] & is_lowest[higher]], i] = False
    kept = is_lowest & inked
    return {"codepoints": codes[kept].astype(np.int64), "shows": shows[kept]}


def _alike_pairs(images: Images) -> Indices:
    """(pairs, 2) indices of nearly equal images, the lower index first."""
    for axis in (1, 2):  # blur, so that edges may differ by a fraction of a pixel
        images = (np.roll(images, 1, axis) + 2 * images + np.roll(images, -1, axis)) / np.float32(4)
    flat = images.reshape(len(images), -1)
    norms = np.square(flat).sum(axis=1)
    distances = norms[:, None] + norms - 2 * (flat @ flat.T)
    return np.argwhere(np.triu(distances <= ALIKE * np.maximum(norms[:, None], norms), 1))


def _lowest_connected(count: int, pairs: Indices) -> Indices:
    """For each of ``count`` nodes, the lowest node that the pairs connect it to."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    links = coo_array((np.ones(len(pairs)), pairs.T), shape=(count, count))
    component: Indices = connected_components(links, directed=False)[1]
    return np.unique(component, return_index=True)[1][component]
