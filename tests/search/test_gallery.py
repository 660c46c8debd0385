"""A gallery: search results, independence of its run, and errors."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from reference.untrained import COLOURED, save_untrained

import nearkin.search.folder
from nearkin.errors import UserError
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.search.gallery import Gallery
from nearkin.search.store import Entry


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_untrained(tmp_path / "run" / "model").parent


@pytest.fixture
def other_model(tmp_path: Path) -> Path:
    return save_untrained(tmp_path / "other", seed=1)


@pytest.fixture
def gallery(photos: Path, model: Path, tmp_path: Path) -> Iterator[Gallery]:
    """The 36 images of ``photos``."""
    with Gallery.index(model, photos, tmp_path / "photos.index") as opened:
        yield opened


@pytest.fixture
def empty_gallery(model: Path, tmp_path: Path) -> Iterator[Gallery]:
    with Gallery.create(tmp_path / "empty.index", model) as opened:
        yield opened


def files(photos: Path) -> list[Path]:
    return sorted(photos.rglob("*.png"))


def test_search_matches_a_slow_search(gallery: Gallery, photos: Path, model: Path) -> None:
    vectors = Embedder.load(model).encode(files(photos))
    queries = files(photos)[::7]
    for query, result in zip(queries, gallery.search(queries, k=5, include_self=True), strict=True):
        distances = np.linalg.norm(vectors - vectors[files(photos).index(query)], axis=1)
        assert result.query == str(query)
        assert result.paths[0] == str(query) and result.distances[0] == pytest.approx(0, abs=1e-6)
        assert result.distances == pytest.approx(np.sort(distances)[:5], abs=1e-5)
        for hit in result:
            assert hit.distance == pytest.approx(distances[files(photos).index(Path(hit.path))], abs=1e-5)
            assert hit.label == Path(hit.path).parent.name


def test_a_file_of_the_gallery_is_not_in_its_own_result(
    gallery: Gallery, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos)
    first, second, third = files(photos)[:3]
    (photos / "link.png").symlink_to(second)
    queries = [first.relative_to(photos), photos / "link.png"]
    everything = gallery.search(queries, k=36, include_self=True)
    for k in (1, 5, 35, 36, 100):
        for result, all_hits, itself in zip(gallery.search(queries, k), everything, (first, second), strict=True):
            assert result.hits == [hit for hit in all_hits if hit.path != str(itself)][:k]
    in_memory = gallery.search(Image.open(third), k=1)
    assert in_memory.paths == [str(third)]
    assert sorted(gallery.search(first, 100, "class0").paths) == [str(path) for path in files(photos / "class0")[1:]]
    with pytest.raises(UserError, match="k must be an integer >= 1, got 0"):
        gallery.search(queries, 0)


def test_links_to_the_query_are_not_in_its_result(photos: Path, model: Path, tmp_path: Path) -> None:
    file = files(photos)[0]
    for number in range(9):
        (photos / "class1" / f"link{number}.png").symlink_to(file)
    with Gallery.index(model, photos, tmp_path / "linked.index") as opened:
        assert len(opened) == 45
        result = opened.search(file, k=4)
        assert len(result) == 4 and {Path(path).resolve() for path in result.paths}.isdisjoint({file.resolve()})


def test_a_label_narrows_the_search(gallery: Gallery, photos: Path) -> None:
    result = gallery.search(files(photos)[0], k=100, label="class3")
    assert sorted(result.paths) == [str(path) for path in files(photos / "class3")]


def test_labels_are_counted_by_name(gallery: Gallery) -> None:
    assert gallery.labels() == {f"class{i}": 6 for i in range(6)}
    assert list(gallery.labels()) == sorted(gallery.labels())


def test_a_gallery_works_without_its_run_and_its_images(gallery: Gallery, photos: Path, model: Path) -> None:
    gallery.close()
    query = Image.open(files(photos)[0]).convert("RGB")
    shutil.rmtree(model)
    shutil.rmtree(photos)
    moved = gallery.path.rename(gallery.path.with_name("moved.index"))
    with Gallery.open(moved) as alone:
        result = alone.search(query, k=1)
    assert result.paths == [str(photos / "class0" / "0.png")] and result.distances == pytest.approx([0], abs=1e-5)


def test_the_first_frame_of_an_animation_is_searched(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    first, second = (Image.open(path).convert("RGB") for path in (files(photos)[0], files(photos)[-1]))
    first.save(tmp_path / "moving.webp", save_all=True, append_images=[second], lossless=True)
    assert gallery.search(tmp_path / "moving.webp", k=1).paths == [str(files(photos)[0])]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"no image at all", "not an image that can be decoded; "),
        (b"", "not an image that can be decoded"),
        (None, "no such file"),
    ],
)
def test_a_query_that_is_not_an_image_is_refused_with_the_reason(
    gallery: Gallery, tmp_path: Path, content: bytes | None, reason: str
) -> None:
    query = tmp_path / "query.jpg"
    if content is not None:
        query.write_bytes(content)
    with pytest.raises(UserError, match=f"query.jpg: {reason}"):
        gallery.search(query)


def test_a_query_of_200_megapixels_is_refused_before_it_is_decoded(gallery: Gallery, tmp_path: Path) -> None:
    (tmp_path / "huge.ppm").write_bytes(b"P6 20000 10000 255\n")  # the header alone is enough
    with pytest.raises(UserError, match="more than 100,000,000 pixels"):
        gallery.search(tmp_path / "huge.ppm")


def test_fewer_than_one_neighbour_is_refused(gallery: Gallery, photos: Path) -> None:
    with pytest.raises(UserError, match="k must be an integer >= 1, got 0"):
        gallery.search(files(photos)[0], k=0)


def test_an_unknown_label_is_refused_with_similar_ones(gallery: Gallery, photos: Path) -> None:
    with pytest.raises(UserError, match=r"no item of the gallery has the label 'class33'; similar labels are class3, "):
        gallery.search(files(photos)[0], label="class33")


def test_a_label_is_refused_in_a_gallery_without_labels(empty_gallery: Gallery) -> None:
    empty_gallery.store.put([Entry("/a", "", 1, 1)], np.zeros((1, 4), dtype=np.float32))
    with pytest.raises(UserError, match="search without one"):
        empty_gallery.search(np.zeros((1, 4), dtype=np.float32), label="rose")


def test_a_search_in_an_empty_gallery_is_refused(empty_gallery: Gallery) -> None:
    for label in (None, "rose"):
        with pytest.raises(UserError, match=r"empty\.index is empty; index images into it"):
            empty_gallery.search(np.zeros((2, 4), dtype=np.float32), label=label)
    assert len(empty_gallery) == 0 and empty_gallery.labels() == {}


def test_the_same_model_can_update_a_gallery(gallery: Gallery, model: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(model / "model", tmp_path / "copied")
    for same in (model, model / "model", copied):
        with Gallery.create(gallery.path, same) as again:
            assert len(again) == 36


def test_another_model_is_refused(gallery: Gallery, other_model: Path) -> None:
    with pytest.raises(UserError, match="was made with another model; choose another folder"):
        Gallery.create(gallery.path, other_model)
    assert len(gallery) == 36


def test_the_same_weights_with_other_preprocessing_are_another_model(gallery: Gallery, model: Path) -> None:
    file = model / "model" / "model.json"
    description = json.loads(file.read_text())
    description["spec"]["normalize"] = "never"
    file.write_text(json.dumps(description))
    with pytest.raises(UserError, match="was made with another model"):
        Gallery.create(gallery.path, model)


def test_another_store_is_refused(gallery: Gallery, model: Path) -> None:
    with pytest.raises(UserError, match="stored in its own folder, not in milvus://elsewhere"):
        Gallery.create(gallery.path, model, store="milvus://elsewhere")


def test_a_model_for_vectors_is_refused(tmp_path: Path) -> None:
    Embedder(EmbeddingModel(ModelSpec("linear", dim=2, features=3))).save(tmp_path / "vectors")
    with pytest.raises(UserError, match=r"takes feature vectors.*use an image model"):
        Gallery.create(tmp_path / "new.index", tmp_path / "vectors")


def test_a_folder_with_other_files_is_left_alone(model: Path, photos: Path) -> None:
    before = files(photos)
    with pytest.raises(UserError, match="is not a gallery; choose another folder"):
        Gallery.create(photos, model)
    assert files(photos) == before and not (photos / "gallery.json").exists()


def test_an_unreachable_store_leaves_no_gallery_behind(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(address: str, *_: object, **__: object) -> object:
        raise UserError(f"{address} cannot be reached")

    before = sorted(tmp_path.iterdir())
    monkeypatch.setattr(nearkin.search.folder, "open_store", unreachable)
    with pytest.raises(UserError, match="cannot be reached"):
        Gallery.create(tmp_path / "new.index", model, store="milvus://nowhere")
    assert sorted(tmp_path.iterdir()) == before


def test_items_of_another_gallery_are_not_mixed_with_new_ones(
    gallery: Gallery, other_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearkin.search.folder, "open_store", lambda *_, **__: gallery.store)
    with pytest.raises(UserError, match="milvus://shared contains 36 items of another gallery"):
        Gallery.create(tmp_path / "new.index", other_model, store="milvus://shared")
    assert not (tmp_path / "new.index").exists()


@pytest.mark.parametrize("store", ["", "milvus://./items.db"])
def test_a_gallery_with_missing_items_is_refused_and_not_recreated(model: Path, tmp_path: Path, store: str) -> None:
    if store:
        pytest.importorskip("milvus_lite")
    with Gallery.create(tmp_path / "new.index", model, store=store) as made:
        made.store.put([Entry("/a", "", 1, 1)], np.zeros((1, 4), dtype=np.float32))
    with Gallery.open(tmp_path / "new.index", store=store) as opened:
        assert len(opened) == 1
    items = tmp_path / "new.index" / (store.rpartition("/")[2] or "items.sqlite")
    aside = items.rename(tmp_path / "aside.db")
    for again in (
        lambda: Gallery.open(tmp_path / "new.index", store=store),
        lambda: Gallery.create(tmp_path / "new.index", model, store=store),
    ):
        with pytest.raises(UserError, match=f"{items.name}, which contains the gallery's items, is missing"):
            again()
    aside.rename(items)
    with Gallery.open(tmp_path / "new.index", store=store) as opened:
        assert len(opened) == 1


def test_a_folder_that_is_not_a_gallery_is_refused(photos: Path, tmp_path: Path) -> None:
    for path in (photos, tmp_path / "nothing"):
        with pytest.raises(UserError, match=r"is not a gallery .*; index images to create one"):
            Gallery.open(path)


def test_a_gallery_of_a_newer_version_is_refused(gallery: Gallery) -> None:
    file = gallery.path / "gallery.json"
    file.write_text(json.dumps({"format": 2, "nearkin": "9.1", "else": "unknown"}))
    with pytest.raises(UserError, match=r"made by a newer version of nearkin \(format 2; .* up to 1\); upgrade"):
        Gallery.open(gallery.path)


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", "3", '{"format": 1, "dim": "four"}', '{"format": null}', "\xff\x00"]
)
def test_a_damaged_description_is_refused(gallery: Gallery, content: str) -> None:
    (gallery.path / "gallery.json").write_text(content, encoding="latin-1")
    with pytest.raises(UserError, match="cannot be read"):
        Gallery.open(gallery.path)


def test_a_replaced_model_is_detected(gallery: Gallery, other_model: Path) -> None:
    shutil.copytree(other_model, gallery.path / "model", dirs_exist_ok=True)
    with pytest.raises(UserError, match="were not embedded by the model in its model/ folder"):
        Gallery.open(gallery.path)


def test_a_description_of_another_dimension_is_detected(gallery: Gallery) -> None:
    file = gallery.path / "gallery.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "dim": 5}))
    with pytest.raises(UserError, match="were not embedded by the model in its model/ folder"):
        Gallery.open(gallery.path)


def test_the_error_of_a_full_disk_names_the_gallery(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Path, __: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(UserError, match=rf"could not write {tmp_path}/new.index: no space left on device"):
        Gallery.create(tmp_path / "new.index", model)
    assert not (tmp_path / "new.index").exists()


def test_images_are_added_by_path_with_labels_and_removed(gallery: Gallery, photos: Path, tmp_path: Path) -> None:
    new = [tmp_path / f"new{number}.png" for number in range(3)]
    for number, path in enumerate(new):
        Image.new("RGB", (20, 20), (250, number, 0)).save(path)
    added = gallery.add(new[:2], labels=["red", "scarlet"])
    assert (added.added, added.total, gallery.result) == (2, 38, added) and len(gallery) == 38
    assert gallery.add(str(new[2])).added == 1
    assert gallery.labels() == {f"class{i}": 6 for i in range(6)} | {"red": 1, "scarlet": 1}
    assert gallery.add(new, labels="red").changed == 2 and gallery.labels()["red"] == 3
    assert gallery.remove(new[0]) == 1 and gallery.remove([photos / "class1", new[1]]) == 7
    assert len(gallery) == 31 and new[0].exists()


def test_missing_files_of_a_list_are_reported_and_can_be_pruned(gallery: Gallery, photos: Path) -> None:
    listed = files(photos)[:3]
    listed[1].unlink()
    files(photos)[-1].unlink()  # not in the list
    assert gallery.add(listed).missing == [str(listed[1])] and len(gallery) == 36
    assert gallery.add(listed, prune=True).removed == 1 and len(gallery) == 35


def test_wrong_labels_are_refused(gallery: Gallery, photos: Path) -> None:
    with pytest.raises(UserError, match="got 2 labels for 1 paths; give one label per path"):
        gallery.add(files(photos)[:1], labels=["rose", "tulip"])
    with pytest.raises(UserError, match="omit labels for a folder or a dataset"):
        gallery.add(photos, labels=["rose"])


def test_two_open_galleries_of_one_folder_write_one_after_the_other(gallery: Gallery, photos: Path) -> None:
    Image.new("RGB", (20, 20)).save(photos / "class0" / "new.png")
    with Gallery.open(gallery.path) as other:
        assert other.add(photos).added == 1 and other.remove(photos / "class1") == 6
    assert len(gallery) == 31 and gallery.remove(photos / "class0") == 7


def test_a_model_object_creates_and_updates_a_gallery(photos: Path, model: Path, tmp_path: Path) -> None:
    embedder = Embedder.load(model)
    with Gallery.index(embedder, photos, tmp_path / "g") as made:
        assert made.model is embedder and len(made) == 36
    with Gallery.index(model, photos, tmp_path / "g") as again:
        assert again.result is not None and again.result.unchanged == 36
        assert repr(again) == f"<Gallery {tmp_path / 'g'}: 36 items>"


def test_a_gallery_with_a_custom_backbone_is_opened_with_it(photos: Path, tmp_path: Path) -> None:
    class Colours(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean((2, 3))

    model = Embedder(EmbeddingModel(ModelSpec("module", 0, "never", COLOURED, head="none"), backbone=Colours()))
    with Gallery.index(model, photos, tmp_path / "g") as made:
        expected = made.search(files(photos)[7])
    with pytest.raises(UserError, match="your own module"):
        Gallery.open(tmp_path / "g")
    with Gallery.open(tmp_path / "g", backbone=Colours()) as opened:
        assert opened.search(files(photos)[7]) == expected


def test_embeddings_in_half_precision_are_queries_too(gallery: Gallery) -> None:
    embeddings = torch.from_numpy(gallery.store.vectors(gallery.store.ids(2)))
    for kind in (torch.bfloat16, torch.float16):
        results = gallery.search(embeddings.to(kind), k=1)
        assert isinstance(results, list) and len(results) == 2
