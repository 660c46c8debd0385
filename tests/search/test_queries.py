"""Every kind of query; one query has one result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from reference import hostile_images
from reference.untrained import save_untrained

from nearkin.data import decoders
from nearkin.errors import UserError
from nearkin.models import Embedder
from nearkin.search.queries import embed_queries


@pytest.fixture
def model(tmp_path: Path) -> Embedder:
    return Embedder.load(save_untrained(tmp_path / "model"))


@pytest.fixture
def file(photos: Path) -> Path:
    return photos / "class3" / "3.png"


def pixels(file: Path) -> np.ndarray:
    return np.asarray(Image.open(file).convert("RGB"))


FORMS = {
    "a path": lambda file, _: file,
    "a text": lambda file, _: str(file),
    "an image": lambda file, _: Image.open(file),
    "an array": lambda file, _: pixels(file),
    "a tensor": lambda file, _: torch.tensor(pixels(file)).permute(2, 0, 1),
    "an embedding": lambda file, model: model.encode([file])[0],
    "an embedding on its way": lambda file, model: torch.from_numpy(model.encode([file])[0]).requires_grad_(),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_query_has_the_same_result_in_every_form(model: Embedder, file: Path, form: str) -> None:
    expected = model.encode([file])
    for listed in (False, True):
        query = FORMS[form](file, model)
        asked = embed_queries([query] if listed else query, model)
        np.testing.assert_allclose(asked.embeddings, expected, atol=1e-6)
        assert asked.single == (not listed) and len(asked.names) == len(asked.files) == 1
        assert asked.files == ([file] if form in ("a path", "a text") else [None])


@pytest.mark.parametrize(
    "several",
    [
        lambda file, _: [file, file],
        lambda file, _: (Image.open(file), pixels(file)),
        lambda file, _: np.stack([pixels(file)] * 2),
        lambda file, model: model.encode([file, file]),
        lambda file, model: [torch.from_numpy(model.encode([file])[0])] * 2,
    ],
)
def test_several_queries_have_several_results(model: Embedder, file: Path, several: Any) -> None:
    asked = embed_queries(several(file, model), model)
    np.testing.assert_allclose(asked.embeddings, model.encode([file, file]), atol=1e-6)
    assert not asked.single and len(asked.names) == 2


def test_an_array_of_grey_images_is_several_queries(model: Embedder) -> None:
    assert len(embed_queries(np.zeros((5, 8, 8), np.uint8), model).names) == 5
    assert embed_queries(np.zeros((8, 8), np.uint8), model).single


def test_a_folder_is_searched_image_by_image(model: Embedder, photos: Path, file: Path) -> None:
    everything = sorted(photos.rglob("*.png"))
    asked = embed_queries(photos, model)
    assert asked.files == everything and asked.names == [str(path) for path in everything] and not asked.single
    assert embed_queries([photos / "class3", file], model).files == [*sorted((photos / "class3").iterdir()), file]
    for path in (photos / "class3").glob("[1-5].png"):
        path.unlink()
    assert not embed_queries(photos / "class3", model).single  # even if it contains one image


def test_queries_without_a_path_are_numbered(model: Embedder, file: Path) -> None:
    assert embed_queries([pixels(file), pixels(file)], model).names == ["image 0", "image 1"]
    assert embed_queries(np.zeros((2, 4), np.float32), model).names == ["embedding 0", "embedding 1"]
    assert embed_queries(Image.open(file), model).names == [str(file)]


@pytest.mark.parametrize(
    ("queries", "reason"),
    [
        ([], "no queries given"),
        (np.zeros((3, 8, 8, 3), np.float32), "must have the model's input size"),
        (np.zeros(7, np.int64), r"an image array must have shape .*, got \(7,\)"),
        ([np.zeros(4), Image.new("RGB", (8, 8))], "an image array must have shape"),
        (["nowhere.jpg"], "nowhere.jpg: no such file"),
    ],
)
def test_an_invalid_query_is_refused_in_one_sentence(model: Embedder, queries: Any, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        embed_queries(queries, model)


def test_a_folder_without_images_is_refused(model: Embedder, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="empty contains no images"):
        embed_queries(tmp_path / "empty", model)


def test_a_query_file_is_decoded_under_limits(model: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "SECONDS", 0.5)
    file = tmp_path / "slow.ppm"
    file.write_bytes(hostile_images.ppm_of_numbers())
    with pytest.raises(UserError, match=r"slow\.ppm: takes more than 0\.5 seconds to decode"):
        embed_queries(file, model)
