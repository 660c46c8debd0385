"""Backbones, heads, weights, and the embedder that a user keeps."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from nearkin.data.transforms import Preprocess
from nearkin.errors import UserError
from nearkin.models import Embedder, EmbeddingModel, ModelSpec, backbones
from nearkin.models.backbones import load_weights, preprocess_of, read_weights

GREY = Preprocess(size=16, resize=16, channels=1, mean=(0.5,), std=(0.5,))
TIMM = "test_resnet.r160_in1k"  # 0.5 million parameters


def small_model(normalize: str = "always") -> EmbeddingModel:
    torch.manual_seed(0)
    return EmbeddingModel(ModelSpec("small", 8, normalize, GREY))


def pixels(count: int = 5) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, 255, (count, 1, 16, 16), dtype=np.uint8))


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


def test_timm_backbones_bring_their_own_preprocessing() -> None:
    expected = timm.data.resolve_model_data_config(timm.create_model(TIMM, pretrained=False))
    preprocess = preprocess_of(TIMM, None)
    assert preprocess.size == expected["input_size"][-1]
    assert preprocess.mean == tuple(expected["mean"]) and preprocess.std == tuple(expected["std"])
    assert preprocess.interpolation == expected["interpolation"]
    assert preprocess.resize == round(preprocess.size / expected["crop_pct"])
    assert preprocess_of(TIMM, 64).size == 64


def test_a_timm_model_embeds_as_timm_would() -> None:
    preprocess = preprocess_of(TIMM, 32)
    model = EmbeddingModel(ModelSpec(TIMM, 4, "never", preprocess)).eval()
    reference = timm.create_model(TIMM, pretrained=False, num_classes=0).eval()
    reference.load_state_dict(model.backbone.state_dict())
    x = torch.randint(0, 255, (2, 3, 32, 32), dtype=torch.uint8)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (preprocess.mean, preprocess.std))
    expected = model.head(reference((x / 255 - mean) / std))
    assert torch.allclose(model(x), expected, atol=1e-5)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_weights_come_from_a_local_file_even_with_a_classifier_and_in_half(tmp_path: Path, suffix: str) -> None:
    source = timm.create_model(TIMM, pretrained=False, num_classes=7).half()
    file = tmp_path / f"weights{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": source.state_dict()}, file)
    else:
        save_file(source.state_dict(), file)
    target = timm.create_model(TIMM, pretrained=False, num_classes=0)
    load_weights(target, TIMM, str(file))
    for name, value in target.state_dict().items():
        assert torch.equal(value.float(), source.state_dict()[name].float())


def test_a_saved_model_serves_as_weights(tmp_path: Path) -> None:
    Embedder(small_model()).save(tmp_path)
    fresh = EmbeddingModel(ModelSpec("small", 99, "always", GREY))
    load_weights(fresh.backbone, "small", str(tmp_path / "model.safetensors"))
    expected = small_model().backbone.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in fresh.backbone.state_dict().items())


def test_a_picture_size_that_a_backbone_cannot_take_is_one_sentence() -> None:
    with pytest.raises(UserError, match="does not take pictures of 33 pixels"):
        EmbeddingModel(ModelSpec("test_vit", 8, "always", preprocess_of("test_vit", 33)))


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    save_file({"conv.weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="do not fit backbone"):
        load_weights(timm.create_model(TIMM, num_classes=0), TIMM, str(tmp_path / "x.safetensors"))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("executed"),)  # type: ignore[return-value]


def test_a_pickle_with_code_is_refused_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.pth").write_bytes(pickle.dumps(Evil(), protocol=2))
    torch.save({"weight": Evil()}, "evil.pt")
    for name in ("evil.pth", "evil.pt"):
        with pytest.raises(UserError, match="no readable weights file"):
            read_weights(Path(name))
    assert not Path("executed").exists()


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(UserError, match=r"could not be fetched \(no route to host\).*give a file: weights=FILE"):
        backbones._downloaded(TIMM)


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
        (ModelSpec("linear", 4, "always", None, 4, slices=2, head="none"), "not 4 numbers for 2"),
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


class TestEmbedder:
    def test_a_model_without_a_head_is_saved_and_loaded(self, tmp_path: Path) -> None:
        images = pixels().squeeze(1).numpy()
        embedder = Embedder(EmbeddingModel(ModelSpec("small", 0, "always", GREY, head="none")))
        embedder.save(tmp_path)
        loaded = Embedder.load(tmp_path)
        assert loaded.model.spec == embedder.model.spec and loaded.model.spec.dim == 256
        assert np.array_equal(loaded.encode(images), embedder.encode(images))

    def test_a_model_without_anything_to_learn_is_a_model(self, tmp_path: Path) -> None:
        vectors = np.array([[3.0, 4.0]], dtype=np.float32)
        Embedder(EmbeddingModel(ModelSpec("linear", 0, features=2, head="none"))).save(tmp_path)
        np.testing.assert_allclose(Embedder.load(tmp_path).encode(vectors), vectors / 5)

    def test_a_description_from_before_heads_had_names_means_a_linear_one(self, tmp_path: Path) -> None:
        embedder = Embedder(small_model())
        embedder.save(tmp_path)
        description = json.loads((tmp_path / "model.json").read_text())
        del description["spec"]["head"]
        (tmp_path / "model.json").write_text(json.dumps(description))
        images = pixels().squeeze(1).numpy()
        assert np.array_equal(Embedder.load(tmp_path).encode(images), embedder.encode(images))

    def test_a_saved_model_gives_the_same_embeddings(self, tmp_path: Path) -> None:
        embedder = Embedder(small_model("test"))
        images = pixels().squeeze(1).numpy()
        embedder.save(tmp_path / "model")
        loaded = Embedder.load(tmp_path)  # a run folder
        alone = Embedder.load(tmp_path / "model")
        assert np.array_equal(embedder.encode(images), loaded.encode(images))
        assert np.array_equal(embedder.encode(images), alone.encode(images))
        assert embedder.encode(images).dtype == np.float32
        assert sorted(path.name for path in (tmp_path / "model").iterdir()) == ["model.json", "model.safetensors"]

    def test_what_is_no_model_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="holds no model"):
            Embedder.load(tmp_path)
        Embedder(small_model()).save(tmp_path)
        (tmp_path / "model.safetensors").write_bytes(b"damaged")
        with pytest.raises(UserError, match="cannot be read"):
            Embedder.load(tmp_path)

    def test_a_newer_format_is_refused(self, tmp_path: Path) -> None:
        Embedder(small_model()).save(tmp_path)
        description = json.loads((tmp_path / "model.json").read_text())
        (tmp_path / "model.json").write_text(json.dumps({**description, "format": 99}))
        with pytest.raises(UserError, match="newer nearkin"):
            Embedder.load(tmp_path)
