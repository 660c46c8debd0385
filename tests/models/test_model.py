"""Standardising, the backbone's check, heads: what makes a model of items an embedding."""

from __future__ import annotations

import pytest
import torch
from reference.untrained import GREY, pixels, small_model

from nearkin.errors import UserError
from nearkin.models import EmbeddingModel, ModelSpec, preprocess_of

TIMM = "test_resnet.r160_in1k"  # 0.5 million parameters


@pytest.mark.parametrize(("normalize", "training", "test"), [("always", 1, 1), ("test", 0, 1), ("never", 0, 0)])
def test_embeddings_have_unit_length_where_and_when_wanted(normalize: str, training: bool, test: bool) -> None:
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


def test_a_picture_size_that_a_backbone_cannot_take_is_one_sentence() -> None:
    with pytest.raises(UserError, match="does not take images of 33 pixels"):
        EmbeddingModel(ModelSpec("test_vit", 8, "always", preprocess_of("test_vit", 33)))


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        (ModelSpec("resnet5", 8, "always", GREY), "did you mean 'resnet50'"),
        (ModelSpec("mlp", 8, "always", GREY), "reads feature vectors"),
        (ModelSpec("small", 8, "always", None, 4), "reads images"),
        (ModelSpec("linear", 8, "sometimes", None, 4), "normalisation 'sometimes' is unknown"),
        (ModelSpec("linear", 0, "always", None, 4), "at least one dimension"),
        (ModelSpec("linear", 4, "always", None, 4, head="bent"), "head 'bent' is unknown"),
        (ModelSpec("linear", 3, "always", None, 4, head="none"), "the backbone's 4 features for one learner, not 3"),
        (ModelSpec("linear", 4, "always", None, 4, slices=2, head="none"), "not 4 dimensions for 2"),
    ],
)
def test_models_that_cannot_be_are_refused(spec: ModelSpec, expected: str) -> None:
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
