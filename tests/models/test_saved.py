"""Model folders are data: no code is executed, nothing is downloaded, and every error is one sentence."""

from __future__ import annotations

import json
import pickle
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.models import saved as saved_models

GREY = Preprocess(size=16, resize=16, channels=1, mean=(0.5,), std=(0.5,))
COLOUR = Preprocess(size=16, resize=16, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    Embedder(EmbeddingModel(ModelSpec("small", 8, "always", GREY, slices=2))).save(folder)
    return folder


@pytest.fixture
def model(saved: Path, tmp_path: Path) -> Path:
    """A good model in a folder of its own, to be spoilt."""
    for file in saved.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Every attempt to reach the network."""
    attempts: list[str] = []

    def refuse(*arguments: object, **_: object) -> None:
        attempts.append(str(arguments))
        raise OSError("no network in this test")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)
    yield attempts


def refused(model: Path) -> str:
    with pytest.raises(UserError) as caught:
        Embedder.load(model)
    message = str(caught.value)
    assert "\n" not in message and str(model) in message
    return message


def rewrite(model: Path, **changes: Any) -> None:
    file = model / "model.json"
    description = json.loads(file.read_text())
    file.write_text(json.dumps({**description, "spec": {**description["spec"], **changes}}))


class Payload:
    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return Path.touch, (Path("executed"),)  # type: ignore[return-value]


@pytest.mark.parametrize("protocol", [0, 2, 5])
@pytest.mark.parametrize("file", ["model.safetensors", "model.json"])
def test_a_pickle_in_place_of_a_file_is_never_executed(
    model: Path, file: str, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    (model / file).write_bytes(pickle.dumps(Payload(), protocol=protocol))
    assert "is not valid JSON" in refused(model) or "cannot be read" in refused(model)
    torch.save({"head.project.0.weight": Payload()}, model / file)
    assert "is not valid JSON" in refused(model) or "cannot be read" in refused(model)
    assert not Path("executed").exists()


@pytest.mark.parametrize(
    "backbone",
    [
        "hf-hub:someone/evil",
        "hf_hub:someone/evil",
        "HF-HUB:someone/resnet18",
        "local-dir:/tmp/evil",
        "/tmp/evil",
        "../evil",
        "resnet18.tag/../x",
        "resnet18.evil",
        "https://example.org/resnet18",
        "timm/resnet18",
        "torchvision:resnet18",
        "resnet18\n",
        "",
    ],
)
def test_a_backbone_from_elsewhere_is_neither_downloaded_nor_opened(
    model: Path, backbone: str, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for source in ("load_model_config_from_hf", "load_model_config_from_path"):
        monkeypatch.setattr(f"timm.models._factory.{source}", lambda *name, **_: calls.append(str(name)))
    rewrite(model, backbone=backbone, preprocess={**vars(GREY), "channels": 3, "mean": [0.5] * 3, "std": [0.5] * 3})
    weights = load_file(model / "model.safetensors")
    save_file({**weights, "standardise.mean": torch.zeros(3, 1, 1)}, model / "model.safetensors")
    refused(model)
    assert calls == []


@pytest.mark.parametrize(
    "changes",
    [
        {"__reduce__": ["os.system", "touch executed"]},
        {"__class__": "x"},
        {"weights": "http://example.org/w.pth"},
        {"dim": 10**12},  # would not fit into memory
        {"dim": 10**12, "slices": 10**12},
        {"dim": "8"},
        {"dim": True},
        {"dim": 8.0},
        {"slices": 0},
        {"slices": -1},
        {"slices": 3},
        {"features": None},
        {"head": "none"},  # with weights of a head
        {"head": "bent"},
        {"head": None},
        {"normalize": "sometimes"},
        {"preprocess": None},
        {"preprocess": "none"},
        {"preprocess": {**vars(GREY), "size": 10**6}},
        {"preprocess": {**vars(GREY), "size": 0}},
        {"preprocess": {**vars(GREY), "resize": 10**9}},
        {"preprocess": {**vars(GREY), "interpolation": "magic"}},
        {"preprocess": {**vars(GREY), "mean": [float("nan")]}},
        {"preprocess": {**vars(GREY), "mean": ["0.5"]}},
        {"preprocess": {**vars(GREY), "std": [0]}},
        {"preprocess": {**vars(GREY), "std": []}},
        {"preprocess": {**vars(GREY), "channels": 4, "mean": [0.5] * 4, "std": [0.5] * 4}},
        {"preprocess": {**vars(GREY), "also": 1}},
    ],
    ids=str,
)
def test_an_impossible_spec_is_refused(model: Path, changes: dict[str, Any]) -> None:
    rewrite(model, **changes)
    refused(model)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_other_spec_is_a_user_error_or_the_same_model(model: Path, saved: Path, data: st.DataObject) -> None:
    description = json.loads((saved / "model.json").read_text())
    places = [description, description["spec"], description["spec"]["preprocess"]]
    place = data.draw(st.sampled_from(places))
    key = data.draw(st.sampled_from([*place, "new"]))
    if data.draw(st.booleans()):
        place[key] = data.draw(json_values)
    else:
        place.pop(key, None)
    (model / "model.json").write_text(json.dumps(description))
    try:
        loaded = Embedder.load(model)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        assert loaded.model.spec.dim == 8


@given(content=st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_as_model_json_are_a_user_error(model: Path, content: bytes) -> None:
    (model / "model.json").write_bytes(content)
    refused(model)


def test_deep_nesting_is_a_user_error(model: Path) -> None:
    (model / "model.json").write_text("[" * 100_000)
    refused(model)


HUGE = """
import resource, sys, time
from nearkin.errors import UserError
from nearkin.models import Embedder
from nearkin.models.backbones.timm_models import load_timm

load_timm()
before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
try:
    Embedder.load(sys.argv[1])
except UserError as error:
    assert "does not match model.json" in str(error), error
else:
    raise SystemExit("it was loaded")
print(time.process_time() - start, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)
"""


def test_a_huge_network_is_refused_before_it_takes_time_or_memory(tmp_path: Path) -> None:
    preprocess = Preprocess(size=518, resize=518, channels=3, mean=(0.5,) * 3, std=(0.5,) * 3)
    spec = ModelSpec("vit_giant_patch14_dinov2", 2, "always", preprocess)
    (tmp_path / "model.json").write_text(json.dumps({"format": 1, "spec": spec.to_json()}))
    few = {"standardise.mean": torch.zeros(3, 1, 1), "head.project.0.weight": torch.zeros(2, 4)}
    save_file(few, tmp_path / "model.safetensors")
    done = subprocess.run([sys.executable, "-c", HUGE, tmp_path], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    seconds, megabytes = map(float, done.stdout.split())
    assert seconds < 5 and megabytes < 300


def test_a_network_with_a_large_input_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a model loads as every other, tables beside its weights included."""
    half = (0.5,) * 3
    native = Preprocess(size=160, resize=160, channels=3, mean=half, std=half)
    spec = ModelSpec("test_vit", 4, "always", native)
    model = EmbeddingModel(spec).eval()
    Embedder(model).save(tmp_path)
    images = torch.randint(0, 256, (2, 3, 160, 160), dtype=torch.uint8)
    tried: list[tuple[int, ...]] = []
    kind = type(model.backbone)
    forward = kind.forward

    def noted(self: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        tried.append(tuple(x.shape))
        return forward(self, x)  # type: ignore[no-any-return]

    monkeypatch.setattr(kind, "forward", noted)
    for largest, tries in ((160, [(2, 3, 160, 160)]), (159, [])):
        monkeypatch.setattr(saved_models, "LARGEST_TRIED", largest)
        tried.clear()
        loaded = Embedder.load(tmp_path).model
        assert tried == tries
        assert torch.equal(loaded(images), model(images))


@pytest.mark.parametrize("largest_tried", [16, 15])
@pytest.mark.parametrize("changes", [{"dim": 0}, {"dim": 95}, {"dim": 10**12}, {"slices": 2}, {"head": "linear"}])
def test_a_model_without_a_head_has_the_dimensions_of_its_backbone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, largest_tried: int, changes: dict[str, Any]
) -> None:
    monkeypatch.setattr(saved_models, "LARGEST_TRIED", largest_tried)
    Embedder(EmbeddingModel(ModelSpec("test_resnet", 0, preprocess=COLOUR, head="none"))).save(tmp_path)
    assert Embedder.load(tmp_path).model.spec.dim == 96
    rewrite(tmp_path, **changes)
    refused(tmp_path)


def test_learners_that_are_not_in_the_file_are_not_built(model: Path) -> None:
    rewrite(model, dim=10**9, slices=10**9)
    weights = load_file(model / "model.safetensors")
    weights["head.project.999999999.weight"] = torch.zeros(1, 256)
    save_file(weights, model / "model.safetensors")
    assert "does not match model.json" in refused(model)


class TestWeights:
    """Each of these is one sentence."""

    def spoil(self, model: Path, **changes: torch.Tensor | None) -> str:
        weights: dict[str, Any] = {**load_file(model / "model.safetensors"), **changes}
        save_file({name: value for name, value in weights.items() if value is not None}, model / "model.safetensors")
        return refused(model)

    def test_another_shape(self, model: Path) -> None:
        message = self.spoil(model, **{"backbone.0.weight": torch.zeros(32, 3, 5, 5)})
        assert "1 tensors" in message and "first 'backbone.0.weight'" in message

    def test_a_missing_tensor(self, model: Path) -> None:
        assert "first 'head.project.1.weight'" in self.spoil(model, **{"head.project.1.weight": None})

    def test_an_unknown_tensor(self, model: Path) -> None:
        assert "first 'extra'" in self.spoil(model, extra=torch.zeros(2))

    def test_a_cut_file(self, model: Path) -> None:
        file = model / "model.safetensors"
        content = file.read_bytes()
        for length in (0, 7, 100, len(content) // 2, len(content) - 1):
            file.write_bytes(content[:length])
            assert "cannot be read" in refused(model)

    def test_no_file(self, model: Path) -> None:
        (model / "model.safetensors").unlink()
        assert "cannot be read" in refused(model)


def grey_model(normalize: str = "always") -> EmbeddingModel:
    torch.manual_seed(0)
    return EmbeddingModel(ModelSpec("small", 8, normalize, GREY))


def pixels(count: int = 5) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 255, (count, 1, 16, 16), dtype=np.uint8))


def test_a_model_without_a_head_is_saved_and_loaded(tmp_path: Path) -> None:
    images = pixels().squeeze(1).numpy()
    embedder = Embedder(EmbeddingModel(ModelSpec("small", 0, "always", GREY, head="none")))
    embedder.save(tmp_path)
    loaded = Embedder.load(tmp_path)
    assert loaded.model.spec == embedder.model.spec and loaded.model.spec.dim == 256
    assert np.array_equal(loaded.encode(images), embedder.encode(images))


def test_a_model_without_parameters_is_saved_and_loaded(tmp_path: Path) -> None:
    vectors = np.array([[3.0, 4.0]], dtype=np.float32)
    Embedder(EmbeddingModel(ModelSpec("linear", 0, features=2, head="none"))).save(tmp_path)
    np.testing.assert_allclose(Embedder.load(tmp_path).encode(vectors), vectors / 5)


def test_a_spec_without_head_means_a_linear_one(tmp_path: Path) -> None:
    embedder = Embedder(grey_model())
    embedder.save(tmp_path)
    description = json.loads((tmp_path / "model.json").read_text())
    del description["spec"]["head"]
    (tmp_path / "model.json").write_text(json.dumps(description))
    images = pixels().squeeze(1).numpy()
    assert np.array_equal(Embedder.load(tmp_path).encode(images), embedder.encode(images))


def test_a_saved_model_gives_the_same_embeddings(tmp_path: Path) -> None:
    embedder = Embedder(grey_model("test"))
    images = pixels().squeeze(1).numpy()
    embedder.save(tmp_path / "model")
    loaded = Embedder.load(tmp_path)  # a run folder
    alone = Embedder.load(tmp_path / "model")
    assert np.array_equal(embedder.encode(images), loaded.encode(images))
    assert np.array_equal(embedder.encode(images), alone.encode(images))
    assert embedder.encode(images).dtype == np.float32
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "model.safetensors"]


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no model"):
        Embedder.load(tmp_path)
    (tmp_path / "rank-0").mkdir()
    (tmp_path / "rank-0" / "config.toml").touch()
    with pytest.raises(UserError, match=f"use a run folder or its model/ folder, such as {tmp_path / 'rank-0'}"):
        Embedder.load(tmp_path)
    Embedder(grey_model()).save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(UserError, match="cannot be read"):
        Embedder.load(tmp_path)


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    Embedder(grey_model()).save(tmp_path)
    description = json.loads((tmp_path / "model.json").read_text())
    (tmp_path / "model.json").write_text(json.dumps({**description, "format": 99}))
    with pytest.raises(UserError, match="newer version of nearkin"):
        Embedder.load(tmp_path)
