"""The embedding model: standardising, checking the backbone, heads."""

from __future__ import annotations

import pytest
import torch
from reference.untrained import GREY, pixels, small_model

from nearkin.errors import UserError
from nearkin.models import EmbeddingModel, ModelSpec, preprocess_of

TIMM = "test_resnet.r160_in1k"  # 0.5 million parameters


@pytest.mark.parametrize(("normalize", "training", "test"), [("always", 1, 1), ("test", 0, 1), ("never", 0, 0)])
def test_normalize_decides_when_embeddings_have_unit_length(normalize: str, training: bool, test: bool) -> None:
    model = small_model(normalize)
    for mode, unit in ((True, training), (False, test)):
        lengths = model.train(mode)(pixels()).norm(dim=1)
        assert torch.allclose(lengths, torch.ones(5), atol=1e-5) == bool(unit)


def test_pixels_are_standardised_inside_the_model() -> None:
    model = small_model()
    black_and_white = torch.tensor([[0, 255]], dtype=torch.uint8).view(1, 1, 1, 2)
    assert model.standardise(black_and_white).flatten().tolist() == [-1.0, 1.0]


def test_frozen_batch_norm_keeps_its_statistics() -> None:
    model = EmbeddingModel(ModelSpec("small", 8, "always", GREY), freeze_batch_norm=True).train()
    before = {name: value.clone() for name, value in model.named_buffers()}
    model(pixels())
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert any(module.training for module in model.modules())


def test_an_unsuitable_image_size_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="fails on images of 33 pixels"):
        EmbeddingModel(ModelSpec("test_vit", 8, "always", preprocess_of("test_vit", 33)))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (ModelSpec("resnet5", 8, "always", GREY), "did you mean 'resnet50'"),
        (ModelSpec("mlp", 8, "always", GREY), "takes feature vectors"),
        (ModelSpec("small", 8, "always", None, 4), "takes images"),
        (ModelSpec("linear", 8, "sometimes", None, 4), "normalisation 'sometimes' is unknown"),
        (ModelSpec("linear", 0, "always", None, 4), "dim must be an integer >= 1, got 0"),
        (ModelSpec("linear", 4, "always", None, 4, head="bent"), "head 'bent' is unknown"),
        (
            ModelSpec("linear", 3, "always", None, 4, head="none"),
            "width of the backbone's features, 4, .* got dim=3 and slices=1",
        ),
        (ModelSpec("linear", 4, "always", None, 4, slices=2, head="none"), "slices must be 1, got dim=4 and slices=2"),
    ],
)
def test_impossible_models_are_refused(spec: ModelSpec, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        EmbeddingModel(spec)


def test_without_a_head_the_embedding_is_the_feature_vector() -> None:
    torch.manual_seed(0)
    for normalize in ("never", "test", "always"):
        model = EmbeddingModel(ModelSpec("small", 0, normalize, GREY, head="none")).eval()
        assert model.spec.dim == 256 and not list(model.head.parameters())
        features = model.features(pixels())
        expected = features if normalize == "never" else features / features.norm(dim=1, keepdim=True)
        torch.testing.assert_close(model(pixels()), expected)
    torch.testing.assert_close(model(pixels(), 0), expected)  # the only learner
