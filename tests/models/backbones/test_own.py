"""A user's own module as a backbone: checked once, saved as weights, never imported or unpickled."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn

import nearkin
from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError
from nearkin.models import Embedder, EmbeddingModel, ModelSpec, preprocess_of, wrap_backbone
from nearkin.models.backbones.own import module_name

SMALL = Preprocess(size=16, resize=16, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
IMAGES = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), dtype=np.uint8)


class MyNet(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x))).mean(dim=(2, 3))


class Gives(nn.Module):
    """Gives whatever a function makes of its input."""

    def __init__(self, make: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


def test_a_module_for_images_gets_standardised_inputs_and_a_head() -> None:
    net = MyNet()
    model = wrap_backbone(net, dim=4, preprocess=SMALL).eval()
    x = torch.from_numpy(IMAGES).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = torch.nn.functional.normalize(model.head.project[0](net((x / 255 - 0.5) / 0.5)), dim=1)
        torch.testing.assert_close(model(x), expected)
    assert Embedder(model).encode(IMAGES).shape == (3, 4) and model.width == 6


def test_a_module_for_vectors_without_a_head_is_the_embedding() -> None:
    net = nn.Linear(3, 5)
    rows = torch.randn(4, 3)
    model = wrap_backbone(net, dim=0, normalize="never", features=3)
    torch.testing.assert_close(model(rows), net(rows))
    assert model.spec.dim == 5


def test_images_are_prepared_as_for_imagenet_unless_the_module_says_otherwise() -> None:
    usual = preprocess_of(MyNet())
    assert (usual.size, usual.resize, usual.mean) == (224, 256, (0.485, 0.456, 0.406))
    assert preprocess_of(MyNet(), 112).resize == 128
    named = timm.create_model("test_resnet.r160_in1k", num_classes=0)
    assert preprocess_of(named) == preprocess_of("test_resnet.r160_in1k")
    net = MyNet()
    net.default_cfg = {"input_size": (1, 28, 28), "mean": (0.1,), "std": (0.3,)}  # type: ignore[assignment]
    assert preprocess_of(net) == Preprocess(28, 32, 1, (0.1,), (0.3,))


def test_finding_the_width_does_not_change_modes_or_statistics() -> None:
    net = MyNet().train()
    net.norm.eval()  # frozen by its owner
    before = {name: value.clone() for name, value in net.state_dict().items()}
    state = torch.get_rng_state()
    EmbeddingModel(ModelSpec("", 6, preprocess=SMALL, head="none"), backbone=net)
    assert net.training and not net.norm.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda x: (x.mean((2, 3)), x), r"returned a tuple; return a tensor of shape \(batch, features\)"),
        (lambda x: {"features": x}, "returned a dict; return a tensor"),
        (lambda _: None, "returned a NoneType"),
        (lambda x: x, r"returned a tensor of shape \(2, 3, 16, 16\) for a batch of 2; return one of shape"),
        (lambda x: x.mean(), r"of shape \(\) for a batch of 2"),
        (lambda x: x.flatten(1)[:1], r"of shape \(1, 768\) for a batch of 2"),
        (lambda x: x.flatten(1)[:, :0], r"of shape \(2, 0\)"),
        (lambda x: x.flatten(1).int(), r"returned torch.int32; return a floating-point tensor"),
        (lambda x: x.flatten(1) * torch.nan, "returned NaN or infinity"),
        (lambda x: x @ torch.ones(9, 9), r"fails on images of 16 pixels \(mat1 and mat2|fails on images"),
    ],
)
def test_a_module_that_does_not_return_features_is_refused(make: Callable[[Tensor], Any], expected: str) -> None:
    with pytest.raises(UserError, match=expected) as caught:
        wrap_backbone(Gives(make), preprocess=SMALL)
    assert "\n" not in str(caught.value) and "Gives" in str(caught.value)


def test_a_class_instead_of_a_module_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match=r"backbone must be a name or a torch\.nn\.Module, got <class '.*MyNet'>"):
        EmbeddingModel(ModelSpec("", 6, preprocess=SMALL), backbone=MyNet)  # type: ignore[arg-type]


def test_a_module_for_other_vectors_is_refused_in_one_sentence() -> None:
    with pytest.raises(UserError, match="fails on vectors of 4 features"):
        wrap_backbone(nn.Linear(3, 5), features=4)


class TestSaved:
    def test_weights_come_back_into_a_module_that_is_passed(self, tmp_path: Path) -> None:
        embedder = Embedder(wrap_backbone(MyNet(), dim=4, preprocess=SMALL))
        embedder.save(tmp_path)
        assert sorted(file.name for file in tmp_path.iterdir()) == ["model.json", "model.safetensors"]
        loaded = nearkin.load(tmp_path, backbone=MyNet())
        assert loaded.model.spec == embedder.model.spec
        np.testing.assert_array_equal(loaded.encode(IMAGES), embedder.encode(IMAGES))

    def test_loading_without_it_says_what_to_pass(self, tmp_path: Path) -> None:
        Embedder(wrap_backbone(MyNet(), dim=4, preprocess=SMALL)).save(tmp_path)
        path = f"{MyNet.__module__}.MyNet"
        with pytest.raises(
            UserError, match=rf"the backbone is your own module {path}, .*nearkin\.load\(path, backbone=MyNet\(...\)\)"
        ):
            nearkin.load(tmp_path)

    def test_another_module_is_refused_before_it_is_changed(self, tmp_path: Path) -> None:
        Embedder(wrap_backbone(MyNet(), dim=4, preprocess=SMALL)).save(tmp_path)
        other = MyNet(width=7)
        before = other.conv.weight.clone()
        with pytest.raises(UserError, match="does not match model"):
            nearkin.load(tmp_path, backbone=other)
        assert torch.equal(other.conv.weight, before)

    def test_a_module_for_a_model_that_nearkin_builds_is_refused(self, tmp_path: Path) -> None:
        Embedder(EmbeddingModel(ModelSpec("small", 4, preprocess=SMALL))).save(tmp_path)
        with pytest.raises(UserError, match="its backbone 'small' is not your own module; leave out backbone"):
            nearkin.load(tmp_path, backbone=MyNet())
        with pytest.raises(UserError, match=r"test_resnet is a network that nearkin builds itself; leave out backbone"):
            nearkin.load("timm:test_resnet", backbone=MyNet())

    @pytest.mark.parametrize("passed", [True, False])
    def test_what_a_file_names_is_never_imported(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: bool
    ) -> None:
        (tmp_path / "evil_package.py").write_text("raise SystemExit('imported')")
        monkeypatch.syspath_prepend(tmp_path)
        Embedder(wrap_backbone(MyNet(), dim=4, preprocess=SMALL)).save(tmp_path)
        file = tmp_path / "model.json"
        description = json.loads(file.read_text())
        description["spec"]["backbone"] = "module:evil_package.Net"
        file.write_text(json.dumps(description))
        if passed:
            nearkin.load(tmp_path, backbone=MyNet())
        else:
            with pytest.raises(UserError, match="which nearkin does not import"):
                nearkin.load(tmp_path)
        assert "evil_package" not in sys.modules

    @pytest.mark.parametrize("name", ["module:", "module:os;x", "module:a b", "module:../x", "module:__import__('os')"])
    def test_strange_names_are_refused(self, tmp_path: Path, name: str) -> None:
        Embedder(wrap_backbone(MyNet(), dim=4, preprocess=SMALL)).save(tmp_path)
        file = tmp_path / "model.json"
        description = json.loads(file.read_text())
        description["spec"]["backbone"] = name
        file.write_text(json.dumps(description))
        with pytest.raises(UserError, match="is not the name of a network"):
            nearkin.load(tmp_path)


def test_a_class_that_cannot_be_imported_is_called_by_its_name_alone() -> None:
    class Local(nn.Module):
        pass

    at_the_prompt = type("Prompt", (nn.Module,), {"__module__": "__main__"})
    assert module_name(Local()) == "module:Local"
    assert module_name(at_the_prompt()) == "module:Prompt"
    assert module_name(MyNet()) == f"module:{MyNet.__module__}.MyNet"
