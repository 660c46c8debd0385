"""Indexing: each file is embedded once, again only after a change, and nothing is lost."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from reference import hostile_images as hostile
from reference.untrained import save_untrained
from torch import Tensor

from nearkin.cli import main
from nearkin.data import load_dataset
from nearkin.data.decoders import DecoderPool
from nearkin.data.items import ImageFiles
from nearkin.errors import Interrupted, UserError
from nearkin.models import Embedder, EmbeddingModel
from nearkin.models.embed import cached_features
from nearkin.search import IndexResult, indexing
from nearkin.search.gallery import Gallery
from nearkin.search.local import LocalStore
from nearkin.search.store import Entry


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_untrained(tmp_path / "run" / "model").parent


@pytest.fixture
def interrupted_at_the_fourth_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    features = EmbeddingModel.features
    calls = []

    def interrupted(self: EmbeddingModel, x: Tensor) -> Tensor:
        calls.append(x)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return features(self, x)

    monkeypatch.setattr(EmbeddingModel, "features", interrupted)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The decoded files, in the order in which decoding began."""
    calls: list[Path] = []
    whole = DecoderPool.read

    def read(self: DecoderPool, path: Path, *args: Any) -> object:
        calls.append(path)
        return whole(self, path, *args)

    monkeypatch.setattr(DecoderPool, "read", read)
    return calls


def index(model: Path, data: Any, out: Path, prune: bool = False, batch: int = 1024) -> IndexResult:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(indexing, "SAVE_AFTER", batch)
        with Gallery.index(model, data, out, prune=prune) as gallery:
            assert gallery.result is not None
            return gallery.result


def remove(gallery: Path, paths: Path | list[Path]) -> int:
    with Gallery.open(gallery) as opened:
        return opened.remove(paths)


def entries(folder: Path) -> dict[str, Entry]:
    with Gallery.open(folder) as gallery:
        return {entry.path: entry for entry in gallery.store.entries().values()}


def vectors(folder: Path) -> dict[str, np.ndarray]:
    with Gallery.open(folder) as gallery:
        known = gallery.store.entries()
        return dict(zip([entry.path for entry in known.values()], gallery.store.vectors(list(known)), strict=True))


def colour(path: Path, value: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (20, 20), (value, 255 - value, value // 2)).save(path)
    return path


def test_every_file_is_decoded_once_and_has_the_vector_of_encode(
    photos: Path, model: Path, tmp_path: Path, decoded: list[Path]
) -> None:
    indexed = index(model, photos, tmp_path / "g", batch=10)
    files = sorted(photos.rglob("*.png"))
    assert sorted(decoded) == files
    assert (indexed.added, indexed.changed, indexed.unchanged, indexed.total) == (36, 0, 0, 36)
    assert "36 items" in indexed.searched
    found = vectors(tmp_path / "g")
    np.testing.assert_allclose([found[str(file)] for file in files], Embedder.load(model).encode(files), atol=1e-6)
    for path, entry in entries(tmp_path / "g").items():
        state = Path(path).stat()
        assert entry == Entry(path, Path(path).parent.name, state.st_size, state.st_mtime_ns)


def test_files_with_cached_features_are_not_decoded(
    photos: Path, model: Path, tmp_path: Path, decoded: list[Path]
) -> None:
    """Evaluation, reports and other galleries cache the backbone's features."""
    files = sorted(photos.rglob("*.png"))
    cached_features(Embedder.load(model).model, ImageFiles(files[:20]), workers=0)
    indexed = index(model, photos, tmp_path / "g", batch=7)
    assert sorted(decoded) == files[20:] and indexed.added == 36
    index(model, photos, tmp_path / "another")
    assert sorted(decoded) == files[20:]
    for folder in ("g", "another"):
        found = vectors(tmp_path / folder)
        np.testing.assert_allclose([found[str(file)] for file in files], Embedder.load(model).encode(files), atol=1e-6)


def test_unchanged_files_are_not_decoded_again(
    photos: Path, model: Path, tmp_path: Path, decoded: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    index(model, photos, tmp_path / "g")
    decoded.clear()
    monkeypatch.chdir(photos)
    indexed = index(model, "../photos/", tmp_path / "g")  # the same folder, spelled differently
    assert decoded == [] and indexed.unchanged == 36 and indexed.added == indexed.changed == 0


def test_only_a_file_that_changed_is_embedded_again(
    photos: Path, model: Path, tmp_path: Path, decoded: list[Path]
) -> None:
    index(model, photos, tmp_path / "g")
    before = vectors(tmp_path / "g")
    decoded.clear()
    changed = colour(photos / "class2" / "3.png", 250)
    indexed = index(model, photos, tmp_path / "g")
    assert decoded == [changed] and (indexed.changed, indexed.unchanged, indexed.total) == (1, 35, 36)
    after = vectors(tmp_path / "g")
    assert [path for path in after if not np.array_equal(after[path], before[path])] == [str(changed)]


def test_a_file_of_equal_size_with_another_time_is_embedded_again(photos: Path, model: Path, tmp_path: Path) -> None:
    index(model, photos, tmp_path / "g")
    os.utime(photos / "class0" / "0.png", ns=(1, 1))
    assert index(model, photos, tmp_path / "g").changed == 1


def test_a_new_label_is_saved_without_decoding(photos: Path, model: Path, tmp_path: Path, decoded: list[Path]) -> None:
    table = photos / "list.csv"
    table.write_text("path,label\nclass0/0.png,red\nclass0/1.png,red\nclass1/0.png,blue\n")
    index(model, str(table), tmp_path / "g")
    before = vectors(tmp_path / "g")
    decoded.clear()
    table.write_text("path,label\nclass0/0.png,red\nclass0/1.png,blue\nclass1/0.png,blue\n")
    indexed = index(model, str(table), tmp_path / "g")
    assert decoded == [] and (indexed.changed, indexed.unchanged) == (1, 2)
    assert entries(tmp_path / "g")[str(photos / "class0" / "1.png")].label == "blue"
    np.testing.assert_equal(vectors(tmp_path / "g"), before)


def test_unreadable_files_are_listed_and_the_others_indexed(photos: Path, model: Path, tmp_path: Path) -> None:
    (photos / "class0" / "0.png").write_bytes(b"")
    (photos / "class5" / "0.png").write_bytes(b"no image")
    indexed = index(model, photos, tmp_path / "g", batch=5)
    assert sorted(each.path for each in indexed.unreadable) == [
        photos / "class0" / "0.png",
        photos / "class5" / "0.png",
    ]
    assert indexed.added == indexed.total == 34
    colour(photos / "class0" / "0.png", 9)
    again = index(model, photos, tmp_path / "g")
    assert again.added == 1 and len(again.unreadable) == 1


def test_an_image_beyond_the_limits_is_unreadable_and_the_others_are_indexed(
    photos: Path, model: Path, tmp_path: Path
) -> None:
    (photos / "class0" / "0.png").write_bytes(hostile.png(9_990, 9_990, rows=1))
    indexed = index(model, photos, tmp_path / "g")
    assert [each.reason for each in indexed.unreadable] == ["takes too much memory to decode"]
    assert indexed.added == 35


def test_a_batch_without_readable_files_does_not_stop_indexing(photos: Path, model: Path, tmp_path: Path) -> None:
    for path in (photos / "class0").iterdir():
        path.write_bytes(b"no image")
    indexed = index(model, photos, tmp_path / "g", batch=3)
    assert indexed.added == 30 and len(indexed.unreadable) == 6


def test_a_file_that_became_unreadable_stays_until_pruned(photos: Path, model: Path, tmp_path: Path) -> None:
    index(model, photos, tmp_path / "g")
    (photos / "class0" / "0.png").write_bytes(b"broken")
    indexed = index(model, photos, tmp_path / "g")
    assert len(indexed.unreadable) == 1 and indexed.removed == 0 and indexed.total == 36
    assert index(model, photos, tmp_path / "g", prune=True).total == 35


def test_missing_files_are_listed_and_removed_only_by_prune(photos: Path, model: Path, tmp_path: Path) -> None:
    elsewhere = shutil.copytree(photos, tmp_path / "photos-too")
    index(model, photos, tmp_path / "g")
    index(model, str(elsewhere), tmp_path / "g")
    gone = [photos / "class1" / "1.png", elsewhere / "class1" / "2.png"]
    for path in gone:
        path.unlink()
    indexed = index(model, photos, tmp_path / "g")
    assert indexed.missing == [str(gone[0])] and indexed.removed == 0 and indexed.total == 72
    pruned = index(model, photos, tmp_path / "g", prune=True)
    assert pruned.removed == 1 and pruned.total == 71
    assert str(gone[1]) in entries(tmp_path / "g")  # its folder was not indexed this time


def test_missing_files_of_a_csv_are_skipped(photos: Path, model: Path, tmp_path: Path) -> None:
    (photos / "list.csv").write_text("path,label\nclass0/0.png,red\nclass0/1.png,red\nclass0/none.png,red\n")
    indexed = index(model, photos / "list.csv", tmp_path / "g")
    nowhere = f"{photos / 'class0' / 'none.png'}: no such file"
    assert indexed.added == 2 and [str(each) for each in indexed.unreadable] == [nowhere]
    (photos / "class0" / "1.png").unlink()
    again = index(model, photos / "list.csv", tmp_path / "g")
    assert again.missing == [str(photos / "class0" / "1.png")] and len(again.unreadable) == 1


def test_a_folder_of_images_has_no_labels(photos: Path, model: Path, tmp_path: Path) -> None:
    index(model, photos / "class0", tmp_path / "g")
    with Gallery.open(tmp_path / "g") as gallery:
        assert len(gallery) == 6 and gallery.labels() == {}


def test_indexing_the_folder_of_one_class_keeps_its_labels(photos: Path, model: Path, tmp_path: Path) -> None:
    index(model, photos, tmp_path / "g")
    colour(photos / "class0" / "3.png", 250)
    colour(photos / "class0" / "new.png", 250)
    indexed = index(model, photos / "class0", tmp_path / "g")
    assert (indexed.added, indexed.changed, indexed.unchanged) == (1, 1, 5)
    found = entries(tmp_path / "g")
    assert found.pop(str(photos / "class0" / "new.png")).label == ""
    assert {path: entry.label for path, entry in found.items()} == {path: Path(path).parent.name for path in found}


def test_links_belong_to_the_class_of_their_own_folder(photos: Path, model: Path, tmp_path: Path) -> None:
    for label in ("a", "b"):
        (tmp_path / "links" / label).mkdir(parents=True)
        (tmp_path / "links" / label / "0.png").symlink_to(photos / "class0" / "0.png")
    index(model, str(tmp_path / "links"), tmp_path / "g")
    found = entries(tmp_path / "g")
    assert {entry.label: path for path, entry in found.items()} == {
        label: str(tmp_path / "links" / label / "0.png") for label in ("a", "b")
    }


def test_a_file_name_that_is_not_utf8_is_listed_as_unreadable(photos: Path, model: Path, tmp_path: Path) -> None:
    broken = os.fsencode(photos / "class0") + b"/\xff.png"
    try:
        Path(os.fsdecode(broken)).write_bytes((photos / "class0" / "0.png").read_bytes())
    except OSError:
        pytest.skip("this file system holds only UTF-8 names")
    indexed = index(model, photos, tmp_path / "g")
    assert indexed.added == 36 and [each.reason for each in indexed.unreadable] == [
        "its name is not valid UTF-8; rename it"
    ]


def test_all_files_in_a_folder_whose_name_is_not_utf8_are_listed_as_unreadable(
    photos: Path, model: Path, tmp_path: Path
) -> None:
    try:
        folder = photos.rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    except OSError:
        pytest.skip("this file system holds only UTF-8 names")
    indexed = index(model, folder, tmp_path / "g")
    assert indexed.added == 0 and len(indexed.unreadable) == 36


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_after_pruning_a_gallery_matches_the_disk(
    data: st.DataObject, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("changing")
    colour(folder / "photos" / "always" / "here.png", 0)
    names = st.sampled_from([f"{label}/{number}.png" for label in ("a", "b") for number in range(3)])
    readable = {"always/here.png"}
    for _ in range(3):
        for name in data.draw(st.lists(names, max_size=6)):
            path = folder / "photos" / name
            readable.discard(name)
            match data.draw(st.sampled_from(["write", "break", "delete"])):
                case "write":
                    colour(path, data.draw(st.integers(0, 255)))
                    readable.add(name)
                case "break":
                    path.parent.mkdir(exist_ok=True)
                    path.write_bytes(b"broken")
                case _:
                    path.unlink(missing_ok=True)
            if path.parent.is_dir() and not any(path.parent.iterdir()):
                path.parent.rmdir()
        index(model, str(folder / "photos"), folder / "g", prune=True, batch=data.draw(st.integers(1, 4)))
        files = [folder / "photos" / name for name in sorted(readable)]
        found = vectors(folder / "g")
        assert sorted(found) == [str(file) for file in files]
        expected = Embedder.load(model).encode(files, workers=0)
        np.testing.assert_allclose([found[str(file)] for file in files], expected, atol=1e-6)


@pytest.mark.usefixtures("interrupted_at_the_fourth_batch")
@pytest.mark.parametrize("batch", [5, 10, 1024])
def test_embeddings_before_an_interruption_are_saved(
    photos: Path, model: Path, tmp_path: Path, decoded: list[Path], monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(indexing, "MODEL_BATCH", 5)
    with pytest.raises(Interrupted, match="15 of 36 images embedded and saved; index again to continue"):
        index(model, photos, tmp_path / "g", batch=batch)
    decoded.clear()
    indexed = index(model, photos, tmp_path / "g", batch=batch)
    assert indexed.unchanged == 15 and indexed.added == 21 and len(decoded) == 21


def test_a_slow_batch_is_saved_before_it_is_full(
    photos: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(indexing, "MODEL_BATCH", 5)
    monkeypatch.setattr(indexing, "SAVE_EVERY", 0.0)
    kept = []
    put = LocalStore.put
    monkeypatch.setattr(
        LocalStore, "put", lambda store, some, vectors: kept.append(len(some)) or put(store, some, vectors)
    )
    assert index(model, photos, tmp_path / "g").added == 36
    assert kept == [5] * 7 + [1]


def test_a_second_writer_is_refused_at_once(photos: Path, model: Path, tmp_path: Path, decoded: list[Path]) -> None:
    index(model, photos / "class0", tmp_path / "g")
    decoded.clear()
    with Gallery.open(tmp_path / "g") as first, first.writing():
        for write in (
            lambda: index(model, photos, tmp_path / "g"),
            lambda: remove(tmp_path / "g", [str(photos / "class0")]),
        ):
            with pytest.raises(UserError, match=r"another process is writing to .*g; wait for it to end"):
                write()
    assert decoded == [] and len(entries(tmp_path / "g")) == 6
    assert index(model, photos, tmp_path / "g").added == 30


def test_a_read_only_gallery_is_refused_before_anything_is_embedded(
    photos: Path, model: Path, tmp_path: Path, decoded: list[Path]
) -> None:
    Gallery.create(tmp_path / "g", model).close()
    (tmp_path / "g" / "gallery.lock").mkdir()  # no file can be opened there, not even by an administrator
    with pytest.raises(UserError, match=r"could not write .*g: .*; choose another folder or fix its permissions"):
        index(model, photos, tmp_path / "g")
    assert decoded == []


def test_paths_may_be_strings_or_paths(photos: Path, model: Path, tmp_path: Path) -> None:
    assert index(model, photos, tmp_path / "g").added == index(str(model), str(photos), str(tmp_path / "h")).added
    assert entries(tmp_path / "g") == entries(tmp_path / "h")


def test_ctrl_c_saves_the_work_and_the_same_command_continues_it(photos: Path, model: Path, tmp_path: Path) -> None:
    slow = (
        "import signal, sys, time; from pathlib import Path\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in background jobs
        "from nearkin.errors import Interrupted; from nearkin.models import EmbeddingModel\n"
        "from nearkin.search import Gallery, indexing\n"
        "features, calls = EmbeddingModel.features, []\n"
        "def waiting(self, x):\n"
        "    calls.append(x)\n"
        "    while len(calls) > 2 and not Path(sys.argv[4]).exists(): time.sleep(0.05)\n"
        "    return features(self, x)\n"
        "EmbeddingModel.features = waiting\n"
        "indexing.SAVE_AFTER = 2\n"
        "try: Gallery.index(*sys.argv[1:4])\n"
        "except Interrupted as error: sys.exit(str(error))\n"
    )
    interrupted = tmp_path / "interrupted"
    command = [sys.executable, "-c", slow, str(model), str(photos), str(tmp_path / "g"), str(interrupted)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        if (tmp_path / "g" / "gallery.json").exists() and entries(tmp_path / "g"):
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    interrupted.touch()
    _, said = process.communicate(timeout=30)
    assert process.returncode == 1 and "index again to continue" in said, said
    kept = len(entries(tmp_path / "g"))
    assert 0 < kept < 36
    indexed = index(model, photos, tmp_path / "g")
    assert indexed.unchanged == kept and indexed.total == 36


def test_items_are_removed_by_file_and_by_folder(photos: Path, model: Path, tmp_path: Path) -> None:
    index(model, photos, tmp_path / "g")
    assert remove(tmp_path / "g", [str(photos / "class1"), str(photos / "class2" / "0.png")]) == 7
    left = entries(tmp_path / "g")
    assert len(left) == 29 and not any(entry.label == "class1" for entry in left.values())


def test_a_folder_with_the_same_prefix_is_not_removed(photos: Path, model: Path, tmp_path: Path) -> None:
    (photos / "class1").rename(photos / "class22")
    index(model, photos, tmp_path / "g")
    assert remove(str(tmp_path / "g"), [photos / "class2"]) == 6
    assert {entry.label for entry in entries(tmp_path / "g").values()} >= {"class22"}


def test_nothing_is_removed_if_a_path_is_not_in_the_gallery(photos: Path, model: Path, tmp_path: Path) -> None:
    index(model, photos, tmp_path / "g")
    with pytest.raises(UserError, match=r"no item or folder .*class9; nothing was removed"):
        remove(tmp_path / "g", [str(photos / "class1"), str(photos / "class9")])
    assert len(entries(tmp_path / "g")) == 36


def test_data_without_image_files_is_refused(model: Path, tmp_path: Path, vectors: str) -> None:
    with pytest.raises(UserError, match="no image files"):
        index(model, vectors, tmp_path / "g")
    assert not (tmp_path / "g").exists()


def test_an_empty_folder_is_refused(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty contains no images"):
        index(model, str(tmp_path / "empty"), tmp_path / "g")


def test_a_gallery_may_be_next_to_the_csv_of_its_images(photos: Path, model: Path) -> None:
    (photos / "list.csv").write_text("path,label\nclass0/0.png,red\n")
    assert index(model, photos / "list.csv", photos / "gallery.index").added == 1


def test_any_dataset_of_image_files_can_be_indexed(photos: Path, model: Path, tmp_path: Path) -> None:
    dataset = load_dataset(photos)
    assert index(model, dataset, tmp_path / "g").added == 36
    assert {entry.label for entry in entries(tmp_path / "g").values()} == set(dataset.classes)
    (photos / "class1" / "1.png").unlink()
    assert index(model, dataset, tmp_path / "g").missing == [str(photos / "class1" / "1.png")]


def test_a_gallery_inside_the_image_folder_is_refused(photos: Path, model: Path) -> None:
    with pytest.raises(UserError, match="would be inside the image folder"):
        index(model, photos, photos / "gallery.index")


def test_a_full_disk_loses_nothing_and_the_same_command_continues(
    photos: Path,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    connect = LocalStore._connect

    def with_little_room(store: LocalStore, mode: str) -> sqlite3.Connection:
        db = connect(store, mode)
        db.execute("PRAGMA max_page_count = 6")  # SQLite then raises the error of a full disk
        return db

    monkeypatch.setattr(indexing, "MODEL_BATCH", 6)
    monkeypatch.setattr(indexing, "SAVE_EVERY", 0.0)
    monkeypatch.setattr(sys, "argv", ["nearkin", "index", str(model), str(photos), "-o", str(tmp_path / "g")])
    with monkeypatch.context() as full, pytest.raises(SystemExit) as ended:
        full.setattr(LocalStore, "_connect", with_little_room)
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 1 and len(said.splitlines()) == 1
    assert "items.sqlite: no space left on device" in said and "free some space and try again" in said
    kept = vectors(tmp_path / "g")
    assert 0 < len(kept) < 36
    indexed = index(model, photos, tmp_path / "g")
    assert (indexed.unchanged, indexed.total) == (len(kept), 36)
    whole = vectors(tmp_path / "g")
    assert all(np.array_equal(whole[path], vector) for path, vector in kept.items())
