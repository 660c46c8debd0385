"""The embedder: order, shape and length of embeddings, batches, saving and loading."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import nearkin
from nearkin.data.transforms import Preprocess, make_transform
from nearkin.errors import UserError
from nearkin.models import Embedder, EmbeddingModel, ModelSpec, embedder

HALF = (0.5, 0.5, 0.5)
COLOUR = Preprocess(size=16, resize=20, channels=3, mean=HALF, std=HALF)


def colour_embedder(normalize: str = "always") -> Embedder:
    torch.manual_seed(0)
    return Embedder(EmbeddingModel(ModelSpec("small", 8, normalize, COLOUR)))


def make_images(count: int = 7) -> list[Image.Image]:
    """Of different sizes, shapes and modes."""
    rng = np.random.default_rng(0)
    modes = ("RGB", "L", "RGBA")
    return [
        Image.fromarray(rng.integers(0, 256, (20 + 9 * n, 50 - 5 * n, 3), dtype=np.uint8)).convert(modes[n % 3])
        for n in range(count)
    ]


def one_by_one(model: EmbeddingModel, images: Sequence[Image.Image]) -> np.ndarray:
    """The slow way: transform and model for one image at a time."""
    transform = make_transform(COLOUR)
    white = [Image.alpha_composite(Image.new("RGBA", i.size, "white"), i.convert("RGBA")) for i in images]
    with torch.no_grad():
        return torch.cat([model(transform(image.convert("RGB"))[None]) for image in white]).numpy()


@pytest.mark.parametrize("batch_size", [1, 2, 7, 256])
def test_images_of_mixed_sizes_are_embedded_in_order_for_any_batch_size(batch_size: int, tmp_path: Path) -> None:
    embedder, images = colour_embedder(), make_images()
    expected = one_by_one(embedder.model, images)
    paths = [tmp_path / f"{n}.png" for n in range(len(images))]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    texts = [str(path) for path in paths]
    for data in (images, tuple(images), paths, texts):
        found = embedder.encode(data, batch_size, workers=0)
        assert np.allclose(found, expected, atol=1e-5)
        assert found.dtype == np.float32 and found.flags.c_contiguous and found.flags.writeable
    assert np.array_equal(embedder.encode(paths, batch_size=3, workers=2), embedder.encode(texts, batch_size=3))


@settings(max_examples=25)
@given(count=st.integers(1, 9), batch_size=st.integers(1, 12))
def test_the_batch_size_does_not_change_embeddings_of_vectors(count: int, batch_size: int) -> None:
    torch.manual_seed(0)
    embedder = Embedder(EmbeddingModel(ModelSpec("mlp", 3, features=4)))
    values = np.random.default_rng(count).normal(size=(count, 4))
    whole = embedder.model(torch.from_numpy(values).float()).detach().numpy()
    assert np.allclose(embedder.encode(values, batch_size), whole, atol=1e-5)


@pytest.mark.parametrize(("normalize", "unit"), [("always", True), ("test", True), ("never", False)])
def test_embeddings_have_unit_length_unless_normalize_is_never(normalize: str, unit: bool) -> None:
    embedder = colour_embedder(normalize)
    embedder.model.train()  # as a training loop leaves it
    lengths = np.linalg.norm(embedder.encode(make_images()), axis=1)
    assert np.allclose(lengths, 1, atol=1e-5) == unit


def test_arrays_of_other_sizes_and_channels_are_converted() -> None:
    embedder = colour_embedder()
    grey = np.random.default_rng(0).integers(0, 256, (3, 30, 24), dtype=np.uint8)
    expected = one_by_one(embedder.model, [Image.fromarray(each) for each in grey])
    assert np.allclose(embedder.encode(grey), expected, atol=1e-5)
    assert np.allclose(embedder.encode(np.stack([grey] * 3, axis=-1)), expected, atol=1e-5)


class OnDemand(Sequence[Image.Image]):
    """Pictures that exist only while somebody holds them."""

    def __init__(self, count: int) -> None:
        self.count, self.asked = count, list[int]()

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, place: Any) -> Any:
        self.asked.append(place)
        return Image.new("RGB", (20, 20), (place, 0, 0))


def test_images_are_loaded_batch_by_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    embedder, data, seen = colour_embedder(), OnDemand(10), list[int]()
    forward = embedder.model.head.forward

    def watched(features: torch.Tensor, learner: int | None = None) -> torch.Tensor:
        seen.append(len(set(data.asked)))
        return forward(features, learner)

    monkeypatch.setattr(embedder.model.head, "forward", watched)
    embedder.encode(data, batch_size=4)
    assert seen == [4, 8, 10]


@pytest.mark.parametrize("progress", [True, False])
def test_the_progress_bar_counts_batches_and_can_be_turned_off(progress: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = []

    def track(items: Iterable[Any], what: str, total: int) -> Iterator[Any]:
        bars.append((what, total))
        yield from items

    monkeypatch.setattr(embedder, "track", track)
    colour_embedder().encode(make_images(7), batch_size=3, progress=progress)
    assert bars == ([("embedding", 3)] if progress else [])


def test_one_batch_has_no_progress_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedder, "track", None)
    assert colour_embedder().encode(make_images(3), batch_size=3).shape == (3, 8)


def test_convert_to_tensor_returns_a_tensor_on_the_models_device() -> None:
    embedder, images = colour_embedder(), make_images(3)
    found = embedder.encode(images, convert_to_tensor=True)
    assert isinstance(found, torch.Tensor) and found.device == embedder.device and not found.requires_grad
    assert np.array_equal(found.numpy(), embedder.encode(images))
    assert embedder.encode(images[0], convert_to_tensor=True).shape == (8,)


@pytest.mark.parametrize("training", [True, False])
def test_encoding_does_not_change_the_mode_of_the_model(training: bool) -> None:
    embedder = colour_embedder()
    embedder.model.train(training)
    embedder.encode(make_images(1))
    assert embedder.model.training == training


def test_repr_describes_the_model() -> None:
    embedder = colour_embedder()
    assert (embedder.dim, embedder.device, embedder.to("cpu")) == (8, torch.device("cpu"), embedder)
    assert repr(embedder) == ("Embedder(backbone='small', input=(3, 16, 16), dim=8, normalize='always', device='cpu')")


class TestSimilarity:
    a = np.array([[3.0, 4.0], [0.0, 2.0], [1.0, 0.0]])
    b = np.array([[0.0, 1.0], [1.0, 1.0]])

    def embedder(self, normalize: str = "always") -> Embedder:
        return Embedder(EmbeddingModel(ModelSpec("linear", 2, normalize, features=3)))

    @pytest.mark.parametrize("normalize", ["always", "test"])
    def test_of_unit_length_models_is_the_cosine(self, normalize: str) -> None:
        expected = [[x @ y / np.linalg.norm(x) / np.linalg.norm(y) for y in self.b] for x in self.a]
        np.testing.assert_allclose(self.embedder(normalize).similarity(self.a, self.b), expected, atol=1e-6)

    def test_of_other_models_is_the_negative_distance(self) -> None:
        expected = [[-np.linalg.norm(x - y) for y in self.b] for x in self.a]
        np.testing.assert_allclose(self.embedder("never").similarity(self.a, self.b), expected, atol=1e-6)

    def test_gives_tensors_for_tensors_and_a_row_for_one_embedding(self) -> None:
        found = self.embedder().similarity(torch.tensor([1.0, 0.0]), torch.from_numpy(self.b))
        assert isinstance(found, torch.Tensor) and found.shape == (1, 2)
        assert self.embedder().similarity(self.a[0], self.b[0]).shape == (1, 1)

    def test_of_other_dimensions_is_refused(self) -> None:
        with pytest.raises(UserError, match=r"embeddings must have shape \(n, 2\) for this model, got \(3, 5\)"):
            self.embedder().similarity(self.b, np.ones((3, 5)))


def test_a_folder_may_be_a_string(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    embedder = colour_embedder()
    embedder.save("kept")
    assert np.array_equal(nearkin.load("kept").encode(make_images()), embedder.encode(make_images()))


def test_a_model_folder_works_without_its_run_and_data(photos: Path, tmp_path: Path) -> None:
    run = nearkin.train(
        photos, out=tmp_path / "run", epochs=1, backbone="small", image_size=16, batch_size=9, workers=0, device="cpu"
    )
    query = Image.open(photos / "class0" / "0.png").copy()
    expected = nearkin.load(run.folder).encode([query])
    away = tmp_path / "away"
    shutil.copytree(run.model_folder, away / "kept")
    query.save(away / "query.png")
    shutil.rmtree(run.folder)
    shutil.rmtree(photos)
    code = "import nearkin, numpy; numpy.save('found', nearkin.load('kept').encode(['query.png']))"
    subprocess.run([sys.executable, "-c", code], cwd=away, check=True, timeout=60)
    assert np.allclose(np.load(away / "found.npy"), expected, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_embeddings_are_computed_on_the_models_device() -> None:
    expected = colour_embedder().encode(make_images())
    assert np.allclose(colour_embedder().to("cuda").encode(make_images()), expected, atol=1e-2)


def test_a_model_that_returns_nan_is_refused() -> None:
    model = EmbeddingModel(ModelSpec("linear", 4, features=3, normalize="never"))
    with torch.no_grad():
        next(model.head.parameters())[0, 0] = torch.inf  # as weights that are finite may overflow to
    with pytest.raises(UserError, match="NaN or infinity for 5 of 5 items"):
        Embedder(model).encode(np.ones((5, 3)))
