"""`nearkin reproduce` on tiny glyphs: runs are reused, numbers are next to the paper's, figures are drawn."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import TINY_GLYPHS, Command
from PIL import Image
from reference import retrieval

from nearkin.clustering import spectral_embedding
from nearkin.data import load_dataset, make_splits
from nearkin.errors import Interrupted, ResourceError
from nearkin.evaluation import evaluate
from nearkin.experiments import reproduction, runs
from nearkin.experiments.paper_figures import curve
from nearkin.experiments.papers import PaperTable, read_table
from nearkin.experiments.reproduction import reproduce
from nearkin.experiments.reproduction_plan import make_plans
from nearkin.models import Embedder
from nearkin.reports.figures import plain_figure
from nearkin.training import Run
from nearkin.training.baseline import backbone_space
from nearkin.training.settings import make_settings

QUICK: dict[str, Any] = {"epochs": 1, "batch_size": 16, "dim": 16, "device": "cpu"}
OPTIONS = [f"--set={name}={value}" for name, value in QUICK.items()]


@pytest.fixture(autouse=True)
def _no_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEARKIN_DATA", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders of the runs that were actually started or resumed."""
    names: list[str] = []

    def listed(real: Any) -> Any:
        def train(*arguments: Any, **objects: Any) -> Run:
            names.extend(each.name for each in arguments if isinstance(each, Path))
            run: Run = real(*arguments, **objects)
            return run

        return train

    for name in ("train", "resume"):
        monkeypatch.setattr(runs, name, listed(getattr(runs, name)))
    return names


def only(monkeypatch: pytest.MonkeyPatch, *rows: int) -> None:
    """Reduces every table to these rows."""

    def smaller(paper: str, name: str) -> PaperTable:
        table = read_table(paper, name)
        kept = (table.rows[row] for row in rows)
        return replace(table, rows=tuple(replace(row, test_per_class=min(row.test_per_class, 3)) for row in kept))

    monkeypatch.setattr(reproduction, "read_table", smaller)


def test_a_rehearsal_prints_the_papers_numbers_beside_ours_and_the_second_one_trains_nothing(
    nearkin: Command, trained: list[str], tmp_path: Path
) -> None:
    command = ["reproduce", "divide-and-conquer", "table-4", f"--data=inshop={TINY_GLYPHS}", *OPTIONS]
    first = nearkin(*command)
    assert first.code == 0, first.err
    assert len(trained) == 2
    for expected in (
        "85.7",
        "other data",
        f"1. other data: {TINY_GLYPHS} instead of",
        "epochs = 1 instead of 80",
        "the best point of the test curve",
    ):
        assert expected in " ".join(first.out.split())
    out = tmp_path / "runs" / "reproduce-divide-and-conquer-table-4"
    record = json.loads((out / "table-4.json").read_text())
    ours = record["rows"][1]
    assert record["unit"] == "percent" and ours["paper"]["recall@1"] == 85.7
    scores = json.loads((out / ours["run"] / "scores.json").read_text())
    assert scores["chosen"] == "best MAP@R on the test split"
    assert ours["here"]["recall@1"] == pytest.approx(100 * scores["after"]["recall@1"])
    markdown = (out / "table-4.md").read_text()
    assert f"other data | here | {ours['here']['recall@1']:.1f} |" in markdown
    assert "| Ours (margin) | inshop | paper | 85.7 | 95.5 |" in markdown

    again = nearkin(*command)
    assert again.code == 0 and len(trained) == 2
    assert again.out == first.out and json.loads((out / "table-4.json").read_text()) == record


def test_a_table_says_when_on_what_and_by_which_command_its_runs_were_made(
    nearkin: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, 5, 7)  # the network alone, softmax
    where = {"hardware": "cpu", "commit": "abc"}
    dates = chain(["2026-01-01"], repeat("2026-01-02"))  # a run in training writes it more than once
    monkeypatch.setattr("nearkin.experiments.runs.provenance", lambda _: {"date": next(dates), **where})
    source = vectors(tmp_path / "x y.npz", 0)
    options = [f"--set={name}={value}" for name, value in VECTORS.items()]
    command = ["reproduce", "spectral", "table-1", f"--data=cub200={source}", *options, "--out", "out"]
    first = nearkin(*command)
    assert first.code == 0, first.err
    record = json.loads((tmp_path / "out" / "table-1.json").read_text())
    assert record["made"] == {"date": "2026-01-01, 2026-01-02", **where}
    words = shlex.split(record["command"])
    assert words[:6] == ["nearkin", "reproduce", "spectral", "table-1", "--data", f"cub200={source}"]
    assert words[6:8] == ["--set", "epochs=1"] and words[-2:] == ["--out", "out"]
    line = f"date 2026-01-01, 2026-01-02 · hardware cpu · commit abc · {record['command']}"
    assert f"\n\n{line}\n\n1. " in (tmp_path / "out" / "table-1.md").read_text()
    assert " ".join(line.split()) in " ".join(first.out.split())

    monkeypatch.setattr("nearkin.experiments.runs.provenance", lambda _: {"date": "2026-02-03"})
    assert nearkin(*words[1:]).code == 0
    assert json.loads((tmp_path / "out" / "table-1.json").read_text()) == record  # with the date of the runs


def test_without_its_dataset_a_table_shows_the_papers_numbers(nearkin: Command, trained: list[str]) -> None:
    outcome = nearkin("reproduce", "divide-and-conquer", "table-4")
    assert outcome.code == 0 and not trained
    assert "85.7" in outcome.out and "not found" in outcome.out
    assert "1. not found: see `nearkin datasets` for where to get inshop" in outcome.out


def test_a_result_is_printed_as_its_table_and_as_rows_of_pandas(tmp_path: Path) -> None:
    result = reproduce("divide-and-conquer", "table-4", out=tmp_path)
    assert str(result) == repr(result) == result.markdown()
    table = result.to_pandas()
    assert len(table) == 12 and table["here"].isna().all() and table["difference"].isna().all()
    ours = table[(table["method"] == "Ours (margin)") & (table["score"] == "recall@1")]
    assert ours[["dataset", "paper"]].to_numpy().tolist() == [["inshop", 85.7]]


def test_the_list_says_what_there_is_and_whether_its_data_are_here(nearkin: Command) -> None:
    whole, one, both = nearkin("reproduce"), nearkin("reproduce", "magnet"), nearkin("reproduce", "--list")
    assert whole.code == one.code == 0 and whole.out == both.out
    assert "figure-3" in whole.out and "cars196: not found" in whole.out
    assert "table-4" in one.out and "cars196" not in one.out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["ranks", "table-1"], "did you mean 'rank'"),
        (["magnets"], "did you mean 'magnet'"),
        (["rank", "tabel-1"], "did you mean 'table-1'"),
        (["rank", "table-1", "--data", "cub200"], "write for example --data cub200=glyphs"),
        (["rank", "table-1", "--set", "epochs"], "write NAME=VALUE"),
        (["rank", "--set", "epochs=1"], "such as `nearkin reproduce rank table-2`"),
        (["ranks", "--set", "epochs=1"], "did you mean 'rank'"),
        (["--data", "cub200=glyphs"], "no table given"),
    ],
)
def test_mistakes_end_in_one_sentence(nearkin: Command, arguments: list[str], expected: str) -> None:
    outcome = nearkin("reproduce", *arguments)
    assert outcome.code == 1 and expected in outcome.err and outcome.err.count("\n") == 1


def test_a_table_of_which_nothing_came_out_is_printed_and_ends_in_one_sentence(nearkin: Command) -> None:
    outcome = nearkin("reproduce", "divide-and-conquer", "table-4", f"--data=inshop={TINY_GLYPHS}", "--set=keep=first")
    assert outcome.code == 1 and "85.7" in outcome.out and "could not be run" in outcome.out
    assert outcome.err.rstrip().splitlines()[-1].count("every row failed") == 1


@pytest.mark.parametrize(("paper", "name"), [("rank", "table-1"), ("divide-and-conquer", "table-4")])
def test_at_80_columns_no_number_is_broken(
    nearkin: Command, monkeypatch: pytest.MonkeyPatch, paper: str, name: str
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    printed = nearkin("reproduce", paper, name).out
    for row in read_table(paper, name).rows:
        assert all(f" {number:.1f} " in printed for number in row.paper.values() if number is not None)
    rule = next(line for line in printed.splitlines() if set(line.strip()) == {"─"})
    assert len(rule) <= 80 and "not found" in printed and re.search(r"here +1 +\n", printed)
    assert re.search(r"^method .* in *$", printed, re.MULTILINE)  # "differs in" is not cut off


def test_which_nmi_is_ours_is_said(tmp_path: Path) -> None:
    legends = {
        name: reproduce(name, "table-1", out=tmp_path / name).legend for name in ("spectral", "divide-and-conquer")
    }
    assert "NMI (geometric)" in legends["spectral"]
    assert "NMI (arithmetic)" in legends["divide-and-conquer"]
    assert "NMI" not in reproduce("rank", "table-1", out=tmp_path / "rank").legend


def test_a_stopped_table_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(monkeypatch, 0, 2)
    data = {"cub200": TINY_GLYPHS}
    whole = reproduce("rank", "table-1", data, tmp_path / "whole", **QUICK)
    begun: list[Path] = []
    real = runs.train

    def stops_at_the_second(settings: Any, folder: Path, *rest: Any, **objects: Any) -> Run:
        begun.append(folder)
        if len(begun) == 2:
            raise Interrupted("stopped after step 1")
        run: Run = real(settings, folder, *rest, **objects)
        return run

    monkeypatch.setattr(runs, "train", stops_at_the_second)
    with pytest.raises(Interrupted, match="run the same command to continue"):
        reproduce("rank", "table-1", data, tmp_path / "parts", **QUICK)
    found = reproduce("rank", "table-1", data, tmp_path / "parts", **QUICK)
    assert len(begun) == 3 and found.record()["rows"] == whole.record()["rows"]


def test_a_row_that_cannot_be_trained_says_why_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, 7, 9)
    # spectral needs more items than dimensions
    first, second = reproduce("spectral", "table-1", {"cub200": TINY_GLYPHS}, tmp_path, **QUICK).rows
    assert first.here and not second.here
    assert second.problem.startswith("could not be run: ") and "always 0" in second.problem


def test_a_full_disk_is_no_verdict_on_a_row(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise ResourceError("no space left")

    monkeypatch.setattr("nearkin.experiments.runs.run_or_resume", full)
    with pytest.raises(ResourceError, match="no space left"):
        reproduce("rank", "table-1", {"cub200": TINY_GLYPHS}, tmp_path, **QUICK)


def vectors(file: Path, seed: int, **columns: Any) -> str:
    rng = np.random.default_rng(seed)
    labels = np.arange(96) // 8
    np.savez(file, vectors=rng.normal(size=(12, 6))[labels] + rng.normal(size=(96, 6)), labels=labels, **columns)
    return str(file)


VECTORS = {"epochs": 1, "batch_size": 48, "dim": 4, "device": "cpu", "backbone": "linear", "weights": "none"}


def test_other_items_under_the_same_name_are_measured_again_or_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, 5, 7)  # the network alone, softmax
    found = []
    for seed in (0, 1):
        data = {"cub200": vectors(tmp_path / "x.npz", seed)}
        found.append(reproduce("spectral", "table-1", data, tmp_path / "out", **VECTORS).rows)
    assert found[0][0].here != found[1][0].here
    assert found[0][1].here and "have changed" in found[1][1].problem


def test_a_column_that_is_called_true_label_is_no_label(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(monkeypatch, 6)  # with SC, which is computed after training
    source = vectors(tmp_path / "x.npz", 0, true_label=np.array(["cat", "dog"] * 48))
    (outcome,) = reproduce("spectral", "table-1", {"cub200": source}, tmp_path / "out", **VECTORS).rows
    assert outcome.here


def test_errors_on_classes_that_were_not_trained_on_say_why_there_are_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, 0)
    settings = VECTORS | {"batch_size": 12, "augment": "none"}
    found = reproduce("magnet", "table-4", {"dogs120": vectors(tmp_path / "x.npz", 0)}, tmp_path / "out", **settings)
    assert "have different classes; use data with the same classes in both" in found.rows[0].problem


def test_scores_that_training_does_not_give_are_measured_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(monkeypatch, 23)  # Recall@1, Recall@10, Recall@100
    data = {"sop": TINY_GLYPHS}
    (outcome,) = reproduce("rank", "table-1", data, tmp_path, **QUICK).rows
    run = Run(tmp_path / outcome.run)
    test = make_splits(load_dataset(TINY_GLYPHS)).test
    assert test is not None
    vectors = Embedder.load(run.folder).encode([Image.fromarray(each) for each in test.items.pixels]).astype(np.float64)
    items = range(len(test))
    slow = retrieval.scores(vectors, test.labels, items, items, (1, 10, 100))
    assert outcome.here == pytest.approx({f"recall@{k}": 100 * slow[f"recall@{k}"] for k in (1, 10, 100)})
    assert outcome.difference["recall@1"] == outcome.here["recall@1"] - 75.6
    (file,) = run.folder.glob("measured-*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"recall@10": 0.125}))
    (again,) = reproduce("rank", "table-1", data, tmp_path, **QUICK).rows
    assert again.here["recall@10"] == 12.5


def test_any_model_can_be_read_out_with_sc_and_by_clusters(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(monkeypatch, 6, 7)
    softmax = reproduce("spectral", "table-1", {"cub200": TINY_GLYPHS}, tmp_path / "a", **QUICK).rows
    assert softmax[0].run == softmax[1].run and softmax[0].here != softmax[1].here
    only(monkeypatch, 0, 1)
    both = reproduce("magnet", "table-4", {"dogs120": TINY_GLYPHS}, tmp_path / "b", **QUICK).rows
    assert [list(outcome.here) for outcome in both] == [["nearest_cluster_error", "soft_knn_error"]] * 2


def test_the_network_alone_is_measured_plain_and_with_sc(
    monkeypatch: pytest.MonkeyPatch, trained: list[str], tmp_path: Path
) -> None:
    only(monkeypatch, 4, 5)
    data = {"cub200": TINY_GLYPHS}
    with_sc, plain = reproduce("spectral", "table-1", data, tmp_path, **QUICK).rows
    plan = make_plans(read_table("spectral", "table-1"), data, QUICK)[5]
    assert not trained and plan.settings is not None
    space = backbone_space(plan.settings)
    assert plain.here == pytest.approx({k: 100 * evaluate(space).scores[k] for k in plain.here})
    singular = replace(space, embeddings=spectral_embedding(space.embeddings))
    assert with_sc.here == pytest.approx({k: 100 * evaluate(singular).scores[k] for k in with_sc.here})
    monkeypatch.setattr(reproduction, "backbone_space", None)
    assert [each.here for each in reproduce("spectral", "table-1", data, tmp_path, **QUICK).rows] == [
        with_sc.here,
        plain.here,
    ]


def test_magnets_rows_average_sixteen_views_of_pictures_that_are_augmented(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only(monkeypatch, 1)
    asked: list[tuple[int, str]] = []
    real = reproduction.embed_dataset

    def listed(model: Any, dataset: Any, views: int, augment: str) -> Any:
        asked.append((views, augment))
        return real(model, dataset, views=views, augment=augment)

    monkeypatch.setattr(reproduction, "embed_dataset", listed)
    for augment in ("none", "crop-flip"):
        found = reproduce("magnet", "table-4", {"dogs120": TINY_GLYPHS}, tmp_path, augment=augment, **QUICK)
        assert found.rows[0].here
    assert asked == [(16, "crop-flip")] * 2  # test and training split; plain scores come from training


@pytest.mark.parametrize(
    ("paper", "name", "rows", "data"),
    [
        ("rank", "figure-3", (0, 3), {"cars196": TINY_GLYPHS}),
        ("rank", "figure-4", (0, 3), {"mnist": TINY_GLYPHS}),
        ("divide-and-conquer", "figure-1", (0, 1), {"sop": TINY_GLYPHS}),
        ("magnet", "figure-5", (0, 1), {"dogs120": TINY_GLYPHS}),
    ],
)
def test_figures_are_drawn_from_the_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paper: str, name: str, rows: tuple[int, ...], data: dict[str, str]
) -> None:
    only(monkeypatch, *rows)
    dim = {"dim": 2, "per_class": 4} if name == "figure-4" else {}
    found = reproduce(paper, name, data, tmp_path, **(QUICK | dim))
    assert all(outcome.here for outcome in found.rows)
    picture = np.asarray(Image.open(tmp_path / f"{name}.png").convert("RGB"))
    assert len(np.unique(picture.reshape(-1, 3), axis=0)) > 50
    (panel, *_) = json.loads((tmp_path / f"{name}.json").read_text())["drawn"]
    first = found.rows[0]
    run = Run(tmp_path / first.run)
    match paper, name:
        case "rank", "figure-3":
            assert panel["x"] == "alpha" and [x for x, _ in panel["series"]["Recall@1"]] == [1.0, 4.0]
            assert panel["series"]["Recall@1"][0][1] == first.here["recall@1"] / 100
        case "rank", "figure-4":
            assert [np.shape(places) for places in panel["series"].values()] == [(3, 2)] * 12
        case "divide-and-conquer", _:
            assert panel["series"]["K = 1, Recall@1"] == [list(point) for point in curve(run, "recall@1")]
        case _:
            triplet = curve(run, "soft_knn_error")
            assert panel["series"]["Triplet, Soft kNN error"] == [list(point) for point in triplet]
            assert list(triplet[-1]) in panel["marks"]["last error of Triplet, Soft kNN error reached"]


def test_runs_that_were_not_measured_on_the_way_have_no_curves(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(monkeypatch, 0, 1)
    unseen = QUICK | {"evaluate_every": 0, "keep": "last"}
    found = reproduce("magnet", "figure-5", {"dogs120": TINY_GLYPHS}, tmp_path, **unseen)
    assert all(row.here for row in found.rows) and not (tmp_path / "figure-5.png").exists()


@pytest.mark.parametrize(
    ("paper", "name", "data"), [("rank", "figure-3", "cars196"), ("magnet", "figure-5", "dogs120")]
)
def test_legends_are_outside_the_axes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, paper: str, name: str, data: str
) -> None:
    only(monkeypatch, 0, 1)
    drawn: list[Any] = []
    monkeypatch.setattr(
        "nearkin.experiments.paper_figures.plain_figure",
        lambda *size: drawn.append(plain_figure(*size)) or drawn[-1],
    )
    reproduce(paper, name, {data: TINY_GLYPHS}, tmp_path, **QUICK)
    monkeypatch.undo()
    (figure,) = drawn
    for axes in figure.axes:
        legend = axes.get_legend().get_window_extent()
        assert legend.y1 <= axes.get_window_extent().y0 and legend.y0 >= 0
        assert legend.x0 >= 0 and legend.x1 <= figure.bbox.x1


def test_a_folder_is_trained_continued_or_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    monkeypatch.setattr(runs, "train", lambda _, folder, *__, **___: done.append("train") or Run(folder))
    monkeypatch.setattr(runs, "resume", lambda folder, *_, **__: done.append("resume") or Run(folder))
    run = Run(tmp_path / "x")
    settings = make_settings(TINY_GLYPHS, "rank", {})
    runs.run_or_resume(settings, run.folder)
    run.create(settings, "")
    run.checkpoint_file.parent.mkdir(parents=True)
    run.checkpoint_file.touch()
    runs.run_or_resume(settings, run.folder)
    run.scores_file.touch()
    assert runs.run_or_resume(settings, run.folder).folder == run.folder
    assert done == ["train", "resume"]
    runs.run_or_resume(settings.changed(training={"stop_after": 3}), run.folder)
    assert done == ["train", "resume", "resume"]
