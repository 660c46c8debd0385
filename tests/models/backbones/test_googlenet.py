"""GoogLeNet: torchvision's network without its heads, with the preprocessing of its weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import GoogLeNet, GoogLeNet_Weights

from nearkin.errors import UserError
from nearkin.models import EmbeddingModel, ModelSpec, preprocess_of, weights
from nearkin.models.backbones import find_backbone
from nearkin.models.weights import load_weights

NAME = "torchvision:googlenet"


@pytest.fixture(scope="module")
def trained() -> GoogLeNet:
    """Stands for torchvision's trained network: with classifier and auxiliary heads, and with statistics of its own."""
    torch.manual_seed(0)
    network = GoogLeNet(init_weights=True, transform_input=True)
    for name, statistic in network.named_buffers():
        if not name.endswith("num_batches_tracked"):
            nn.init.uniform_(statistic, 0.01 if name.endswith("var") else -0.1, 0.1)
    return network.eval()


def pooled(network: GoogLeNet, standardised: Tensor) -> Tensor:
    """What torchvision's own classifier reads, caught on its way (dropout does nothing in eval mode)."""
    caught: list[Tensor] = []
    hook = network.fc.register_forward_hook(lambda _module, inputs, _output: caught.append(inputs[0]))
    network(standardised)
    hook.remove()
    return caught[0]


@torch.no_grad()
def test_a_weights_file_gives_the_features_that_torchvision_computes_from_its_own_preprocessing(
    tmp_path: Path, trained: GoogLeNet
) -> None:
    torch.save(trained.state_dict(), tmp_path / "googlenet.pth")
    preprocess = preprocess_of(NAME, 64)
    model = EmbeddingModel(ModelSpec(NAME, 4, "never", preprocess)).eval()
    load_weights(model.backbone, NAME, str(tmp_path / "googlenet.pth"))
    pixels = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    presets = GoogLeNet_Weights.IMAGENET1K_V1.transforms()
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (presets.mean, presets.std))
    expected = pooled(trained, (pixels / 255 - mean) / std)
    assert expected.shape == (2, 1024) and expected.std() > 0.01
    assert torch.allclose(model.features(pixels), expected, atol=1e-4)


def test_images_are_cropped_as_in_torchvision() -> None:
    presets = GoogLeNet_Weights.IMAGENET1K_V1.transforms()
    preprocess = preprocess_of(NAME, None)
    assert ([preprocess.size], [preprocess.resize]) == (presets.crop_size, presets.resize_size)
    assert preprocess.interpolation == presets.interpolation.value
    assert (preprocess_of(NAME, 227).size, preprocess_of(NAME, 227).resize) == (227, 259)


def test_neither_classifier_nor_dropout_nor_auxiliary_heads_are_part_of_it() -> None:
    backbone = find_backbone(NAME).build(3)
    assert EmbeddingModel(ModelSpec(NAME, 4, "never", preprocess_of(NAME, 32))).width == 1024
    assert not any(isinstance(module, nn.Dropout | nn.Linear) for module in backbone.modules())
    assert backbone.train()(torch.rand(2, 3, 32, 32)).shape == (2, 1024)


def test_imagenet_weights_come_from_torchvision_and_are_never_executed(
    monkeypatch: pytest.MonkeyPatch, trained: GoogLeNet
) -> None:
    asked: list[tuple[str, dict[str, object]]] = []

    def download(url: str, **options: object) -> object:
        asked.append((url, options))
        return trained.state_dict()

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", download)
    backbone = find_backbone(NAME).build(3)
    load_weights(backbone, NAME, "imagenet")
    assert torch.equal(backbone.state_dict()["conv1.conv.weight"], trained.conv1.conv.weight)
    [(url, options)] = asked
    assert "googlenet" in url and options["weights_only"] is True and options["check_hash"] is True


def test_a_failed_download_of_googlenet_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr("torchvision.models._api.load_state_dict_from_url", offline)
    with pytest.raises(UserError, match=r"googlenet' could not be downloaded \(no route to host\).*weights=\"FILE\""):
        weights._downloaded(NAME)


def test_a_misspelt_googlenet_comes_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=f"did you mean '{NAME}'"):
        preprocess_of("torchvision:googelnet", None)
