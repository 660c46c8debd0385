"""The commands: what they print, and one clear sentence for every user error."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY_GLYPHS, Command
from PIL import Image

import nearkin as package
from nearkin import api

QUICK = ["--epochs", "1", "--batch-size", "16", "--dim", "8", "--set", "per_class=4", "--set", "workers=0"]
PHOTOS = ["--backbone", "small", "--set", "image_size=16", "--epochs", "1", "--batch-size", "9", "--set", "per_class=3"]


def fails(outcome: object, *words: str) -> None:
    """One sentence, exit code ≠ 0, no traceback."""
    assert outcome.code != 0  # type: ignore[attr-defined]
    message = " ".join(outcome.err.replace("│", " ").split())  # type: ignore[attr-defined]
    assert "Traceback" not in message
    assert "unexpected" not in message
    for word in words:
        assert word in message, message


def test_the_command_and_the_module_are_the_same() -> None:
    for command in ([sys.executable, "-m", "nearkin"], [str(Path(sys.executable).parent / "nearkin")]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, timeout=60)
        assert done.stdout == f"nearkin {package.__version__}\n"


def test_help_names_every_command(nearkin: Command) -> None:
    outcome = nearkin("--help")
    for command in ("demo", "train", "evaluate", "embed", "datasets", "methods"):
        assert command in outcome.out
        assert nearkin(command, "--help").code == 0


def test_demo_prints_a_table_and_draws_two_figures(nearkin: Command, tmp_path: Path) -> None:
    outcome = nearkin("demo", "--epochs", "2", "--data", "glyphs:classes=40,per_class=12", "--out", "shown")
    assert outcome.code == 0, outcome.err
    for word in ("raw pixels", "untrained", "trained", "Recall@1", "MAP@R", "NMI"):
        assert word in outcome.out
    for figure in ("neighbours.png", "map.png"):
        assert np.asarray(Image.open(tmp_path / "shown" / figure)).std() > 5


def test_demo_replaces_an_earlier_demo_but_nothing_else(
    nearkin: Command, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    (tmp_path / "thesis" / "config.toml").write_text("title = 'of a site'")
    fails(nearkin("demo", "--out", "thesis"), "is not an earlier demo")
    assert (tmp_path / "thesis" / "chapter.txt").exists()
    quick = ["demo", "--epochs", "0", "--data", "glyphs:classes=40,per_class=12", "--out", "shown"]
    shown = nearkin(*quick)
    assert shown.code == 0
    (tmp_path / "shown" / "scores.json").unlink()  # as if it had been interrupted
    result = api.demo("shown", epochs=0, data="glyphs:classes=40,per_class=12")
    assert capsys.readouterr().out == ""  # the Python function prints nothing
    assert [line.rstrip() for line in shown.out.splitlines()] == str(result).splitlines()
    fails(nearkin("demo", "--data", "thesis"), "the demo works only with glyphs")


def test_train_evaluate_embed(nearkin: Command, tmp_path: Path) -> None:
    trained = nearkin("train", TINY_GLYPHS, *QUICK)
    assert trained.code == 0, trained.err
    assert "before training" in trained.out and "after training" in trained.out
    run = tmp_path / "runs" / "glyphs-rank"
    assert f"run: {Path('runs') / 'glyphs-rank'}" in trained.out

    evaluated = nearkin("evaluate", run, "--recall-at", "1,10", "--out", "scores.json")
    assert evaluated.code == 0, evaluated.err
    scores = json.loads((tmp_path / "scores.json").read_text())["test"]
    assert {"recall@1", "recall@10", "map@r", "nmi_geometric"} <= scores.keys()
    after = json.loads((run / "scores.json").read_text())["after"]
    assert scores["map@r"] == pytest.approx(after["map@r"])
    low, high = json.loads((tmp_path / "scores.json").read_text())["intervals"]["map@r"]
    assert low < scores["map@r"] < high and "95 % interval" in evaluated.out
    assert nearkin("evaluate", run, "--split", "train").code == 0
    fails(nearkin("evaluate", run, "--views", "3"), "trained without augmentation", "leave out --views")
    fails(nearkin("evaluate", run, "--views", "0"), "views must be an integer >= 1, got 0")
    diagnosed = nearkin("evaluate", run, "--diagnose").out
    assert "Intra-class distance" in diagnosed and "Spectral decay" in diagnosed and "sampled" not in diagnosed

    embedded = nearkin("embed", run, TINY_GLYPHS, "-o", "vectors.npz")
    assert "96 vectors of 8 dimensions" in embedded.out
    with np.load(tmp_path / "vectors.npz") as vectors:
        assert vectors["vectors"].shape == (96, 8)
        assert len(set(vectors["labels"])) == 12
    again = nearkin("train", "vectors.npz", *QUICK)  # train reads the output of embed
    assert again.code == 0, again.err


def test_vehicles_are_also_evaluated_with_random_galleries(
    nearkin: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nearkin("train", TINY_GLYPHS, *QUICK, "--out", "run").code == 0
    target = api._target

    def vehicles(*arguments: Any) -> Any:
        found = target(*arguments)
        return replace(found, dataset=replace(found.dataset, protocol="random-gallery"))

    monkeypatch.setattr(api, "_target", vehicles)
    assert nearkin("evaluate", "run", "--recall-at", "1,5", "--out", "scores.json").code == 0
    scores = json.loads((tmp_path / "scores.json").read_text())["test"]
    assert {"random_gallery_recall@1", "random_gallery_recall@5", "random_gallery_recall@1_sd"} <= scores.keys()
    assert 0 < scores["random_gallery_recall@1"] < scores["random_gallery_recall@5"] <= 1


def test_views_are_augmented_as_in_training(nearkin: Command, photos: Path, tmp_path: Path) -> None:
    assert nearkin("train", photos, *PHOTOS, "--out", "run").code == 0
    for views in ("1", "3"):
        assert nearkin("evaluate", "run", "--views", views, "--diagnose", "--out", f"{views}.json").code == 0
    one, three = (json.loads((tmp_path / f"{views}.json").read_text())["test"] for views in (1, 3))
    assert one.keys() == three.keys() and one["intra_class_distance"] != three["intra_class_distance"]
    alone = ("evaluate", "run/model", "--data", photos, "--split", "test")  # a model without its run: crops and flips
    assert nearkin(*alone, "--views", "3", "--diagnose", "--out", "alone.json").code == 0
    assert json.loads((tmp_path / "alone.json").read_text())["test"]["intra_class_distance"] == pytest.approx(
        three["intra_class_distance"]
    )


def test_sampled_distances_are_marked_and_histograms_are_written(nearkin: Command, tmp_path: Path) -> None:
    labels = np.arange(500) // 50
    np.savez(tmp_path / "x.npz", vectors=np.random.default_rng(0).normal(size=(500, 5)), labels=labels)
    assert nearkin("train", "x.npz", "--backbone", "linear", *QUICK, "--out", "run").code == 0
    outcome = nearkin("evaluate", "run", "--split", "all", "--diagnose", "--out", "scores.json")
    assert outcome.code == 0, outcome.err
    assert "Inter-class distance, sampled" in outcome.out and "Intra-class distance, sampled" not in outcome.out
    written = json.loads((tmp_path / "scores.json").read_text())
    histograms = written["distances"]
    assert histograms["sampled"] == ["inter_class_distance", "distance_ratio"]
    assert sum(histograms["positives"]) == 10 * 50 * 49 // 2 and sum(histograms["negatives"]) == 100_000
    middles = np.convolve(histograms["edges"], [0.5, 0.5], "valid")
    mean = np.average(middles, weights=histograms["positives"])
    assert mean == pytest.approx(written["all"]["intra_class_distance"], abs=histograms["edges"][1] / 2)


def test_scores_without_an_interval_are_still_reported(nearkin: Command, tmp_path: Path) -> None:
    """Only the queries of one class have a positive: enough for scores, but not for a bootstrap over classes."""
    rng = np.random.default_rng(0)
    split = ["train"] * 32 + ["test"] * 8
    labels = np.r_[np.arange(32) // 4, 20, 20, 20, 21, 22, 23, 24, 25]
    np.savez(tmp_path / "x.npz", vectors=rng.normal(size=(40, 5)), labels=labels, split=split)
    trained = nearkin("train", "x.npz", "--backbone", "linear", *QUICK, "--out", "run")
    assert trained.code == 0, trained.err
    outcome = nearkin("evaluate", "run")
    assert outcome.code == 0 and "Recall@1" in outcome.out, outcome.err


def test_a_second_run_gets_its_own_folder(nearkin: Command, tmp_path: Path) -> None:
    for _ in range(2):
        assert nearkin("train", TINY_GLYPHS, *QUICK, "--set", "epochs=0").code == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["glyphs-rank", "glyphs-rank-2"]


def test_a_config_repeats_a_run_and_options_change_it(nearkin: Command, tmp_path: Path) -> None:
    nearkin("train", TINY_GLYPHS, *QUICK, "--out", "a")
    nearkin("train", "--config", "a/config.toml", "--out", "b")
    nearkin("train", "--config", "a/config.toml", "--out", "c", "--seed", "7", "--set", "alpha=2")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in "abc"]
    assert weights[0] == weights[1] != weights[2]
    assert "alpha = 2.0" in (tmp_path / "c" / "config.toml").read_text()


def test_resume_accepts_no_other_settings(nearkin: Command) -> None:
    nearkin("train", TINY_GLYPHS, *QUICK, "--out", "a")
    assert nearkin("resume", "a").code == 0
    fails(nearkin("resume", "nowhere"), "nowhere does not exist; use a run folder")


def test_photos_are_embedded_with_or_without_classes(nearkin: Command, photos: Path) -> None:
    assert nearkin("train", photos, *PHOTOS, "--out", "run").code == 0
    assert nearkin("embed", "run", photos).code == 0
    flat = nearkin("embed", "run", photos / "class1", "-o", "flat.npz")
    assert "6 vectors" in flat.out
    (photos / "class1" / "0.png").write_bytes(b"broken")
    skipped = nearkin("embed", "run/model", photos / "class1", "-o", "flat.npz")
    assert "5 vectors" in skipped.out
    fails(nearkin("embed", "run", photos / "class1", "--unreadable", "stop"), "1 of 6 images cannot be read")


def test_unreadable_images_are_listed_and_skipped_or_stop_the_run(
    nearkin: Command, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (photos / "class0" / "1.png").write_bytes(b"broken")
    assert nearkin("train", photos, *PHOTOS, "--out", "run").code == 0
    assert "skipped images that cannot be read (1)" in caplog.text
    assert str(photos / "class0" / "1.png") in caplog.text
    fails(nearkin("train", photos, *PHOTOS, "--out", "b", "--unreadable", "stop"), "1 of 36 images cannot be read")


def test_grey_transparent_16_bit_and_animated_images_can_be_used_for_training(nearkin: Command, photos: Path) -> None:
    Image.new("L", (20, 20), 50).save(photos / "class0" / "grey.png")
    Image.new("RGBA", (20, 20), (0, 0, 0, 9)).save(photos / "class1" / "clear.png")
    Image.fromarray(np.full((20, 20), 40_000, dtype=np.uint16)).save(photos / "class2" / "deep.png")
    frames = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    frames[0].save(photos / "class3" / "moving.gif", save_all=True, append_images=frames[1:])
    outcome = nearkin("train", photos, *PHOTOS, "--unreadable", "stop")
    assert outcome.code == 0, outcome.err


def test_tables_of_datasets_and_methods(nearkin: Command, tmp_path: Path) -> None:
    datasets = nearkin("datasets", "--root", tmp_path)
    for word in ("glyphs", "cub200", "5,864 train", "5,924 test", "inshop", "14,218 query", "vehicleid", "dogs120"):
        assert word in datasets.out
    methods = nearkin("methods")
    for word in ("rank", "Schall", "batches: k classes × n", "alpha=4.0"):
        assert word in methods.out


def one_class(folder: Path) -> Path:
    (folder / "one" / "only").mkdir(parents=True)
    for number in range(4):
        Image.new("RGB", (8, 8)).save(folder / "one" / "only" / f"{number}.png")
    return folder / "one"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], ["no data given"]),
        (["train", "phtos/"], ["file or folder phtos/ does not exist"]),
        (["train", "cub20"], ["did you mean 'cub200'"]),
        (["train", "cub200", "--root", "."], ["cub200", "was not found"]),
        (["train", TINY_GLYPHS, "--method", "ranks"], ["method 'ranks' is unknown; did you mean 'rank'?"]),
        (["train", TINY_GLYPHS, "--backbone", "resnet5O", *QUICK], ["backbone 'resnet5O' is unknown", "did you mean"]),
        (["train", TINY_GLYPHS, "--weights", "x.pt", *QUICK], ["weights file x.pt does not exist"]),
        (["train", TINY_GLYPHS, "--batch-size", "1000"], ["48 training items cannot fill a batch of 1000"]),
        (["train", TINY_GLYPHS, "--set", "momentun=1"], ["did you mean 'momentum'"]),
        (["train", TINY_GLYPHS, "--set", "momentum"], ["write NAME=VALUE"]),
        (["train", TINY_GLYPHS, "--set", "seed=x"], ["nearkin: --seed must be an integer, got 'x'"]),
        (["train", "--config", "no.toml"], ["settings file no.toml does not exist"]),
        (["train", "one"], ["only one class"]),
        (["evaluate", "nowhere"], ["nowhere"]),
        (["evaluate", "one", "--data", TINY_GLYPHS], ["has no model"]),
        (["evaluate", "one"], ["one has no model", "use a run folder"]),
        (["embed", "one", "one"], ["has no model"]),
        (["evaluate", "one", "--recall-at", "1,x"], ["not a list of positive integers"]),
        (["frobnicate"], ["No such command"]),
    ],
)
def test_every_user_error_is_one_sentence(
    nearkin: Command, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    one_class(tmp_path)
    fails(nearkin(*arguments), *words)
    assert not (tmp_path / "runs").exists()


def test_bad_tables_fail_before_anything_is_written(nearkin: Command, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file,label\nx.png,1\n")
    fails(nearkin("train", "t.csv"), "no column 'path'")
    (tmp_path / "t.csv").write_text("path,label\n../secret.png,1\n")
    fails(nearkin("train", "t.csv"), "is not in the folder of the CSV")
    assert not (tmp_path / "runs").exists()


def test_debug_shows_the_traceback(nearkin: Command) -> None:
    with pytest.raises(ValueError, match="did you mean 'cub200'"):
        nearkin("train", "cub20", "--debug")


def test_an_unexpected_error_points_to_debug(nearkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("nearkin.cli.listing.show", broken)
    outcome = nearkin("methods")
    assert outcome.code == 1
    assert "unexpected KeyError: 'a bug' (add --debug for the traceback)" in outcome.err


def test_ctrl_c_prints_one_word(nearkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("nearkin.cli.listing.show", interrupted)
    outcome = nearkin("methods")
    assert (outcome.code, outcome.err) == (130, "nearkin: stopped\n")
