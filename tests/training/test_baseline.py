"""The backbone alone: its features, evaluated like any other space."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import TINY_GLYPHS
from torch.nn.functional import normalize

from nearkin.api import make_settings
from nearkin.data import load_dataset
from nearkin.errors import UserError
from nearkin.evaluation import evaluate
from nearkin.models import embed
from nearkin.space import Space
from nearkin.training.baseline import backbone_scores
from nearkin.training.prepare import build_model
from nearkin.training.start import backbone_features


def test_features_of_the_test_half_are_measured_at_unit_length(tmp_path: Path) -> None:
    file = str(tmp_path / "vectors.npz")
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(96, 5)) + 3).astype(np.float32)
    labels = np.repeat(np.arange(12), 8)
    np.savez(file, vectors=vectors, labels=labels)
    scores = backbone_scores(
        make_settings(file, "rank", {"device": "cpu", "backbone": "linear", "split": "first-half", "validation": 0.0})
    )
    train, rest = torch.from_numpy(vectors[:48]), torch.from_numpy(vectors[48:])
    expected = normalize((rest - train.mean(0)) / train.std(0), dim=1)  # the input of the head of `linear`
    assert scores == evaluate(Space.of(expected, labels[48:])).scores


def test_without_a_test_split_there_is_nothing_to_measure() -> None:
    with pytest.raises(UserError, match="no test split"):
        backbone_scores(make_settings(TINY_GLYPHS, "rank", {"device": "cpu", "split": "all"}))


def test_files_divided_in_another_way_keep_their_features(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = load_dataset(str(photos))
    settings = make_settings(str(photos), "rank", {"backbone": "small", "image_size": 16, "dim": 8})
    model = build_model(settings.changed(model={"weights": "none", "normalize": "always"}), dataset, slices=1)
    odd, even = dataset.take(np.arange(1, 36, 2)), dataset.take(np.arange(0, 36, 2))
    alone = embed.cached_features(model, odd.items)
    monkeypatch.setenv("NEARKIN_CACHE", str(photos.parent / "another"))
    _, others = backbone_features(model, even, {"test": odd, "validation": None}, 8, 0)
    assert others["test"] is not None and others["validation"] is None
    np.testing.assert_allclose(others["test"].items.values, alone, atol=1e-6)  # type: ignore[union-attr]
    monkeypatch.setattr(embed, "_outputs", None)
    again, _ = backbone_features(model, odd, {"validation": even}, 8, 0)
    np.testing.assert_allclose(again.items.values, alone, atol=1e-6)  # type: ignore[union-attr]
