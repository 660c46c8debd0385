"""The feature cache: features are computed once per file and backbone, and a failing cache only costs time."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data.dataset import Dataset
from nearkin.data.items import ImageArray, ImageFiles, Items
from nearkin.data.loader import Draw, input_batches
from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError
from nearkin.models import EmbeddingModel, ModelSpec, embed, feature_cache
from nearkin.models.embed import cached_features, embed_dataset
from nearkin.models.feature_cache import FeatureCache

COLOUR = Preprocess(size=16, resize=16, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
SPEC = ModelSpec("small", 8, "test", COLOUR)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the rows of one test are kept."""
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path / "cache"))
    feature_cache._warn.cache_clear()
    return tmp_path / "cache" / "features"


@pytest.fixture
def model() -> EmbeddingModel:
    torch.manual_seed(0)
    return EmbeddingModel(SPEC)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many items went through the backbone, one number each time that some did."""
    counts: list[int] = []
    outputs = embed._outputs

    def counted(model: EmbeddingModel, items: Items, *arguments: Any, **more: Any) -> Iterator[torch.Tensor]:
        counts.append(len(items))
        return outputs(model, items, *arguments, **more)

    monkeypatch.setattr(embed, "_outputs", counted)
    return counts


def files(photos: Path) -> ImageFiles:
    return ImageFiles(sorted(photos.rglob("*.png")))


def plain(model: EmbeddingModel, items: Items, head: bool = False) -> torch.Tensor:
    """All items in one batch, by the backbone, or by the whole model."""
    [inputs] = input_batches(items, model.spec.preprocess, [Draw(np.arange(len(items)))], workers=0)
    model = deepcopy(model).eval()
    return (model(inputs) if head else model.features(inputs)).detach()


def embeddings(model: EmbeddingModel, items: Items) -> torch.Tensor:
    dataset = Dataset("photos", items, np.zeros(len(items), int), ["one"])
    return embed_dataset(model, dataset, workers=0).embeddings


def test_features_are_those_of_the_backbone_and_computed_once(
    photos: Path, model: EmbeddingModel, computed: list[int]
) -> None:
    everything = files(photos)
    some = everything.take(np.array([7, 3, 3, 30]))
    torch.testing.assert_close(cached_features(model, some, workers=0), plain(model, some))
    torch.testing.assert_close(cached_features(model, everything, batch_size=5, workers=0), plain(model, everything))
    torch.testing.assert_close(cached_features(model, some, workers=0), plain(model, some))
    assert computed == [4, 33]  # all three of the first were known then


def test_embeddings_use_cached_features(photos: Path, model: EmbeddingModel, computed: list[int]) -> None:
    items = files(photos)
    model.train()
    cached_features(model, items, workers=0)
    torch.nn.init.normal_(model.head.project[0].weight)  # another head, the same backbone
    torch.testing.assert_close(embeddings(model, items), plain(model, items, head=True))
    assert computed == [36] and model.training
    other = EmbeddingModel(replace(SPEC, dim=3))
    other.backbone.load_state_dict(model.backbone.state_dict())
    torch.testing.assert_close(embeddings(other, items), plain(other, items, head=True))
    assert computed == [36]


@pytest.mark.parametrize("what", ["weights", "statistics", "preprocess"])
def test_another_backbone_has_other_features(
    photos: Path, model: EmbeddingModel, computed: list[int], what: str
) -> None:
    items = files(photos)
    cached_features(model, items, workers=0)
    if what == "weights":
        model.backbone[0].weight.data[0, 0, 0, 0] += 1  # type: ignore[index, union-attr]
    elif what == "statistics":
        model.standardise.mean += 0.1
    else:
        state = model.state_dict()
        model = EmbeddingModel(replace(SPEC, preprocess=replace(COLOUR, resize=20)))
        model.load_state_dict(state)
    torch.testing.assert_close(cached_features(model, items, workers=0), plain(model, items))
    assert computed == [36, 36]


def test_a_changed_file_is_computed_again_and_a_link_shares_the_row_of_its_target(
    photos: Path, model: EmbeddingModel, computed: list[int]
) -> None:
    items = files(photos)
    cached_features(model, items, workers=0)
    Image.new("RGB", (20, 24), "red").save(items.paths[4])
    link = photos / "link.png"
    link.symlink_to(items.paths[9])
    again = ImageFiles([*items.paths, link])
    torch.testing.assert_close(cached_features(model, again, workers=0), plain(model, again))
    assert computed == [36, 1]


def test_images_in_memory_are_identified_by_their_pixels(model: EmbeddingModel, computed: list[int]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    cached_features(model, ImageArray(pixels))
    shuffled = ImageArray(np.concatenate([pixels[::-1], 255 - pixels[:1]]))
    torch.testing.assert_close(cached_features(model, shuffled), plain(model, shuffled))
    assert computed == [6, 1]


def test_features_computed_before_an_error_are_kept(photos: Path, model: EmbeddingModel, computed: list[int]) -> None:
    items = files(photos)
    broken = items.paths[20]
    content = broken.read_bytes()
    broken.write_bytes(b"broken")
    with pytest.raises(UserError, match="not an image"):
        cached_features(model, items, batch_size=6, workers=0)
    broken.write_bytes(content)
    cached_features(model, items, batch_size=6, workers=0)
    assert computed == [36, 36 - 18]  # three batches came before the broken file's


def test_of_several_concurrent_users_one_computes(
    photos: Path, model: EmbeddingModel, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads stand for processes: a lock on a file is the same for both."""
    compute = embed._outputs

    def slow(*arguments: Any, **more: Any) -> Iterator[torch.Tensor]:
        time.sleep(0.2)
        return compute(*arguments, **more)

    monkeypatch.setattr(embed, "_outputs", slow)
    with ThreadPoolExecutor(3) as pool:
        rows = list(pool.map(lambda _: cached_features(model, files(photos), workers=0), range(3)))
    assert computed == [36]
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[0], rows[2])


def spoilt(how: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if how == "no folder":
        folder.parent.mkdir(parents=True)
        folder.write_text("in the way")
    elif how == "full disk":
        connect = sqlite3.connect

        def little_room(*arguments: object) -> sqlite3.Connection:
            database: sqlite3.Connection = connect(*arguments)  # type: ignore[call-overload]
            database.execute("PRAGMA max_page_count = 4")
            return database

        monkeypatch.setattr(feature_cache.sqlite3, "connect", little_room)
    else:
        (file,) = folder.glob("*.sqlite")
        file.write_bytes(b"damaged" * 1000)


@pytest.mark.parametrize("how", ["no folder", "full disk", "damaged"])
def test_a_failing_cache_warns_once(
    photos: Path,
    folder: Path,
    model: EmbeddingModel,
    how: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    items = files(photos)
    if how == "damaged":
        cached_features(model, items, workers=0)
    spoilt(how, folder, monkeypatch)
    monkeypatch.setattr(feature_cache, "WRITE_SECONDS", 0.0)
    for _ in range(2):
        torch.testing.assert_close(cached_features(model, items, 6, workers=0), plain(model, items))
    assert len(caplog.records) == 1 and "continuing without the cache" in caplog.text
    if how == "damaged":  # a new file was begun
        monkeypatch.setattr(embed, "_outputs", None)
        cached_features(model, items, workers=0)


def test_a_read_only_cache_is_read(
    photos: Path, model: EmbeddingModel, computed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    items = files(photos)
    cached_features(model, items, workers=0)
    connect = sqlite3.connect

    def only_reads(file: Path, wait: float) -> sqlite3.Connection:
        return connect(f"{file.as_uri()}?mode=ro", wait, uri=True)

    monkeypatch.setattr(feature_cache.sqlite3, "connect", only_reads)
    torch.testing.assert_close(cached_features(model, items, workers=0), plain(model, items))
    assert computed == [36]


def test_files_used_long_ago_are_removed(folder: Path, model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir(parents=True)
    now = time.time()
    for name, age in (("old", 300), ("older", 400), ("recent", 100)):
        (folder / name).write_bytes(bytes(400_000))
        os.utime(folder / name, (now - age, now - age))
    monkeypatch.setenv("NEARKIN_CACHE_GB", "0.001")
    with FeatureCache(model):
        assert {file.name for file in folder.iterdir() if not file.suffix} == {"old", "recent"}
    (file,) = folder.glob("*.sqlite")
    os.utime(file, (now - 500, now - 500))
    with FeatureCache(model):
        assert file.stat().st_mtime >= now - 1  # used again


def test_the_cache_can_be_turned_off(
    photos: Path, folder: Path, model: EmbeddingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARKIN_CACHE_GB", "0")
    torch.testing.assert_close(cached_features(model, files(photos), workers=0), plain(model, files(photos)))
    assert not folder.exists()
    monkeypatch.setenv("NEARKIN_CACHE_GB", "much")
    with pytest.raises(UserError, match=r"NEARKIN_CACHE_GB must be a number of gigabytes, .* got much"):
        cached_features(model, files(photos), workers=0)
