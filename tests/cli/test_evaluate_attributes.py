"""Attributes, pairs of classes and clusterings, from files to `nearkin evaluate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Command
from PIL import Image

from nearkin.data import load_dataset
from nearkin.evaluation import column_concentrations, error_rate, evaluate, soft_knn_labels
from nearkin.space import Space

QUICK = ["--epochs", "1", "--dim", "8", "--set", "workers=0"]
SMALL = ["--backbone", "small", "--set", "image_size=16", "--batch-size", "6", "--set", "per_class=2"]


def save_images(folder: Path, names: list[str]) -> None:
    """Saves a small coloured image under each name."""
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        colour = rng.integers(0, 200, 3)
        pixels = colour + rng.integers(0, 50, (20, 20, 3))
        Image.fromarray(pixels.astype(np.uint8)).save(folder / name)


def scores_of(nearkin: Command, *arguments: str | Path) -> tuple[dict[str, Any], str]:
    outcome = nearkin("evaluate", *arguments, "--out", "scores.json")
    assert outcome.code == 0, outcome.err
    return json.loads(Path("scores.json").read_text()), outcome.out


def vectors_of(nearkin: Command, run: str, data: str | Path) -> np.ndarray:
    assert nearkin("embed", run, data, "-o", "vectors.npz").code == 0
    with np.load("vectors.npz") as stored:
        return np.array(stored["vectors"])


def test_further_columns_of_a_csv_are_attributes(nearkin: Command, tmp_path: Path) -> None:
    names = [f"{label}/{number}.png" for label in "abcdef" for number in range(6)]
    save_images(tmp_path, names)
    kinds = ["round" if i % 3 else "flat" for i in range(len(names))]
    shiny = ["" if i % 5 == 0 else str(i % 2) for i in range(len(names))]
    rows = [f"{name},{name[0]},{kind},{has}" for name, kind, has in zip(names, kinds, shiny, strict=True)]
    (tmp_path / "table.csv").write_text("\n".join(["path,label,kind,shiny", *rows]))
    trained = nearkin("train", "table.csv", *QUICK, *SMALL, "--out", "run")
    assert trained.code == 0, trained.err

    found, printed = scores_of(nearkin, "run", "--split", "all", "--attributes")
    for word in ("kind", "shiny", "all attributes", "chance"):
        assert word in printed
    assert list(found["attributes"]) == ["1", "2", "4", "8", "16", "32", "chance"]
    space = Space.of(vectors_of(nearkin, "run", "table.csv"), [name[0] for name in names])
    columns = {"kind": np.array(kinds), "shiny": np.array(shiny)}
    for name, expected in column_concentrations(space, columns).items():
        assert found["attributes"]["chance"][name] == pytest.approx(expected.chance)
        for size, share in expected.means.items():
            assert found["attributes"][str(size)][name] == pytest.approx(share)
    assert "attributes" not in scores_of(nearkin, "run")[0]


def test_a_column_named_true_label_is_not_a_label(nearkin: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels, words = np.arange(48) // 6, rng.choice(["cat", "dog"], 48)
    np.savez(
        tmp_path / "x.npz", vectors=10 * np.eye(8)[labels] + rng.normal(size=(48, 8)), labels=labels, true_label=words
    )
    trained = nearkin("train", "x.npz", *QUICK, "--batch-size", "8", "--set", "per_class=2", "--out", "run")
    assert trained.code == 0, trained.err
    assert scores_of(nearkin, "run")[0]["test"]["recall@1"] > 0.9


def test_the_error_of_data_without_attributes_says_how_to_add_them(nearkin: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "plain.npz", vectors=rng.normal(size=(48, 4)), labels=np.arange(48) // 6)
    trained = nearkin("train", "plain.npz", *QUICK, "--batch-size", "8", "--set", "per_class=2", "--out", "run")
    assert trained.code == 0, trained.err
    outcome = nearkin("evaluate", "run", "--attributes")
    assert outcome.code == 1
    assert "plain has no attributes; add them as columns of a .csv or .npz file" in outcome.err


def known_classes(file: Path) -> Path:
    """Eight classes of vectors, each in the training and the test split."""
    labels = np.arange(160) % 8
    values = 2 * np.eye(8)[labels] + np.random.default_rng(0).normal(size=(160, 8))
    np.savez(file, vectors=values, labels=labels, split=np.where(np.arange(160) < 96, "train", "test"))
    return file


def test_spectral_clustering_can_be_used(nearkin: Command, tmp_path: Path) -> None:
    data = known_classes(tmp_path / "known.npz")
    assert nearkin("train", data, *QUICK, "--batch-size", "16", "--out", "run").code == 0
    space = Space.of(vectors_of(nearkin, "run", data), load_dataset(str(data)).labels)
    for clustering in ("kmeans", "spectral"):
        found, _ = scores_of(nearkin, "run", "--split", "all", "--clustering", clustering)
        expected = evaluate(space, clustering=clustering).scores
        for score in ("nmi_geometric", "nmi_arithmetic", "ami", "ari", "pairwise_f1", "map@r"):
            assert found["all"][score] == pytest.approx(expected[score]), score
    outcome = nearkin("evaluate", "run", "--clustering", "k-means")
    assert outcome.code == 1
    assert "clustering 'k-means' is unknown; did you mean 'kmeans'" in outcome.err


@pytest.mark.parametrize("method", ["softmax", "magnet"])
def test_a_run_on_pairs_of_classes_is_evaluated_on_the_classes(nearkin: Command, tmp_path: Path, method: str) -> None:
    data = known_classes(tmp_path / "known.npz")
    run = ["train", data, "--method", method, *QUICK, "--batch-size", "16", "--set", "collapse_pairs=true"]
    trained = nearkin(*run, "--out", "run")
    assert trained.code == 0, trained.err
    assert "Soft kNN error" not in trained.out  # training knows only the pairs

    found, _ = scores_of(nearkin, "run")
    vectors, dataset = vectors_of(nearkin, "run", data), load_dataset(str(data))
    space = Space.of(vectors, dataset.labels)
    here = np.arange(160) < 96
    predicted = soft_knn_labels(space.embeddings[~here], space.embeddings[here], space.labels[here])
    assert found["test"]["soft_knn_error"] == pytest.approx(error_rate(predicted, space.labels[~here]))
    assert ("nearest_cluster_error" in found["test"]) == (method == "magnet")
    by_class = evaluate(Space.of(vectors[here], dataset.labels[here])).scores
    assert scores_of(nearkin, "run", "--split", "train")[0]["train"]["map@r"] == pytest.approx(by_class["map@r"])
    resumed = nearkin("resume", "run")
    assert resumed.code == 0, resumed.err


def test_imagenet_attributes_from_a_local_folder_to_the_table(nearkin: Command, tmp_path: Path) -> None:
    wnids = ("n01693334", "n02123045", "n07873807", "n12267677")
    train = [f"train/{wnid}/{wnid}_{number}.JPEG" for wnid in wnids for number in range(6)]
    save_images(
        tmp_path / "imagenet", train + [f"val/{wnid}/{wnid}_{number}.JPEG" for wnid in wnids for number in (8, 9)]
    )
    rows = [f"{Path(name).stem},{(-1) ** i},{i % 3 - 1}" for i, name in enumerate(train) if i % 4]
    (tmp_path / "imagenet" / "attributes.csv").write_text("\n".join(["image,striped,brown", *rows]))
    run = ["train", "imagenet-attributes", "--root", tmp_path, "--no-count-check", *QUICK, *SMALL, "--out", "run"]
    trained = nearkin(*run)
    assert trained.code == 0, trained.err
    assert "Soft kNN error" in trained.out
    found, printed = scores_of(nearkin, "run", "--split", "train", "--attributes")
    assert list(found["attributes"]["1"]) == ["striped", "brown", "all attributes"]
    assert list(found["attributes"]) == ["1", "2", "4", "8", "16", "chance"]  # among the 18 that are annotated
    assert "striped" in printed
    assert "imagenet-attributes" in nearkin("datasets").out
    fewer = nearkin("train", "imagenet-attributes", "--root", tmp_path)
    assert fewer.code == 1
    assert "24 train images instead of 116,236 and 8 test images instead of 4,500" in fewer.err
