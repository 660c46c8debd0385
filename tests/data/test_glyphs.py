"""The built-in dataset: distinct classes, reproducible images, a cache that cannot do harm."""

from __future__ import annotations

import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from nearkin.data import glyphs as module
from nearkin.data.dataset import Dataset
from nearkin.data.glyphs import FACES, SUPERSAMPLING, distinct_glyphs, glyphs
from nearkin.data.items import ImageArray
from nearkin.errors import UserError


@pytest.fixture(scope="session")
def shapes_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache folder that already has the slow part, the list of distinct shapes."""
    folder = tmp_path_factory.mktemp("glyphs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NEARKIN_CACHE", str(folder))
        distinct_glyphs()
    return folder


@pytest.fixture(autouse=True)
def cache(shapes_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    shutil.copytree(shapes_cache, folder)
    monkeypatch.setenv("NEARKIN_CACHE", str(folder))
    return folder


@pytest.fixture
def small() -> Dataset:
    return glyphs(classes=20, per_class=4)


def pixels(dataset: Dataset) -> np.ndarray:
    assert isinstance(dataset.items, ImageArray)
    return dataset.items.pixels


def stored_images(cache: Path) -> Path:
    (path,) = cache.glob("glyphs/20x4-*.npz")
    return path


def test_every_class_has_its_images_and_is_in_one_half(small: Dataset) -> None:
    assert pixels(small).shape == (80, 28, 28) and pixels(small).dtype == np.uint8
    assert small.labels.dtype == np.int64
    assert np.bincount(small.labels).tolist() == [4] * 20
    assert len(set(small.classes)) == 20
    assert small.split is not None
    assert set(small.labels[small.split == "train"]) == set(range(10))
    assert set(small.labels[small.split == "test"]) == set(range(10, 20))


def test_the_last_images_of_each_class_are_the_test_images(small: Dataset) -> None:
    known = glyphs(classes=20, per_class=4, test_per_class=1)
    np.testing.assert_array_equal(pixels(known), pixels(small))
    assert known.split is not None and known.split.tolist() == ["train", "train", "train", "test"] * 20
    for impossible in (-1, 4):
        with pytest.raises(UserError, match=f"test_per_class must be from 0 to 3, got {impossible}"):
            glyphs(classes=20, per_class=4, test_per_class=impossible)


def test_class_names_show_the_code_point_and_the_glyph(small: Dataset) -> None:
    for name in small.classes:
        code, glyph = name.split(" ")
        assert code == f"U+{ord(glyph):04X}"


def test_ink_is_bright_on_dark_and_antialiased(small: Dataset) -> None:
    shown = pixels(small)
    assert np.all(shown.max(axis=(1, 2)) > 100)
    assert np.median(shown) == 0
    assert np.mean((shown > 20) & (shown < 235)) > 0.02


def test_hardly_any_glyph_is_cut_off_at_the_border() -> None:
    shown = pixels(glyphs(classes=200, per_class=4))
    border = np.ones((28, 28), dtype=bool)
    border[1:-1, 1:-1] = False
    assert np.mean(shown[:, border].max(axis=1) > 127) < 0.03


def test_the_same_seed_gives_the_same_images_and_another_seed_others(small: Dataset, cache: Path) -> None:
    first = pixels(small)
    stored_images(cache).unlink()
    assert np.array_equal(pixels(glyphs(classes=20, per_class=4)), first)
    other = glyphs(classes=20, per_class=4, seed=1)
    assert not np.array_equal(pixels(other), first)
    assert set(other.classes) != set(small.classes)


def test_the_second_call_reads_the_cache(small: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_Face", None)  # nothing can be drawn now
    again = glyphs(classes=20, per_class=4)
    assert np.array_equal(pixels(again), pixels(small))
    assert again.classes == small.classes
    for name, column in small.attributes.items():
        assert np.array_equal(again.attributes[name], column)


def test_other_arguments_give_other_images() -> None:
    assert pixels(glyphs(classes=20, per_class=4, size=16)).shape == (80, 16, 16)
    assert len(glyphs(classes=20, per_class=5)) == 100


@pytest.mark.parametrize("damage", ["empty", "cut off", "text", "one byte", "other arrays"])
def test_a_damaged_cache_file_is_built_again(small: Dataset, cache: Path, damage: str) -> None:
    path = stored_images(cache)
    whole = path.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    broken = {"empty": b"", "cut off": whole[: len(whole) // 2], "text": b"no arrays", "one byte": bytes(flipped)}
    if damage == "other arrays":
        np.savez(path, something=np.arange(3))
    else:
        path.write_bytes(broken[damage])
    assert np.array_equal(pixels(glyphs(classes=20, per_class=4)), pixels(small))
    with np.load(path) as rebuilt:
        assert np.array_equal(rebuilt["pixels"], pixels(small))


def test_a_cache_that_cannot_be_written_gives_only_a_warning(
    small: Dataset, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored_images(cache).unlink()
    shapes = module._shapes()
    monkeypatch.setattr(module, "_shapes", lambda: shapes)
    shutil.rmtree(cache)
    cache.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="NEARKIN_CACHE"):
        rendered = glyphs(classes=20, per_class=4)
    assert np.array_equal(pixels(rendered), pixels(small))


@pytest.mark.parametrize(
    "group", ["AΑА", "BΒВ", "HΗН", "KΚ\u212a", "\u03a9\u2126", "oοо", "eе", "OΟОՕ", "cсϲ", ".·⋅", ",’‚", "×⨯", "ɅΛ"]
)
def test_glyphs_that_look_alike_are_one_class_named_after_the_lowest(group: str) -> None:
    distinct = set(distinct_glyphs().tolist())
    assert [glyph for glyph in group if ord(glyph) in distinct] == [group[0]]


@pytest.mark.parametrize("group", ["cC", "AɅΔ", "mт", "08", "-_", "éè", "→←", "Xx"])
def test_glyphs_that_differ_are_different_classes(group: str) -> None:
    assert {ord(glyph) for glyph in group} <= set(distinct_glyphs().tolist())


def test_classes_are_visible_glyphs_outside_the_private_use_area() -> None:
    distinct = distinct_glyphs()
    assert len(distinct) >= 2000
    assert np.all(np.diff(distinct) > 0)
    assert {unicodedata.category(chr(code))[0] for code in distinct} <= set("LNPS")


def test_a_face_in_which_two_classes_coincide_shows_only_the_lower_one() -> None:
    stored = module._shapes()
    m, te = (stored["shows"][stored["codepoints"].tolist().index(ord(glyph))] for glyph in "mт")
    italic, upright = FACES.index("STIXGeneralItalic"), FACES.index("STIXGeneral")
    assert m[italic] and m[upright]
    assert te[upright] and not te[italic]


def test_plain_shapes_are_taken_first() -> None:
    plain = sum(module._is_plain(chr(code)) for code in distinct_glyphs())
    chosen = glyphs(classes=plain, per_class=2, size=8).classes
    assert all(module._is_plain(name[-1]) for name in chosen)
    assert not module._is_plain("é") and not module._is_plain("─") and not module._is_plain("ʰ")


def test_attributes_follow_from_the_face() -> None:
    data = glyphs(classes=20, per_class=16)
    attributes = data.attributes
    assert set(attributes["face"]) == set(FACES)
    expected = {  # serif, mono, bold, italic
        "DejaVuSans": (False, False, False, False),
        "DejaVuSans-BoldOblique": (False, False, True, True),
        "DejaVuSansMono-Oblique": (False, True, False, True),
        "DejaVuSansMono-Bold": (False, True, True, False),
        "DejaVuSerif": (True, False, False, False),
        "DejaVuSerif-Italic": (True, False, False, True),
        "STIXGeneral": (True, False, False, False),
        "STIXGeneralBol": (True, False, True, False),
        "STIXGeneralItalic": (True, False, False, True),
        "STIXGeneralBolIta": (True, False, True, True),
    }
    for face, values in expected.items():
        rows = attributes["face"] == face
        for trait, value in zip(("serif", "mono", "bold", "italic"), values, strict=True):
            assert attributes[trait].dtype == np.bool_
            assert np.all(attributes[trait][rows] == value), (face, trait)


def test_the_faces_of_a_class_are_used_equally_and_never_give_the_same_image_twice() -> None:
    data = glyphs(classes=20, per_class=26)
    for label in range(20):
        rows = data.labels == label
        _, times = np.unique(data.attributes["face"][rows], return_counts=True)
        assert times.max() - times.min() <= 1
        assert len(np.unique(pixels(data)[rows], axis=0)) == 26


def test_without_strength_a_warp_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for bound in ("ROTATION", "SCALING", "SHEAR", "SHIFT"):
        monkeypatch.setattr(module, bound, 0.0)
    upright = module._Face("DejaVuSerif", 28).draw(ord("g"))
    (warp,) = module._warps(1, upright.width, np.random.default_rng(0))
    assert np.array_equal(module._warped(upright, warp.tolist()), np.asarray(upright.reduce(SUPERSAMPLING)))


def test_a_warp_turns_about_the_moved_centre_and_scales_within_its_bound() -> None:
    side = 84
    for xx, xy, x0, yx, yy, y0 in module._warps(50, side, np.random.default_rng(0)):
        x, y = np.linalg.solve([[xx, xy], [yx, yy]], [side / 2 - x0, side / 2 - y0])  # where the centre is shown
        assert max(abs(x - side / 2), abs(y - side / 2)) <= module.SHIFT * side + 1e-9
        assert abs(np.log(xx * yy - xy * yx) / 2) <= module.SCALING + 1e-9


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"classes": 3}, "classes must be an integer >= 4, got 3"),
        ({"per_class": 1}, "per_class must be an integer >= 2, got 1"),
        ({"size": 7}, "size must be an integer >= 8, got 7"),
        ({"seed": -1}, "seed must be an integer >= 0, got -1"),
    ],
)
def test_too_small_values_are_refused(arguments: dict[str, int], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        glyphs(**arguments)


def test_too_many_classes_are_refused() -> None:
    with pytest.raises(UserError, match=f"at most {len(distinct_glyphs())}"):
        glyphs(classes=100_000)
