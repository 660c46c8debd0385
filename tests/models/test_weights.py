"""Weights from files, downloads and trained models; files are never executed."""

from __future__ import annotations

import pickle
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from huggingface_hub import constants
from reference.untrained import GREY, pixels, small_model
from safetensors.torch import save_file
from torch import nn

from nearkin.errors import UserError
from nearkin.models import Embedder, EmbeddingModel, ModelSpec, init_from, preprocess_of, weights, wrap_backbone
from nearkin.models.backbones import hub
from nearkin.models.weights import load_weights, read_weights

TIMM = "test_resnet.r160_in1k"  # 0.5 million parameters


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_weights_file_may_have_a_classifier_and_half_precision(tmp_path: Path, suffix: str) -> None:
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


def test_a_saved_model_can_be_used_as_weights(tmp_path: Path) -> None:
    Embedder(small_model()).save(tmp_path)
    fresh = EmbeddingModel(ModelSpec("small", 99, "always", GREY))
    load_weights(fresh.backbone, "small", str(tmp_path / "model.safetensors"))
    expected = small_model().backbone.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in fresh.backbone.state_dict().items())


def test_weights_of_another_model_are_refused(tmp_path: Path) -> None:
    save_file({"conv.weight": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(UserError, match="do not match backbone"):
        load_weights(timm.create_model(TIMM, num_classes=0), TIMM, str(tmp_path / "x.safetensors"))


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("executed"),)  # type: ignore[return-value]


def test_a_pickle_with_code_is_refused_not_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("evil.pth").write_bytes(pickle.dumps(Evil(), protocol=2))
    torch.save({"weight": Evil()}, "evil.pt")
    for name in ("evil.pth", "evil.pt"):
        with pytest.raises(UserError, match="not a readable weights file"):
            read_weights(Path(name))
    assert not Path("executed").exists()


def test_a_pickle_is_refused_without_warnings(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    (tmp_path / "odd.pth").write_bytes(pickle.dumps({"a": 1}, protocol=4))  # of which torch says much
    with pytest.raises(UserError, match="is not a readable weights file"):
        read_weights(tmp_path / "odd.pth")
    assert not recwarn.list


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(hub, "connects", lambda _: True)
    with pytest.raises(
        UserError, match=r"could not be downloaded \(no route to host\).*use a local file: weights=\"FILE\""
    ):
        weights._downloaded(TIMM)


def test_without_a_connection_the_hub_looks_in_its_cache_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "connects", lambda _: False)
    monkeypatch.setattr("time.sleep", lambda _: pytest.fail("the hub waits, to try again"))
    with pytest.raises(UserError, match=r"could not be downloaded \(https://.* cannot be reached\)"):
        weights._downloaded("test_vit")
    assert not constants.HF_HUB_OFFLINE
    monkeypatch.setattr(timm, "create_model", lambda *_, **__: nn.Linear(2, 2))
    assert weights._downloaded(TIMM).keys() == {"weight", "bias"}  # from the cache


def test_a_connection_is_tried_once_unless_there_is_a_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "getproxies", dict)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"https://127.0.0.1:{server.getsockname()[1]}"
        assert hub.connects(address)
    assert not hub.connects(address)
    monkeypatch.setattr(hub, "getproxies", lambda: {"https": "http://proxy:3128"})
    assert hub.connects(address)


class TestInitFrom:
    """A new model starts where a trained one ended."""

    def trained(self, **changes: Any) -> Embedder:
        torch.manual_seed(1)
        return Embedder(EmbeddingModel(replace(ModelSpec("small", 8, "always", GREY), **changes)))

    @pytest.mark.parametrize(("before", "now"), [(1, 1), (1, 4), (4, 2), (2, 1)])
    def test_backbone_and_head_are_copied_whoever_shares_the_head(self, before: int, now: int, tmp_path: Path) -> None:
        trained = self.trained(slices=before)
        trained.save(tmp_path / "model")
        for source in (trained, tmp_path, str(tmp_path / "model")):
            model = EmbeddingModel(ModelSpec("small", 8, "always", GREY, slices=now))
            assert init_from(model, source)
            torch.testing.assert_close(model.eval()(pixels()), trained.model(pixels()))
        with torch.no_grad():
            next(model.parameters()).zero_()
        assert next(trained.model.parameters()).any(), "a copy"

    def test_of_a_model_without_a_head_the_backbone_alone(self) -> None:
        trained, model = self.trained(dim=0, head="none"), small_model()
        head = model.head.project[0].weight.clone()
        assert not init_from(model, trained)
        torch.testing.assert_close(model.eval().features(pixels()), trained.model.features(pixels()))
        assert torch.equal(model.head.project[0].weight, head)

    def test_the_statistics_of_vectors_come_with_the_head(self) -> None:
        spec = ModelSpec("linear", 2, features=3)
        trained, model = EmbeddingModel(spec), EmbeddingModel(spec)
        trained.standardise.mean += 5
        init_from(model, Embedder(trained))
        rows = torch.randn(4, 3)
        torch.testing.assert_close(model.eval()(rows), trained(rows))

    def test_of_a_module_of_ones_own(self, tmp_path: Path) -> None:
        trained, model = (wrap_backbone(nn.Linear(3, 5), dim=2, features=3) for _ in range(2))
        Embedder(trained).save(tmp_path)
        assert init_from(model, tmp_path)
        rows = torch.randn(4, 3)
        torch.testing.assert_close(model.eval()(rows), trained(rows))
        other = wrap_backbone(nn.Linear(3, 6), dim=2, features=3)
        with pytest.raises(UserError, match="do not match this backbone"):
            init_from(other, Embedder(trained))

    @pytest.mark.parametrize(
        ("spec", "expected"),
        [
            (ModelSpec("mlp", 8, features=4), r"has backbone 'small', not 'mlp'; leave out backbone, or use backbone="),
            (
                ModelSpec("small", 16, preprocess=GREY),
                "has 8 embedding dimensions, not 16; leave out dim, or use dim=8",
            ),
            (ModelSpec("small", 0, preprocess=GREY, head="none"), "has 8 embedding dimensions, not 256"),
            (ModelSpec("small", 8, preprocess=preprocess_of("small", 16)), "do not match this backbone"),
        ],
    )
    def test_another_model_is_one_sentence_and_changes_nothing(
        self, spec: ModelSpec, expected: str, tmp_path: Path
    ) -> None:
        self.trained().save(tmp_path)
        model = EmbeddingModel(spec)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(UserError, match=expected):
            init_from(model, tmp_path)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    def test_other_features_are_one_sentence(self) -> None:
        trained, model = (EmbeddingModel(ModelSpec("mlp", 2, features=number)) for number in (3, 4))
        with pytest.raises(UserError, match="init takes vectors of 3 features, got 4"):
            init_from(model, Embedder(trained))

    def test_what_is_not_a_model_is_one_sentence(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="has no model"):
            init_from(small_model(), tmp_path)
