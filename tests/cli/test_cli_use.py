"""The commands that use a model: index, search, match, remove and export."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from conftest import Command
from PIL import Image
from reference.untrained import save_untrained

from nearkin.api import _sample_items as sample_items
from nearkin.data import ImageFiles, unreadable

GALLERY = "photos.index"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_untrained(tmp_path / "model")


@pytest.fixture
def indexed(nearkin: Command, model: Path, photos: Path) -> Path:
    outcome = nearkin("index", model, photos, "-o", GALLERY)
    assert outcome.code == 0, outcome.err
    assert f"{GALLERY}: 36 items: 36 added" in outcome.out
    return photos


def test_a_second_index_adds_new_files_and_lists_problems(nearkin: Command, model: Path, indexed: Path) -> None:
    (indexed / "class0" / "broken.jpg").write_bytes(b"not an image")
    (indexed / "class1" / "1.png").unlink()
    shutil.copy(indexed / "class2" / "2.png", indexed / "class2" / "new.png")
    outcome = nearkin("index", model, indexed, "-o", GALLERY)
    assert f"{GALLERY}: 37 items: 1 added, 35 unchanged" in outcome.out
    assert "broken.jpg" in outcome.out and "prune to remove them" in outcome.out
    assert "1 removed" in nearkin("index", model, indexed, "-o", GALLERY, "--prune").out


def test_search_prints_the_nearest_and_draws_them(nearkin: Command, indexed: Path, tmp_path: Path) -> None:
    query = indexed / "class3" / "3.png"
    outcome = nearkin("search", GALLERY, query, "-k", "4", "--figure", "found.png", "--include-self")
    assert outcome.code == 0, outcome.err
    first = next(line for line in outcome.out.splitlines() if "0.0000" in line)
    assert "class3" in first and "3.png" in first
    with Image.open(tmp_path / "found.png") as figure:
        assert figure.width > 300


def test_an_image_of_the_gallery_is_not_its_own_neighbour(nearkin: Command, indexed: Path) -> None:
    query = indexed / "class3" / "3.png"
    outcome = nearkin("search", GALLERY, query.relative_to(Path.cwd()), "-k", "40")
    found = outcome.out.splitlines()[2:]
    assert outcome.code == 0 and len(found) == 35 and not any(str(query) in line for line in found)
    others, itself = (nearkin("match", GALLERY, query, "-k", "1", *more).out for more in ((), ("--include-self",)))
    assert "0.0000" in itself and "0.0000" not in others


def test_a_pipe_gets_full_paths_and_a_wrong_figure_format_is_refused_at_once(
    nearkin: Command, indexed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    query = indexed / "class3" / "3.png"
    assert str(query) in nearkin("search", GALLERY, query, "--include-self").out.partition("rank")[2]
    outcome = nearkin("search", GALLERY, query, "--figure", "found.gif")
    assert outcome.code == 1 and "found.gif" in outcome.err and "rank" not in outcome.out


def test_json_is_one_object_per_query_and_nothing_else(nearkin: Command, indexed: Path, tmp_path: Path) -> None:
    query = indexed / "class3" / "3.png"
    outcome = nearkin("search", GALLERY, query, indexed / "class4", "-k", "2", "--json", "--figure", "found.png")
    assert outcome.code == 0, outcome.err
    found = [json.loads(line) for line in outcome.out.splitlines()]
    assert [each["query"] for each in found] == [str(query), *map(str, sorted((indexed / "class4").iterdir()))]
    assert [len(each["hits"]) for each in found] == [2] * 7 and (tmp_path / "found.png").exists()
    assert {"path", "label", "distance"} <= found[0]["hits"][0].keys()
    outcome = nearkin("match", GALLERY, indexed / "class5", "--json", "--false-accepts", "0.3")
    matched = [json.loads(line) for line in outcome.out.splitlines()]
    assert len(matched) == 6 and {"query", "label", "distance", "share", "threshold", "hits"} == matched[0].keys()


def test_match_prints_the_class_or_unknown(nearkin: Command, indexed: Path, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (20, 20, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / "strange.png")
    outcome = nearkin("match", GALLERY, indexed / "class5" / "0.png", "strange.png")
    assert outcome.code == 0, outcome.err
    known, strange = (line for line in outcome.out.splitlines() if ".png" in line)
    assert "class5" in known and "unknown" in strange
    assert "unknown above distance" in outcome.out


def test_remove_removes_a_folder_from_the_gallery_but_not_from_disk(nearkin: Command, indexed: Path) -> None:
    assert "removed 6 items" in nearkin("remove", GALLERY, indexed / "class4").out
    assert len(list((indexed / "class4").iterdir())) == 6
    assert "class4" not in nearkin("search", GALLERY, indexed / "class4" / "0.png").out.partition("rank")[2]


@pytest.mark.parametrize("command", ["search", "match"])
def test_a_query_that_is_not_an_image_is_one_sentence(nearkin: Command, indexed: Path, command: str) -> None:
    (indexed / "empty.jpg").touch()
    outcome = nearkin(command, GALLERY, indexed / "empty.jpg")
    assert outcome.code == 1 and "empty.jpg" in outcome.err and "Traceback" not in outcome.err


@pytest.mark.parametrize("command", [("search", "q.png"), ("match", "q.png"), ("remove", "q.png"), ("serve",)])
def test_a_folder_that_is_not_a_gallery_is_one_sentence(
    nearkin: Command, tmp_path: Path, command: tuple[str, ...]
) -> None:
    outcome = nearkin(command[0], tmp_path / "nothing", *command[1:])
    assert outcome.code == 1 and "nothing" in outcome.err and outcome.err.count("\n") == 1


def test_export_prints_the_difference_from_torch(nearkin: Command, model: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    outcome = nearkin("export", model)
    assert outcome.code == 0, outcome.err
    assert "largest difference" in outcome.out and (tmp_path / "model.onnx").stat().st_size > 1000


def test_the_export_of_a_run_is_checked_on_its_own_data(nearkin: Command, vectors: str) -> None:
    pytest.importorskip("onnxruntime")
    assert nearkin("train", vectors, "--epochs", "1", "--out", "run").code == 0
    assert "10 of them from the run's data" in nearkin("export", "run", "-o", "x.onnx").out


def test_items_for_the_check_are_found_without_reading_all_and_unreadable_ones_skipped(
    nearkin: Command, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nearkin("train", photos, "--backbone", "small", "--epochs", "1", "--out", "run").code == 0
    monkeypatch.setattr(unreadable, "find_unreadable", lambda _: pytest.fail("all images were read"))
    for path in photos.glob("*/[0-3].png"):
        path.write_bytes(b"damaged")
    for most, found in ((10, 10), (50, 12)):
        items = sample_items(Path("run"), most)
        assert isinstance(items, ImageFiles) and len(set(items.paths)) == len(items) == found
        assert {path.name for path in items.paths} == {"4.png", "5.png"}
        assert len({path.parent for path in items.paths}) > 3
    for path in photos.glob("*/*.png"):
        path.write_bytes(b"damaged")
    assert sample_items(Path("run")) is None


def test_the_names_of_nearkin_can_be_imported() -> None:
    import nearkin

    for name in nearkin.__all__:
        assert getattr(nearkin, name) is not None
