"""The registry: a backbone is added by adding a file, and unknown names come with a suggestion."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import nearkin
from nearkin.data.items import ImageFiles
from nearkin.errors import UserError
from nearkin.models import (
    Embedder,
    EmbeddingModel,
    ModelSpec,
    backbones,
    known_backbones,
    preprocess_of,
    register_backbone,
)
from nearkin.models.backbones import find_backbone, registry
from nearkin.models.embed import cached_features

FILE = """
from torch import nn
from nearkin.data.transforms import Preprocess
from nearkin.models import register_backbone

@register_backbone("stripes", Preprocess(24, 30, 3, (0.1,) * 3, (0.2,) * 3), grey=True)
def stripes(channels):
    return nn.Sequential(nn.Conv2d(channels, 5, (1, 24)), nn.AdaptiveAvgPool2d(1), nn.Flatten())
"""


@pytest.fixture(autouse=True)
def _as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(registry, "_BACKBONES", dict(registry._BACKBONES))
    yield


@pytest.fixture
def stripes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A backbone in a file of a user's own."""
    (tmp_path / "my_stripes.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("my_stripes")
    yield "stripes"
    del sys.modules["my_stripes"]


@pytest.mark.parametrize("channels", [1, 3])
def test_a_backbone_in_a_new_file_is_used_and_saved_by_its_name(stripes: str, channels: int, tmp_path: Path) -> None:
    preprocess = preprocess_of(stripes, channels=channels)
    assert (preprocess.size, preprocess.resize, preprocess.mean) == (24, 30, (0.1,) * channels)
    assert (preprocess_of(stripes, 48).size, preprocess_of(stripes, 48).resize) == (48, 60)
    embedder = Embedder(EmbeddingModel(ModelSpec(stripes, 4, preprocess=preprocess)))
    assert embedder.model.width == 5
    embedder.save(tmp_path / "model")
    image = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    np.testing.assert_array_equal(nearkin.load(tmp_path / "model").encode(image), embedder.encode(image))


def test_a_registered_backbone_can_be_trained(stripes: str, photos: Path, tmp_path: Path) -> None:
    run = nearkin.train(photos, out=tmp_path / "run", backbone=stripes, dim=4, epochs=1, batch_size=9, workers=0)
    assert nearkin.load(run.folder).encode(photos / "class0" / "0.png").shape == (4,)


def test_without_its_file_a_saved_model_names_the_missing_backbone(stripes: str, tmp_path: Path) -> None:
    Embedder(EmbeddingModel(ModelSpec(stripes, 4, preprocess=preprocess_of(stripes)))).save(tmp_path / "model")
    del registry._BACKBONES[stripes]
    with pytest.raises(UserError, match="backbone 'stripes' is unknown"):
        nearkin.load(tmp_path / "model")


def test_files_in_nearkins_own_folder_are_imported() -> None:
    """`builtin.py` and `googlenet.py` are named nowhere."""
    assert {"linear", "mlp", "small", "torchvision:googlenet"} <= set(known_backbones())
    assert "builtin" not in Path(str(backbones.__file__)).read_text()


def test_features_of_code_that_may_change_are_not_cached(
    stripes: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEARKIN_CACHE", str(tmp_path / "cache"))
    files = ImageFiles(sorted(photos.rglob("*.png")))
    for name, kept in ((stripes, False), ("small", True)):
        model = EmbeddingModel(ModelSpec(name, 4, preprocess=preprocess_of(name, 24)))
        assert cached_features(model, files, workers=0).shape == (36, model.width)
        assert bool([*(tmp_path / "cache").rglob("*.sqlite")]) == kept


def test_a_name_cannot_be_registered_twice() -> None:
    with pytest.raises(UserError, match="backbone 'small' already exists"):

        @register_backbone("small")
        def another(channels: int) -> nn.Module:  # noqa: ARG001
            return nn.Flatten()


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("smal", "small"), ("resnet5", "resnet50"), ("torchvision:googelnet", "torchvision:googlenet"), ("MLP", "mlp")],
)
def test_an_unknown_name_comes_with_the_nearest_one(name: str, nearest: str) -> None:
    with pytest.raises(UserError, match=f"backbone '{name}' is unknown; did you mean '{nearest}'"):
        find_backbone(name)


def test_the_prefix_timm_is_optional() -> None:
    model = EmbeddingModel(ModelSpec("timm:test_resnet", 4, preprocess=preprocess_of("timm:test_resnet", 32)))
    assert model.spec.backbone == "test_resnet" and model.width == 96


def test_the_output_of_a_registered_backbone_is_checked() -> None:
    register_backbone("pairs", reads="vectors")(lambda _: Pairs())
    with pytest.raises(UserError, match="backbone 'pairs' returned a tuple"):
        EmbeddingModel(ModelSpec("pairs", 4, features=3))


class Pairs(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, x
