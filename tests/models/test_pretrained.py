"""A pretrained network by name is a model like any other: it can be loaded, indexed, evaluated and exported."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Command
from safetensors.torch import save_file
from torch.nn.functional import normalize

import nearkin as package
from nearkin.errors import UserError
from nearkin.models import weights as weights_files
from nearkin.models.backbones.timm_models import load_timm
from nearkin.models.pretrained import network_name

NAME = "test_resnet"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """Those of a small network of timm, as a file; the classifier in it is not needed."""
    torch.manual_seed(0)
    save_file(load_timm().create_model(NAME).state_dict(), tmp_path / "weights.safetensors")
    return tmp_path / "weights.safetensors"


@pytest.mark.parametrize("name", [NAME, f"timm:{NAME}", f"timm:{NAME}.r160_in1k"])
def test_the_embedding_is_the_networks_features_at_unit_length(name: str, weights: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 160, 160, 3), dtype=np.uint8)
    embedder = package.load(name, weights=weights)
    network = load_timm().create_model(NAME, num_classes=0).eval()
    weights_files.load_weights(network, NAME, str(weights))
    with torch.no_grad():
        features = network(embedder.model.standardise(torch.from_numpy(pixels).permute(0, 3, 1, 2)))
    spec = embedder.model.spec
    assert (spec.head, spec.normalize, spec.dim) == ("none", "always", features.shape[1])
    np.testing.assert_allclose(embedder.encode(pixels), normalize(features, dim=1), atol=1e-5)


def test_googlenet_is_a_model_too(tmp_path: Path) -> None:
    from nearkin.models.backbones.googlenet import googlenet

    save_file(googlenet().state_dict(), tmp_path / "googlenet.safetensors")
    embedder = package.load("torchvision:googlenet", weights=tmp_path / "googlenet.safetensors")
    assert embedder.encode(np.zeros((1, 224, 224, 3), np.uint8)).shape == (1, 1024)


def test_without_a_file_the_imagenet_weights_are_downloaded(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def downloaded(name: str) -> dict[str, torch.Tensor]:
        asked.append(name)
        return weights_files.read_weights(weights)

    monkeypatch.setattr(weights_files, "_downloaded", downloaded)
    fetched, given = package.load(f"timm:{NAME}"), package.load(f"timm:{NAME}", weights)
    assert asked == [NAME]
    pixels = np.random.default_rng(0).integers(0, 256, (2, 160, 160, 3), dtype=np.uint8)
    assert np.array_equal(fetched.encode(pixels), given.encode(pixels))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet5", "'resnet5' is neither a folder nor a known network; did you mean 'resnet50'?"),
        ("timm:ResNet50x", "timm has no network 'ResNet50x'; did you mean 'resnet50'?"),
        ("timm:resnet50.a1_in2k", "did you mean 'resnet50.a1_in1k'?"),
        ("timm:hf-hub:someone/evil", "timm has no network 'hf-hub:someone/evil'"),
        ("torchvision:resnet18", "only torchvision:googlenet"),
        ("runs/resnet50", "runs/resnet50 does not exist; use a run folder"),
        ("./resnet50", "resnet50 does not exist; use a run folder"),
        ("my-flowers-of-2026", "my-flowers-of-2026 does not exist; use a run folder"),
    ],
)
def test_an_unknown_name_comes_with_a_suggestion(
    name: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        package.load(name)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_takes_precedence_over_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert network_name(NAME) == NAME
    Path(NAME).mkdir()
    assert network_name(NAME) is None and network_name(f"timm:{NAME}") == NAME


def test_weights_need_a_network_by_name_and_must_not_be_none(weights: Path, tmp_path: Path) -> None:
    package.load(NAME, weights).save(tmp_path / "model")
    with pytest.raises(UserError, match="with its own weights; leave out weights"):
        package.load(tmp_path / "model", weights)
    with pytest.raises(UserError, match="random embeddings"):
        package.load(NAME, "none")


def test_every_command_that_takes_a_model_takes_a_name(nearkin: Command, weights: Path, photos: Path) -> None:
    outcome = nearkin("index", NAME, photos, "--weights", weights, "-o", "photos.index")
    assert outcome.code == 0 and "36 added" in outcome.out, outcome.err
    outcome = nearkin("index", f"timm:{NAME}", photos, "--weights", weights, "-o", "photos.index")  # the same model
    assert outcome.code == 0 and "36 unchanged" in outcome.out, outcome.err
    (Path("weights.safetensors")).unlink()  # the gallery has a copy
    outcome = nearkin("search", "photos.index", photos / "class3" / "3.png")
    assert outcome.code == 0 and "class3" in outcome.out, outcome.err


def test_a_network_by_name_can_be_evaluated_and_embeds(nearkin: Command, weights: Path, photos: Path) -> None:
    outcome = nearkin("evaluate", NAME, "--weights", weights, "--data", photos)
    assert outcome.code == 0 and "Recall@1" in outcome.out, outcome.err
    outcome = nearkin("evaluate", NAME, "--weights", weights)
    assert outcome.code == 1 and "has no data of its own" in outcome.err
    outcome = nearkin("embed", f"timm:{NAME}", photos, "--weights", weights, "-o", "x.npz")
    assert "36 vectors of 96 dimensions" in outcome.out, outcome.err
    with np.load("x.npz") as found:
        np.testing.assert_allclose(np.linalg.norm(found["vectors"], axis=1), 1, atol=1e-5)


def test_a_network_by_name_can_be_exported(nearkin: Command, weights: Path) -> None:
    pytest.importorskip("onnxruntime")
    outcome = nearkin("export", f"timm:{NAME}", "--weights", weights)
    assert outcome.code == 0 and outcome.out.startswith(f"{NAME}.onnx"), outcome.err
