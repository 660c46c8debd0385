"""Averages over random views are those of each view embedded by itself."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.items import ImageArray, ImageFiles, Vectors
from nearkin.data.loader import Draw, input_batches
from nearkin.data.sources import load_dataset
from nearkin.data.transforms import Preprocess, make_transform, seeded
from nearkin.errors import UserError
from nearkin.models import EmbeddingModel, ModelSpec, embed_items
from nearkin.models import views as views_room
from nearkin.models.views import embed_views

GREY = Preprocess(size=16, resize=24, channels=1, mean=(0.5,), std=(0.5,))
PICTURES = ImageArray(np.random.default_rng(0).integers(0, 255, (7, 20, 20), dtype=np.uint8))


def small_model(normalize: str = "always", preprocess: Preprocess = GREY) -> EmbeddingModel:
    torch.manual_seed(0)
    return EmbeddingModel(ModelSpec("small", 8, normalize, preprocess))


def seeds_of_views(views: int, seed: int) -> list[int]:
    return [int(s) >> 2 for s in np.random.SeedSequence(seed).generate_state(views, np.uint64)]


def slow_means(model: EmbeddingModel, views: int, augment: str, seed: int) -> Tensor:
    """Picture by picture and view by view, one forward pass each."""
    transform, means = make_transform(GREY, augment), []
    model.eval()
    for number, pixels in enumerate(PICTURES.pixels):
        picture = Image.fromarray(pixels).convert("RGB")
        outputs = []
        for view_seed in seeds_of_views(views, seed):
            with seeded(view_seed + number):
                outputs.append(model(transform(picture)[None])[0].detach().double())
        mean = torch.stack(outputs).mean(0)
        means.append(mean if model.spec.normalize == "never" else mean / mean.norm())
    return torch.stack(means).float()


@pytest.mark.parametrize("augment", ["crop-flip", "resized-crop-flip"])
@pytest.mark.parametrize("normalize", ["always", "test", "never"])
def test_an_embedding_is_the_mean_over_its_views(normalize: str, augment: str) -> None:
    model = small_model(normalize)
    found = embed_views(model, PICTURES, GREY, 5, augment, seed=3)
    torch.testing.assert_close(found, slow_means(model, 5, augment, seed=3), rtol=1e-4, atol=1e-5)
    lengths_are_one = torch.allclose(found.norm(dim=1), torch.ones(7), atol=1e-5)
    assert lengths_are_one == (normalize != "never")


def test_one_view_without_augmentation_is_the_plain_embedding() -> None:
    model = small_model()
    assert torch.equal(embed_views(model, PICTURES, GREY, 1, "none"), embed_items(model, PICTURES, GREY))
    vectors = Vectors(np.eye(3, dtype=np.float32))
    linear = EmbeddingModel(ModelSpec("linear", 2, features=3))
    assert torch.equal(embed_views(linear, vectors, None, 1, "none"), embed_items(linear, vectors, None))


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (3, 0), (3, 2), (7, 1)])
def test_views_do_not_depend_on_batches_or_workers(
    photos: str, batch_size: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = load_dataset(str(photos)).items.take(np.arange(7))
    assert isinstance(items, ImageFiles)
    seen: dict[int, list[bytes]] = {}

    def recorded(items: ImageFiles, preprocess: Preprocess, draws: list[Draw], *rest: object):  # type: ignore[no-untyped-def]
        for draw, batch in zip(draws, input_batches(items, preprocess, draws, *rest), strict=True):  # type: ignore[arg-type]
            for number, pixels in zip(draw.indices.tolist(), batch, strict=True):
                seen.setdefault(number, []).append(pixels.numpy().tobytes())
            yield batch

    monkeypatch.setattr(views_room, "input_batches", recorded)
    model = small_model()
    found = embed_views(model, items, GREY, 4, "resized-crop-flip", 1, batch_size, workers)
    few, seen = seen, {}
    expected = embed_views(model, items, GREY, 4, "resized-crop-flip", 1, batch_size=256, workers=0)
    assert few == seen, "the very same pixels"
    assert all(len(set(pixels)) == 4 for pixels in seen.values()), "no view comes twice"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_equal_pictures_are_seen_differently_and_seeds_matter() -> None:
    twins = ImageArray(PICTURES.pixels[[0, 0]])
    model = small_model()
    first, second = (embed_views(model, twins, GREY, 1, "resized-crop-flip", seed) for seed in (0, 1))
    assert not torch.allclose(first[0], first[1], atol=1e-4)
    assert not torch.allclose(first, second, atol=1e-4)


def test_the_mean_over_many_views_settles() -> None:
    model = small_model("never")

    def spread(views: int) -> float:
        draws = [embed_views(model, PICTURES, GREY, views, "resized-crop-flip", seed) for seed in range(6)]
        return torch.stack(draws).std(0).mean().item()

    assert spread(16) < 0.5 * spread(1), "about a quarter"


@pytest.mark.parametrize("training", [True, False])
def test_the_model_and_the_random_state_stay_as_they_were(training: bool) -> None:
    model = small_model().train(training)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = embed_views(model, PICTURES, GREY, 2, "crop-flip")
    assert model.training == training and not found.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("views", "augment", "expected"),
    [
        (0, "crop-flip", "views=0 must be at least 1"),
        (4, "none", "all 4 views are the same"),
        (4, "crop-flop", "did you mean 'crop-flip'"),
    ],
)
def test_views_that_make_no_sense_are_refused(views: int, augment: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        embed_views(small_model(), PICTURES, GREY, views, augment)


def test_vectors_have_no_random_views() -> None:
    linear = EmbeddingModel(ModelSpec("linear", 2, features=3))
    with pytest.raises(UserError, match="no random views"):
        embed_views(linear, Vectors(np.eye(3, dtype=np.float32)), None, 4, "crop-flip")
