"""Every image file is decoded to RGB or refused with a reason of one line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reference import hostile_images as hostile

from nearkin.data import images
from nearkin.data.images import BeyondLimits, Unreadable, image_size, read_image, read_small

READERS: list[Callable[[Path], Image.Image | Unreadable]] = [read_image, partial(read_small, side=2)]


def read(path: Path) -> np.ndarray:
    image = read_image(path)
    assert not isinstance(image, Unreadable), image
    assert image.mode == "RGB"
    return np.asarray(image)


def test_grey_becomes_three_equal_channels(tmp_path: Path) -> None:
    Image.new("L", (3, 2), 77).save(tmp_path / "x.png")
    assert (read(tmp_path / "x.png") == 77).all()


def test_transparent_pixels_become_white(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 2), (255, 0, 0, 0)).save(tmp_path / "x.png")
    assert (read(tmp_path / "x.png") == 255).all()


def test_half_transparent_red_on_white_is_pink(tmp_path: Path) -> None:
    Image.new("RGBA", (2, 2), (255, 0, 0, 128)).save(tmp_path / "x.png")
    assert read(tmp_path / "x.png")[0, 0].tolist() == [255, 127, 127]


def test_sixteen_bits_are_scaled_not_clipped(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 256, 32768, 65535]], dtype=np.uint16)).save(tmp_path / "x.png")
    assert read(tmp_path / "x.png")[0, :, 0].tolist() == [0, 1, 128, 255]


def test_thirty_two_bit_integers_and_floats_are_scaled(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0, 65535]], dtype=np.int32)).save(tmp_path / "i.tif")
    Image.fromarray(np.array([[-1.0, 0.0, 1.0]], dtype=np.float32)).save(tmp_path / "f.tif")
    assert read(tmp_path / "i.tif")[0, :, 0].tolist() == [0, 255]
    assert read(tmp_path / "f.tif")[0, :, 0].tolist() == [0, 127, 255]


@pytest.mark.parametrize("values", [[0, 255], [0, 65535], [-3, 900]])
@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_a_tall_image_is_scaled_as_a_whole(kind: type, values: list[int]) -> None:
    pixels = np.linspace(*values, 700).round().astype(kind).reshape(700, 1)
    if min(values) < 0:
        expected = (pixels - values[0]) / (values[1] - values[0]) * 255
    else:
        expected = pixels / (values[1] // 255)
    found = np.asarray(images.to_rgb(Image.fromarray(pixels)))[..., 0]
    assert np.abs(found - expected.astype(np.uint8).astype(int)).max() <= (1 if min(values) < 0 else 0)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I", "F", "I;16"])
def test_conversion_to_rgb_can_reduce_the_image(mode: str) -> None:
    image = Image.new(mode, (40, 20))
    small, whole = images.to_rgb(image, reduce=4), images.to_rgb(image)
    assert (small.mode, small.size, whole.size) == ("RGB", (10, 5), (40, 20))
    assert (np.asarray(small)[0, 0] == np.asarray(whole)[0, 0]).all()


def test_an_animation_is_read_as_its_first_frame(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (2, 2), colour) for colour in ("red", "lime")]
    frames[0].save(tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert read(tmp_path / "x.gif")[0, 0].tolist() == [255, 0, 0]


def test_an_image_is_turned_upright_as_its_exif_data_say(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 2)).save(tmp_path / "x.jpg", exif=exif)
    assert read(tmp_path / "x.jpg").shape[:2] == (4, 2)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("content", [b"", b"no image at all", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_a_file_that_is_not_an_image_gives_a_reason_not_an_exception(
    tmp_path: Path, content: bytes, reader: Callable[[Path], object]
) -> None:
    (tmp_path / "x.jpg").write_bytes(content)
    outcome = reader(tmp_path / "x.jpg")
    assert isinstance(outcome, Unreadable)
    assert "\n" not in str(outcome)


def test_a_rotated_pillow_image_is_turned_like_a_file(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (4, 2)).save(tmp_path / "x.jpg", exif=exif)
    with Image.open(tmp_path / "x.jpg") as opened:
        assert images.to_rgb(opened).size == (2, 4)


@pytest.mark.parametrize("reader", READERS)
def test_formats_that_run_other_programs_are_not_opened(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    (tmp_path / "x.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n")
    assert isinstance(reader(tmp_path / "x.jpg"), Unreadable)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["x.png", "x.jpg"])
def test_a_decompression_bomb_is_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reader: Callable[[Path], object]
) -> None:
    Image.new("L", (10, 10)).save(tmp_path / name)
    assert isinstance(reader(tmp_path / name), Image.Image)
    monkeypatch.setattr(images, "MAX_PIXELS", 99)
    outcome = reader(tmp_path / name)
    assert isinstance(outcome, Unreadable)
    assert "10×10" in outcome.reason


@pytest.mark.parametrize("size", [(900, 700), (100, 60), (1900, 9), (9, 1900)])
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".webp"])
def test_read_small_shows_the_same_image_in_fewer_pixels(tmp_path: Path, suffix: str, size: tuple[int, int]) -> None:
    Image.linear_gradient("L").resize(size).save(tmp_path / f"x{suffix}")
    small, whole = read_small(tmp_path / f"x{suffix}", side=48), read_image(tmp_path / f"x{suffix}")
    assert isinstance(small, Image.Image) and isinstance(whole, Image.Image)
    assert small.mode == "RGB" and min(96, max(size)) <= max(small.size) <= 4 * 48
    fitting = (max(1, 48 * size[0] // max(size)), max(1, 48 * size[1] // max(size)))
    thumbnails = (np.asarray(image.resize(fitting), dtype=int) for image in (small, whole))
    assert np.abs(np.subtract(*thumbnails)).max() <= 6


def test_read_small_never_decodes_a_large_jpeg_at_full_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (1600, 1200)).save(tmp_path / "x.jpg")
    decoded: list[tuple[int, int]] = []
    monkeypatch.setattr(images, "to_rgb", lambda image, _: decoded.append(image.size) or image)
    read_small(tmp_path / "x.jpg", side=48)
    assert decoded == [(200, 150)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("jpeg of scans", "more than 100 scans"),
        ("jpeg of markers", "more than 1,000 segments"),
        ("png of text", "more than 16 chunks of compressed text"),
        ("png of chunks", "more than 1,000 chunks of other data"),
        ("ppm of comments", "more than 100 comments"),
        ("huge webp", "16383×6092 pixels exceed the limit of 14,000,000"),
        ("huge png", "more than 100,000,000 pixels"),
    ],
)
def test_a_bomb_is_refused_before_it_is_opened(name: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name != "huge png":  # Pillow refuses this one itself, when it opens the file
        monkeypatch.setattr(Image, "open", lambda *_, **__: pytest.fail("opened"))
    found = read_image(hostile.BOMBS[name]())
    assert isinstance(found, BeyondLimits) and found.reason == reason


@pytest.mark.parametrize("padding", [b"\xff\xff", b"junk", b"\xff\xf0\x7f\xff"])
def test_segments_do_not_hide_behind_padding(padding: bytes) -> None:
    many = hostile.SOI + (b"\xff\xe5\0\2" + padding) * 1_001 + hostile.ordinary()[2:]
    assert str(read_image(many)) == "upload: more than 1,000 segments"


def test_scans_do_not_hide_behind_an_early_end_or_in_a_sequential_file() -> None:
    bomb = hostile.jpeg_of_scans(101, 8, 8)
    first = bomb.index(hostile.SOS) + 10
    hidden = bomb[:first] + b"\xff\xfe\0\4\xff\xd9" + bomb[first:]  # the end of the image, in a comment
    assert str(read_image(hidden)) == "upload: more than 100 scans"
    two_components = bytearray(bomb.replace(hostile.SOF2, b"\xff\xc0"))
    frame = two_components.index(b"\xff\xc0")
    two_components[frame : frame + 13] = b"\xff\xc0\0\x0e\x08\0\x08\0\x08\x02\x01\x11\0\x02\x11\0"
    assert str(read_image(bytes(two_components))) == "upload: more than 100 scans"


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_an_ordinary_image_with_much_metadata_is_read(kind: str) -> None:
    """Cameras and editors write profiles, previews and texts, and phones append a video."""
    options = {"JPEG": {"progressive": True, "comment": b"x" * 60_000}, "WEBP": {"lossless": True}}.get(kind, {})
    content = hostile.ordinary(kind, exif=bytes(5_000), icc_profile=bytes(300_000), **options)
    video = np.random.default_rng(0).integers(0, 256, 20_000_000, dtype=np.uint8).tobytes()
    assert video.count(hostile.SOS) > 200
    for each in (content, content + video) if kind == "JPEG" else (content,):
        assert isinstance(read_image(each), Image.Image)


@pytest.mark.parametrize("name", ["broken exif", "short exif", "exif without end"])
def test_damaged_exif_data_do_not_keep_the_pixels_from_being_read(name: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(hostile.DAMAGED[name]())
    assert isinstance(read_image(tmp_path / "x"), Image.Image)
    assert image_size(tmp_path / "x") == (120, 90)


def test_damaged_tags_print_nothing(tmp_path: Path) -> None:
    (tmp_path / "x.png").write_bytes(hostile.png_of_warnings(300))
    code = "from pathlib import Path; from nearkin.data.images import read_image; read_image(Path('x.png'))"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, check=True)
    assert run.stdout + run.stderr == b""


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_is_not_opened(tmp_path: Path, reader: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "x.jpg")
    assert str(reader(tmp_path / "x.jpg")).endswith("x.jpg: not a regular file")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "x.jpg").open("wb") as file:
        file.write(hostile.ordinary())
        file.truncate(images.MAX_BYTES + 1)  # sparse: takes no disk space
    assert str(read_image(tmp_path / "x.jpg")).endswith("268 MB exceed the limit of 268 MB")


@pytest.mark.parametrize("kind", ["PNG", "JPEG"])
def test_a_very_large_image_is_reduced(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "SHRINK_ABOVE", 100 * 100)
    encoded = BytesIO()
    Image.new("RGB", (160, 160), (40, 90, 200)).save(encoded, kind)
    decoded = read_image(encoded.getvalue())
    assert isinstance(decoded, Image.Image) and decoded.size == (80, 80)
    assert np.abs(np.asarray(decoded, dtype=int) - (40, 90, 200)).max() <= 2


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_every_orientation_is_turned_upright(kind: str, orientation: int) -> None:
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(np.arange(54, dtype=np.uint8).reshape(3, 6, 3))
    encoded = BytesIO()
    image.save(encoded, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    with Image.open(encoded) as opened:
        expected = ImageOps.exif_transpose(opened)
    found = read_image(encoded.getvalue())
    assert isinstance(found, Image.Image) and (np.asarray(found) == np.asarray(expected)).all()
