"""Images that cannot be read are found before any work starts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reference import hostile_images as hostile

from nearkin.data import LazyImages, load_dataset, unreadable, without_unreadable
from nearkin.data.dataset import Dataset
from nearkin.data.items import ImageFiles
from nearkin.data.unreadable import find_unreadable
from nearkin.errors import UserError


def truncate(path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_truncated_files_are_found_and_listed_by_path(tmp_path: Path) -> None:
    truncate(tmp_path / "cut.jpg")
    truncate(tmp_path / "cut.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "whole.jpg")
    (tmp_path / "folder.jpg").mkdir()
    paths = [tmp_path / name for name in ("whole.jpg", "cut.jpg", "cut.png", "missing.jpg", "folder.jpg")]
    found = find_unreadable(ImageFiles(paths))
    assert [unreadable.path for unreadable in found] == paths[1:]
    assert "truncated" in found[0].reason
    assert found[2].reason == "no such file"
    assert found[3].reason == "is a folder, not an image"


@pytest.mark.filterwarnings("ignore")
def test_whatever_passes_the_check_can_be_read(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.jpg" for name in hostile.HOSTILE if name != hostile.SLOW]
    for path in paths:
        path.write_bytes(hostile.HOSTILE[path.stem]())
    files = ImageFiles(paths)
    bad = {unreadable.path for unreadable in find_unreadable(files)}
    assert {paths[n] for n in range(len(files)) if not isinstance(files.image(n), Image.Image)} == bad
    assert 0 < len(bad) < len(paths)


def test_an_image_beyond_the_limits_is_unreadable_and_the_others_are_not(photos: Path) -> None:
    (photos / "class2" / "3.png").write_bytes(hostile.png(9_990, 9_990, rows=1))
    dataset, unreadable = without_unreadable(load_dataset(str(photos)))
    assert len(dataset) == 35
    assert [bad.reason for bad in unreadable] == ["takes too much memory to decode"]


def test_without_a_cache_the_check_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "x.png")
    (tmp_path / "file").touch()
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path / "file"))
    assert find_unreadable(ImageFiles([tmp_path / "x.png"])) == []


def test_the_check_is_cached_until_a_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.png"
    Image.new("RGB", (8, 8)).save(path)
    files = ImageFiles([path])
    assert find_unreadable(files) == []
    with monkeypatch.context() as patch:
        patch.setattr(unreadable, "_verdicts", lambda _: pytest.fail("decoded again"))
        assert find_unreadable(files) == []
    path.write_bytes(b"broken")
    assert len(find_unreadable(files)) == 1


def test_unreadable_images_are_left_out_and_listed(photos: Path) -> None:
    (photos / "class2" / "3.png").write_bytes(b"broken")
    dataset, unreadable = without_unreadable(load_dataset(str(photos)))
    assert len(dataset) == 35
    assert [bad.path for bad in unreadable] == [photos / "class2" / "3.png"]
    assert dataset.notes == ("ignored 1 image that cannot be read",)


def test_unreadable_images_stop_the_run_on_request(photos: Path) -> None:
    (photos / "class2" / "3.png").write_bytes(b"broken")
    (photos / "class4" / "0.png").write_bytes(b"")
    with pytest.raises(UserError, match="2 of 36 images cannot be read") as caught:
        without_unreadable(load_dataset(str(photos)), "stop")
    assert str(photos / "class2" / "3.png") in str(caught.value)
    assert str(photos / "class4" / "0.png") in str(caught.value)


class TenImages:
    """Ten images, one of which may be missing; counts how often it is asked."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken, self.asked = broken, 0

    def __len__(self) -> int:
        return 10

    def __getitem__(self, row: int) -> Image.Image:
        self.asked += 1
        if row == self.broken:
            raise OSError("the disk is gone")
        return Image.new("RGB", (7, 5), (row, 0, 0))


def lazy(images: TenImages) -> Dataset:
    items = LazyImages(images, None, np.arange(10), "<TenImages of 10 items>")
    return Dataset("toy", items, np.arange(10) % 2, ["a", "b"])


@pytest.mark.parametrize("action", ["skip", "stop"])
def test_an_object_that_raises_is_refused_before_any_work(action: str) -> None:
    with pytest.raises(UserError) as caught:
        without_unreadable(lazy(TenImages(broken=3)), action)
    reason = "OSError: the disk is gone"
    assert str(caught.value) == f"item 3 of <TenImages of 10 items> cannot be read ({reason}); fix it or leave it out"


def test_the_check_of_an_object_is_cached() -> None:
    first, again = TenImages(), TenImages()
    assert without_unreadable(lazy(first))[1] == []
    without_unreadable(lazy(again))
    assert first.asked - again.asked == 10  # both are asked for the items of the fingerprint


def test_an_image_whose_name_is_not_utf8_is_skipped_like_any_other(tmp_path: Path) -> None:
    for name in ("ant/1.png", "bee/1.png"):
        (tmp_path / name).parent.mkdir(parents=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    try:
        (tmp_path / "ant" / "\udcff.png").write_bytes((tmp_path / "ant" / "1.png").read_bytes())
    except OSError:
        pytest.skip("this file system holds only UTF-8 names")
    dataset, found = without_unreadable(load_dataset(str(tmp_path)))
    assert len(dataset) == 2 and [each.reason for each in found] == ["its name is not UTF-8; rename it"]
