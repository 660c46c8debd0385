"""Embedding a dataset into a Space, and averages over random views."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from nearkin.data.dataset import Dataset
from nearkin.data.items import ImageArray, ImageFiles, Items, Vectors
from nearkin.data.loader import Draw, input_batches, sequential
from nearkin.data.sources import load_dataset
from nearkin.data.transforms import Preprocess, make_transform, seeded
from nearkin.errors import UserError
from nearkin.models import EmbeddingModel, ModelSpec, embed
from nearkin.models.embed import embed_dataset
from nearkin.models.model import Head

GREY = Preprocess(size=16, resize=24, channels=1, mean=(0.5,), std=(0.5,))
IMAGES = ImageArray(np.random.default_rng(0).integers(0, 255, (7, 20, 20), dtype=np.uint8))


def small_model(normalize: str = "always", preprocess: Preprocess = GREY) -> EmbeddingModel:
    torch.manual_seed(0)
    return EmbeddingModel(ModelSpec("small", 8, normalize, preprocess))


def embedded(model: EmbeddingModel | Head, items: Items, **options: Any) -> Tensor:
    return embed_dataset(model, Dataset("x", items, np.zeros(len(items), int), ["one"]), **options).embeddings


def seeds_of_views(views: int, seed: int) -> list[int]:
    return [int(s) >> 2 for s in np.random.SeedSequence(seed).generate_state(views, np.uint64)]


def slow_means(model: EmbeddingModel, views: int, augment: str, seed: int) -> Tensor:
    """One forward pass for each image and view."""
    transform, means = make_transform(GREY, augment), []
    model.eval()
    for number, pixels in enumerate(IMAGES.pixels):
        image = Image.fromarray(pixels).convert("RGB")
        outputs = []
        for view_seed in seeds_of_views(views, seed):
            with seeded(view_seed + number):
                outputs.append(model(transform(image)[None])[0].detach().double())
        mean = torch.stack(outputs).mean(0)
        means.append(mean if model.spec.normalize == "never" else mean / mean.norm())
    return torch.stack(means).float()


@pytest.mark.parametrize("augment", ["crop-flip", "resized-crop-flip"])
@pytest.mark.parametrize("normalize", ["always", "test", "never"])
def test_an_embedding_is_the_mean_over_its_views(normalize: str, augment: str) -> None:
    model = small_model(normalize)
    found = embedded(model, IMAGES, views=5, augment=augment, seed=3)
    torch.testing.assert_close(found, slow_means(model, 5, augment, seed=3), rtol=1e-4, atol=1e-5)
    lengths_are_one = torch.allclose(found.norm(dim=1), torch.ones(7), atol=1e-5)
    assert lengths_are_one == (normalize != "never")


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_a_space_has_the_embeddings_and_the_labels_of_the_dataset(use_cache: bool, training: bool) -> None:
    model = small_model("test").train(training)
    masks = {"is_query": np.arange(7) < 3, "is_gallery": np.arange(7) > 1}
    dataset = Dataset("x", IMAGES, np.array([0, 0, 1, 1, 2, 2, 2]), ["a", "b", "c"], **masks)
    space = embed_dataset(model, dataset, batch_size=3, use_cache=use_cache)
    assert model.training == training and not space.embeddings.requires_grad
    transform = make_transform(GREY)
    images = torch.stack([transform(Image.fromarray(each).convert("RGB")) for each in IMAGES.pixels])
    torch.testing.assert_close(space.embeddings, model.eval()(images).detach())
    assert space.labels.tolist() == dataset.labels.tolist() and space.items.tolist() == list(range(7))
    assert space.queries.tolist() == [0, 1, 2] and space.gallery.tolist() == [2, 3, 4, 5, 6]


@pytest.mark.parametrize("how", [{"use_cache": True}, {"use_cache": False, "augment": "crop-flip"}])
def test_lower_precision_is_refused_where_it_would_be_ignored(how: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="autocast needs use_cache=False and no augmentation"):
        embedded(small_model(), IMAGES, autocast=torch.bfloat16, **how)


def test_a_head_alone_embeds_features() -> None:
    head, rows = Head(3, 2, "always"), np.eye(3, dtype=np.float32)
    torch.testing.assert_close(embedded(head, Vectors(rows)), head(torch.from_numpy(rows)).detach())
    model = EmbeddingModel(ModelSpec("linear", 2, features=3)).eval()
    torch.testing.assert_close(embedded(model, Vectors(rows)), model(torch.from_numpy(rows)).detach())


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

    monkeypatch.setattr(embed, "input_batches", recorded)
    model, how = small_model(), {"views": 4, "augment": "resized-crop-flip", "seed": 1}
    found = embedded(model, items, **how, batch_size=batch_size, workers=workers)
    few, seen = seen, {}
    expected = embedded(model, items, **how, workers=0)
    assert few == seen, "the very same pixels"
    assert all(len(set(pixels)) == 4 for pixels in seen.values()), "no view comes twice"
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_equal_images_get_different_views_and_seeds_matter() -> None:
    twins = ImageArray(IMAGES.pixels[[0, 0]])
    model = small_model()
    first, second = (embedded(model, twins, augment="resized-crop-flip", seed=seed) for seed in (0, 1))
    assert not torch.allclose(first[0], first[1], atol=1e-4)
    assert not torch.allclose(first, second, atol=1e-4)


def test_the_mean_over_many_views_converges() -> None:
    model = small_model("never")

    def spread(views: int) -> float:
        draws = [embedded(model, IMAGES, views=views, augment="resized-crop-flip", seed=seed) for seed in range(6)]
        return torch.stack(draws).std(0).mean().item()

    assert spread(16) < 0.5 * spread(1), "about a quarter"


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_and_the_random_state_do_not_change(training: bool) -> None:
    model = small_model().train(training)
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    found = embedded(model, IMAGES, views=2, augment="crop-flip")
    assert model.training == training and not found.requires_grad
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("views", "augment", "expected"),
    [
        (0, "crop-flip", "views must be an integer >= 1, got 0"),
        (4, "none", "4 views without augmentation are all the same"),
        (4, "crop-flop", "did you mean 'crop-flip'"),
    ],
)
def test_invalid_views_are_refused(views: int, augment: str, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        embedded(small_model(), IMAGES, views=views, augment=augment)


def test_vectors_cannot_be_augmented() -> None:
    linear = EmbeddingModel(ModelSpec("linear", 2, features=3))
    with pytest.raises(UserError, match="cannot be augmented"):
        embedded(linear, Vectors(np.eye(3, dtype=np.float32)), views=4, augment="crop-flip")


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_failure_leaves_modes_as_they_were(use_cache: bool) -> None:
    model = EmbeddingModel(ModelSpec("linear", 2, features=3)).train()
    vectors = Vectors(np.full((2, 3), np.inf, dtype=np.float32))
    with pytest.raises(UserError, match="NaN or infinity") as _held:  # keeps the frames alive
        embedded(model, vectors, batch_size=1, use_cache=use_cache)
    assert torch.is_grad_enabled() and model.training


def test_gradients_can_be_computed_between_two_batches() -> None:
    model = EmbeddingModel(ModelSpec("linear", 2, features=3))
    vectors, draws = Vectors(np.ones((4, 3), dtype=np.float32)), sequential(4, 2)
    outputs = embed._outputs(model, vectors, draws, model, autocast=torch.bfloat16)
    assert [(torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")) for _ in outputs] == [(True, False)] * 2
