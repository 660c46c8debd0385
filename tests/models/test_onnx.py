"""The exported ONNX file agrees with torch, describes its input, and is not written if it differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin.data.items import ImageArray
from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.models import onnx as exporter
from nearkin.models.backbones import preprocess_of
from nearkin.models.onnx import Exported

onnxruntime = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")

GREY = Preprocess(size=16, resize=20, channels=1, mean=(0.4,), std=(0.3,))
HALF = (0.5, 0.5, 0.5)
COLOUR = Preprocess(size=16, resize=20, channels=3, mean=HALF, std=HALF, interpolation="bilinear")

# The code on the page about exporting needs onnxruntime, numpy and Pillow, not nearkin.
PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "export.md").read_text(encoding="utf-8")
WITHOUT_NEARKIN = "import numpy" + PAGE.partition("```text\nimport numpy")[2].partition("```")[0]


def settled(spec: ModelSpec) -> EmbeddingModel:
    torch.manual_seed(0)
    model = EmbeddingModel(spec).train()
    for _ in range(10):  # batch statistics as training leaves them, not zeros and ones
        model(inputs_of(spec, 16))
    assert model(inputs_of(spec, 9)).std(dim=0).mean() > 1e-3  # or it would tell nothing apart, and hide differences
    return model


def inputs_of(spec: ModelSpec, count: int) -> torch.Tensor:
    if spec.preprocess is None:
        return torch.randn(count, spec.features)
    side = spec.preprocess.size
    return torch.randint(0, 256, (count, spec.preprocess.channels, side, side), dtype=torch.uint8)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EmbeddingModel, Exported]:
    """One export that several tests look at: model.onnx beside its run folder."""
    folder = tmp_path_factory.mktemp("small")
    model = settled(ModelSpec("small", 8, "always", COLOUR))
    return folder, model, Embedder(model).export(str(folder / "model.onnx"))


def difference(file: Path, model: EmbeddingModel, inputs: torch.Tensor) -> float:
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    found = session.run(["embeddings"], {session.get_inputs()[0].name: inputs.numpy()})[0]
    with torch.no_grad():
        return float(np.abs(found - model(inputs).numpy()).max())


@pytest.mark.parametrize("batch", [1, 3, 20])
def test_the_file_agrees_with_torch_for_any_batch_size(
    small: tuple[Path, EmbeddingModel, Exported], batch: int
) -> None:
    _, model, exported = small
    torch.manual_seed(batch)
    assert difference(exported.file, model, inputs_of(model.spec, batch)) < 1e-5
    assert exported.checked_on == 2 * (1 + 2 + 7) and exported.real == 0 and 0 < exported.largest_difference < 1e-5


@pytest.mark.parametrize(
    "spec",
    [
        ModelSpec("small", 8, "never", GREY, slices=4),
        ModelSpec("mlp", 4, "test", features=5),
        ModelSpec("small", 256, "always", GREY, head="none"),
        ModelSpec("test_resnet.r160_in1k", 4, "always", preprocess_of("test_resnet.r160_in1k", 32)),
    ],
    ids=lambda spec: f"{spec.backbone}-{spec.normalize}-{spec.slices}",
)
def test_every_kind_of_model_can_be_exported(spec: ModelSpec, tmp_path: Path) -> None:
    model = settled(spec)
    exported = Embedder(model).export(tmp_path / "out" / "m.onnx")
    assert difference(exported.file, model, inputs_of(spec, 3)) < 1e-4


def test_it_is_one_valid_file_that_describes_its_input(small: tuple[Path, EmbeddingModel, Exported]) -> None:
    folder, _, exported = small
    assert sorted(path.name for path in folder.iterdir()) == ["model.onnx"]
    assert exported.megabytes == pytest.approx(exported.file.stat().st_size / 1e6)
    onnx.checker.check_model(str(exported.file), full_check=True)
    proto = onnx.load(exported.file)
    about = {entry.key: entry.value for entry in proto.metadata_props}
    assert {name: about[name] for name in ("size", "resize", "mode", "interpolation", "dim", "normalize")} == {
        "size": "16", "resize": "20", "mode": "RGB", "interpolation": "bilinear", "dim": "8", "normalize": "always",
    }  # fmt: skip
    assert str(folder) not in about.values()
    shape = [each.dim_param or each.dim_value for each in proto.graph.input[0].type.tensor_type.shape.dim]
    assert shape == ["batch", 3, 16, 16]


def test_the_file_runs_without_nearkin(
    small: tuple[Path, EmbeddingModel, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, model, _ = small
    monkeypatch.chdir(folder)
    rng = np.random.default_rng(0)
    folder = tmp_path
    for n, (height, width) in enumerate([(40, 31), (25, 60), (16, 16)]):
        Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8)).save(folder / f"{n}.png")
    paths = sorted(folder.glob("*.png"))
    scope: dict[str, Any] = {"paths": paths}
    exec(WITHOUT_NEARKIN, scope)
    # Pillow resizes there and torch here: pixels differ by at most two grey levels.
    assert np.allclose(scope["embeddings"], Embedder(model).encode(paths), atol=2e-3)


class Converted:
    """Stands for the slow conversion: the bytes of an earlier one."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def __call__(self, network: EmbeddingModel) -> bytes:  # noqa: ARG002
        return self.content


def test_given_items_are_compared_too(
    small: tuple[Path, EmbeddingModel, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model, exported = small
    monkeypatch.setattr(exporter, "_converted", Converted(exported.file.read_bytes()))
    for count, compared in ((1, 1), (5, 5), (30, 10)):
        items = ImageArray(np.full((count, 24, 24), 7, np.uint8))
        found = Embedder(model).export(tmp_path / "m.onnx", check_on=items)
        assert (found.checked_on, found.real) == (20 + compared, compared)
    with pytest.raises(UserError, match=r"gone\.png: no such file"):
        Embedder(model).export(tmp_path / "m.onnx", check_on="gone.png")


def test_a_file_that_differs_is_not_written(
    small: tuple[Path, EmbeddingModel, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model, exported = small
    monkeypatch.setattr(exporter, "_converted", Converted(exported.file.read_bytes()))
    out = tmp_path / "m.onnx"
    out.write_bytes(b"an earlier one")
    changed = EmbeddingModel(model.spec)
    for shift in (1e-2, float("nan")):
        changed.load_state_dict(model.state_dict())
        with torch.no_grad():
            changed.get_parameter("head.project.0.bias")[0] += shift
        with pytest.raises(UserError, match=r"m\.onnx was not written: its embeddings differ"):
            Embedder(changed).export(out)
    assert out.read_bytes() == b"an earlier one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m.onnx"]


def test_long_embeddings_are_compared_relative_to_their_length(tmp_path: Path) -> None:
    model = settled(ModelSpec("linear", 4, "never", features=5, slices=2))
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter *= 1e6  # float32 itself is no more exact than 0.1 there
    assert Embedder(model).export(tmp_path / "m.onnx").largest_difference < 1e-6


def test_a_model_that_onnxruntime_cannot_run_is_refused_in_one_sentence(
    small: tuple[Path, EmbeddingModel, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "_converted", Converted(b"no model"))
    with pytest.raises(UserError, match="onnxruntime cannot run the exported model"):
        Embedder(small[1]).export(tmp_path / "m.onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_too_large_for_one_file_is_refused(
    small: tuple[Path, EmbeddingModel, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "LARGEST_FILE", 1000)
    with pytest.raises(UserError, match="larger than 2 GB"):
        Embedder(small[1]).export(tmp_path / "m.onnx")


def test_a_network_that_cannot_be_exported_is_refused_in_one_sentence(
    small: tuple[Path, EmbeddingModel, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("line one\nline two")

    monkeypatch.setattr(torch.onnx, "export", fails)
    with pytest.raises(UserError, match=r"backbone 'small' cannot be exported to ONNX \(line one\)$"):
        Embedder(small[1]).export(tmp_path / "m.onnx")


def test_a_missing_extra_is_named_in_one_sentence(
    small: tuple[Path, EmbeddingModel, Exported], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporter, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(UserError, match=r"export needs onnxscript; run `pip install 'nearkin\[onnx\]'`"):
        Embedder(small[1]).export(tmp_path / "m.onnx")
