"""The tables of the docs are those of the raw numbers beside them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearkin.experiments import ComparisonResult
from nearkin.experiments.comparison_result import mean_in_words
from nearkin.experiments.recipes import known_recipes, recipe_description

DOCS = Path(__file__).parents[1] / "docs"
COMPARISONS = (
    *("cub", "cars", "flowers", "cub-paper", "cub-tuned", "cub-128", "cars-128", "flowers-128"),
    *("cub-head", "cub-head-tuned", "cars-head-tuned", "flowers-head-tuned"),
)
SCORES = ("recall@1", "map@r", "nmi_arithmetic")
LEARNERS = {f"K = {k}": f"learners={k}" for k in (1, 2, 4, 8)} | {
    "K = 4, random partition": "random-parts",
    "K = 4, whole classes grouped once": "parts-by-labels",
    "K = 4, clusters without split embedding": "no-split",
}


def page(name: str = "results") -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def raw(name: str) -> dict[str, Any]:
    return dict(json.loads((DOCS / f"results/{name}.json").read_text(encoding="utf-8")))


def table(section: str, head: str, of: str = "results") -> list[list[str]]:
    """The cells of the one table below a heading whose first line begins so; names without their backticks."""
    _, text = page(of).split(f"\n## {section}\n")
    (rows,) = re.findall(rf"^{re.escape(head)}.*\n\|[-:| ]+\|\n((?:\|.*\n)+)", text.partition("\n## ")[0], re.M)
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows.splitlines()]
    return [[name.replace("`", ""), *cells] for name, *cells in lines]


def by_name(rows: Sequence[Sequence[str]]) -> dict[str, list[str]]:
    found = {name: list(cells) for name, *cells in rows}
    assert len(found) == len(rows)
    return found


def bold(cells: Iterable[str]) -> list[bool]:
    return [cell.startswith("**") for cell in cells]


def plain(cells: Iterable[str]) -> list[str]:
    return [re.sub(r"^\*\*(.*)\*\*$", r"\1", cell) for cell in cells]


def mean_and_deviation(values: Sequence[float]) -> str:
    return f"{np.mean(values):.4f}" + (f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else "")


def assert_glyph_row(cells: Sequence[str], found: dict[str, list[float]], prefix: str = "") -> None:
    """Three scores and, where it is given, the share of time that refreshes took."""
    assert list(cells[:3]) == [mean_and_deviation(found[prefix + score]) for score in SCORES]
    share = f"{100 * np.mean(found.get('refresh share', 0)):.0f} %"
    assert set(cells[3:]) <= {"", share}


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_stands_there_as_it_was_measured(name: str) -> None:
    found = raw(name)
    table = (
        ComparisonResult(**{field.name: found[field.name] for field in fields(ComparisonResult) if field.name in found})
        .markdown()
        .split("\n\n")[0]
    )
    assert table in page()
    assert f"results/{name}.json" in page() and f"images/{name}.png" in page()
    assert all(found["made"][what] for what in ("date", "hardware", "commit")) and found["command"]


def test_which_method_sums_up_the_other_tables() -> None:
    rows = by_name(table("Which method?", "| MAP@R, % | from scratch | fine-tuned, defaults | fine-tuned, tuned |"))
    datasets, defaults = ("cub", "cars", "flowers"), raw("defaults")["check-finetune"]["rows"]
    finetuned = {method: [row["after"] for row in defaults if row["method"] == method] for method in rows}
    finetuned["backbone alone"] = [row["backbone"] for row in defaults if row["method"] == "rank"]
    columns = [{method: [scores] for method, scores in raw("methods")["table"].items()}, finetuned]
    for kind in ("128", "head-tuned"):
        found = [raw(f"{dataset}-{kind}") for dataset in datasets]
        names = {"spectral": "spectral,micro_batch=126"} if kind == "128" else {}
        columns.append({row: [of["scores"].get(names.get(row, row), {}) for of in found] for row in rows})
        columns[-1]["backbone alone"] = [of["backbone"] for of in found]
    values = np.array([[mean_precision(column.get(name, [])) for column in columns] for name in rows])
    for cells, row, best in zip(rows.values(), values, values == np.nanmax(values, axis=0), strict=True):
        assert plain(cells) == ["" if np.isnan(value) else f"{value:.1f}" for value in row]
        assert bold(cells) == list(best)
    assert (np.diff(values[:-1, 1]) <= 0).all() and len(rows) == 14


def mean_precision(scores: Sequence[dict[str, Any]]) -> float:
    """Mean MAP@R in %, over datasets and seeds; NaN if it was not measured on all of them."""
    each = [np.mean(score.get("map@r", np.nan)) for score in scores]
    return 100 * float(np.mean(each)) if each else np.nan


def test_tuning_is_set_beside_the_defaults() -> None:
    default, tuned = raw("cub"), raw("cub-tuned")
    rows = by_name(table("The same tuning for eight methods", "| MAP@R, mean of three seeds | validation, default |"))
    assert rows.keys() == tuned["scores"].keys()
    for method, cells in rows.items():
        highest = [[max(value for _, value in curve) for curve in of["curves"][method]] for of in (default, tuned)]
        tested = [of["scores"][method]["map@r"] for of in (default, tuned)]
        assert cells == [f"{np.mean(values):.4f}" for values in (*highest, *tested)]


@pytest.mark.parametrize(
    ("file", "head", "row"),
    [("tuning", "| method, seed |", "{name}, {seed}"), ("tuning-rank-100", "| rank, seed |", "{seed}")],
)
def test_halving_is_set_beside_training_every_trial_to_the_end(file: str, head: str, row: str) -> None:
    found = raw(file)
    rows = by_name(table("Tuning for a third of the epochs", head))
    for seed, full, halving in zip(found["seeds"], found["all to the end"], found["halving"], strict=True):
        for name in full:
            of = (full[name]["defaults"], full[name], halving[name])
            scores = [f"{each[split]:.4f}" for split in ("validation", "test") for each in of]
            cells = rows.pop(row.format(name=name, seed=seed))
            assert cells == [str(full[name]["epochs"]), str(halving[name]["epochs"]), *scores]
    assert not rows


def test_all_methods_on_the_glyphs_are_those_of_the_runs() -> None:
    rows = by_name(table("All methods on the glyphs", "| | settings | rate | Recall@1 | MAP@R | NMI | refresh"))
    found = raw("methods")
    assert rows.keys() == found["table"].keys()
    for name, (_, rate, *cells) in rows.items():
        assert_glyph_row(cells, found["table"][name])
        tried = [each for trial, each in found["choices"].items() if re.fullmatch(rf"choose-{name}-\d", trial)]
        best = max(tried, key=lambda each: each["score"], default=None)
        assert rate == (f"{best['settings']['learning_rate']:.0e}".replace("e-0", "e-") if best else "")


def test_spectral_with_and_without_sc_is_that_of_the_runs() -> None:
    rows = by_name(table("Spectral, with and without SC", "| `spectral` | Recall@1 | MAP@R | NMI |"))
    found = raw("methods")["spectral"]["spectral"]
    assert_glyph_row(rows["normalised embeddings"], found)
    assert_glyph_row(rows["with SC"], found, "with_sc_")


def test_spectral_by_steps_is_that_of_the_runs() -> None:
    rows = table("Spectral, how many steps?", "| steps | Recall@1 | MAP@R | NMI | training classes: Recall@1 |")
    found = raw("methods")["long"]
    assert [4 * int(name.rpartition("-")[2]) for name in found] == [int(steps.replace(",", "")) for steps, *_ in rows]
    for of, (_, *cells) in zip(found.values(), rows, strict=True):
        assert_glyph_row(cells[:3], of)
        assert_glyph_row(cells[3:], of, "training classes, ")


def test_learners_are_those_of_the_runs() -> None:
    rows = table("Divide and conquer: how many learners?", "| | Recall@1 | MAP@R | NMI | refresh")
    found = raw("methods")["learners"]
    names = [LEARNERS[name.partition(":")[0]] for name, *_ in rows]
    assert sorted(names) == sorted(found)
    for name, (_, *cells) in zip(names, rows, strict=True):
        assert_glyph_row(cells, found[name])


def test_the_values_of_alpha_are_those_of_the_figure() -> None:
    rows = by_name(table("Rank: which α, and what a plane looks like", "| | Recall@1 | Recall@2 | Recall@4 |"))
    found = {row["method"]: list(row["here"].values()) for row in raw("rank-figure-3")["rows"]}
    assert rows.keys() == found.keys()
    for name, cells in rows.items():
        assert plain(cells) == [f"{value:.1f}" for value in found[name]]
    here = np.array([found[name] for name in rows])
    marked = np.array([bold(cells) for cells in rows.values()])
    assert marked.any(0).all() and (here == here.max(0))[marked].all()  # of equal ones, one may be marked


def test_errors_of_hierarchy_recovery_are_those_of_the_runs() -> None:
    rows = by_name(
        table("What an embedding knows besides its classes", "| | trained on the classes | trained on pairs")
    )
    found, tasks = raw("attributes"), ("plain", "pairs")
    errors = {method: [[run["error"] for run in found[task][method]] for task in tasks] for method in found["plain"]}
    lowest = np.mean(list(errors.values()), 2).min(0)
    assert rows.keys() == errors.keys()
    for method, cells in rows.items():
        assert plain(cells) == [mean_and_deviation(each) for each in errors[method]]
        assert bold(cells) == [np.mean(each) == least for each, least in zip(errors[method], lowest, strict=True)]


def test_concentrations_of_attributes_are_those_of_the_runs() -> None:
    head = "| n | 1 | 2 | 4 | 8 | 16 | 32 | 64 | 128 | by chance |"
    rows = by_name(table("What an embedding knows besides its classes", head))
    found = raw("attributes")
    shares = {method: [run["attributes"] for run in runs] for method, runs in found["plain"].items()}
    shares["raw pixels"] = [found["raw pixels"]]
    assert rows.keys() == shares.keys()
    for name, cells in rows.items():
        assert cells == [f"{np.mean([each[size] for each in shares[name]]):.3f}" for size in found["raw pixels"]]


def test_tuned_recipes_are_listed_with_their_scores() -> None:
    rows = by_name(table("Tuned here", "| recipe | MAP@R | settings that differ from the defaults |", "recipes"))
    assert rows.keys() == {name for name in known_recipes() if name.startswith("cub200-lite0/")}
    for name, (score, settings) in rows.items():
        assert f"MAP@R {score} on the test classes" in recipe_description(name)
        found = raw("cub" if settings == "none" else "cub-tuned")["scores"][name.partition("/")[2]]
        assert score == mean_in_words(found["map@r"])


def test_the_speed_of_search_is_as_measured() -> None:
    rates = ("one_by_one_1_thread", "batches_1_thread", "one_by_one", "batches")
    expected = [
        [
            *(f"{each['items']:,}", each["name"], f"{each['effort'] or '–'}", f"{each['build_seconds']:.1f}"),
            *(f"{each['build_cpu_seconds']:.1f}", f"{each['megabytes']:,.0f}"),
            *(f"{each[rate]:,.0f}" for rate in rates),
            *(f"{each['recall_at_1']:.1%}", f"{each['recall_at_10']:.1%}", f"{each['load']:.1f}"),
        ]
        for each in raw("search")["measured"]
    ]
    assert table("Search", "| items | search | effort | build s |", "performance") == expected


def test_every_picture_and_file_of_the_page_is_there() -> None:
    for place in re.findall(r"\]\(((?:images|results)/[^)]+)\)", page()):
        assert (DOCS / place).is_file(), place


def test_the_demo_stands_there_as_it_was_measured() -> None:
    found, columns = raw("glyphs"), ("recall@1", "map@r", "nmi_arithmetic")
    for network in ("untrained", "trained"):
        for seed, scores in found[network].items():
            cells = [f"{scores[column]:.4f}" for column in columns]
            assert f"| {seed} | {network} network | {' | '.join(cells)} |" in page().replace("*", "")


def test_magnet_and_triplet_end_with_the_errors_of_their_curves() -> None:
    rows = by_name(table("Magnet against triplet", "| start"))
    starts = {"from scratch": "known", "warm": "warm", "trained": "trained"}
    curves = {start: raw("methods")[f"magnet_{kind}_curves"] for start, kind in starts.items()}
    assert rows.keys() == curves.keys()
    ways = ("triplet, soft kNN", "magnet, kNC", "magnet, soft kNN")
    for start, cells in rows.items():
        assert cells[:3] == [", ".join(f"{curve[-1][1]:.4f}" for curve in curves[start][way]) for way in ways]


def test_the_greedy_start_stands_there_as_it_was_measured() -> None:
    expected = [
        [
            *(row["data"], f"{row['gamma']:g}", row["start"], *(f"{mean:+.2f}" for mean in row["objective"])),
            *(f"{row['higher']:.0%}", f"{row['lower']:.0%}", f"{row['rounds']:.1f}"),
        ]
        for row in raw("greedy-start")["rows"]
    ]
    assert table("Facility location: the greedy start", "| data | γ | start |") == expected


def test_the_means_with_a_gradient_everywhere_are_those_of_its_seeds() -> None:
    for row in table("Rank: a gradient everywhere?", "| |"):
        for seeds, mean in ((row[2], row[3]), (row[4], row[5])):
            assert plain([mean]) == [f"{np.mean([float(seed) for seed in seeds.split(', ')]):.4f}"]


@pytest.mark.parametrize("file", sorted((DOCS / "results").glob("*.json")), ids=lambda file: file.stem)
def test_raw_numbers_say_when_on_what_and_by_which_commit_they_were_made(file: Path) -> None:
    found = raw(file.stem)
    notes = found.get("made", found)  # one, or one for each command
    for note in [notes] if "date" in notes else notes.values():
        assert all(note[what] for what in ("date", "hardware", "commit"))


def percent(*values: float) -> list[str]:
    return [f"{100 * value:.1f}" for value in values]


def test_the_defaults_stand_there_as_they_were_measured() -> None:
    rows = by_name(table("Better than the backbone?", "| defaults, % | CUB Recall@1 | MAP@R | epoch | Cars Recall@1 |"))
    found = {(row["dataset"], row["method"]): row for row in raw("defaults")["check-finetune"]["rows"]}
    methods = {method for _, method in found}
    assert rows.keys() == methods | {"backbone alone"}
    for method in methods:
        each = [found[dataset, method] for dataset in ("cub", "cars", "flowers")]
        for one, (recall, precision, epoch) in zip(each, (rows[method][at : at + 3] for at in (0, 3, 6)), strict=True):
            assert [recall, precision] == percent(one["after"]["recall@1"], one["after"]["map@r"])
            assert epoch == f"{one['best_epoch']} of {one['epochs']}"
            assert one["after"]["map@r"] >= one["backbone"]["map@r"]  # as the text says


def claims(section: str) -> dict[str, list[dict[str, Any]]]:
    """The rows of a section of claims.json by name, one for each seed."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in sorted(raw("claims")["rows"], key=lambda row: int(row["seed"])):
        if row["section"] == section:
            found.setdefault(row["name"], []).append(row)
    return found


def test_every_row_of_the_claims_has_the_command_of_its_commit() -> None:
    found = raw("claims")
    assert {row["made"]["commit"] for row in found["rows"]} <= {made["commit"] for made in found["made"].values()}


def test_methods_trained_on_all_classes_stand_there_as_they_were_measured() -> None:
    rows = by_name(table("CUB-200-2011, trained on all classes", "| all training classes, % | Recall@1 |"))
    found = {name: [row["after"] for row in each] for name, each in claims("cub").items()}
    found["backbone alone"] = [claims("cub")["rank"][0]["backbone"]]
    for name, seeds in found.items():
        assert rows.pop(name) == [", ".join(percent(*(seed[each] for seed in seeds))) for each in SCORES]
    assert not rows


def test_divide_and_conquer_over_80_epochs_stands_there_as_it_was_measured() -> None:
    rows = by_name(table("Divide and conquer over 80 epochs", "| Recall@1, % |"))
    for name, runs in (claims("learners") | claims("partitions")).items():
        at = [{point["step"] // 45: point["recall@1"] for point in row["curve"]} for row in runs]  # 45 steps per epoch
        found = [[each[epoch] for each in at] for epoch in (8, 16, 24, 32, 48, 64, 80)]
        found += [[row["after"][score] for row in runs] for score in SCORES[1:]]
        assert rows.pop(name) == [in_words([100 * value for value in values]) for values in found]
    assert not rows


def test_batches_that_look_at_the_space_stand_there_as_they_were_measured() -> None:
    rows = by_name(table("Batches that look at the space, on Cars and Flowers", "| whole network, 20 epochs, % |"))
    for name, runs in claims("halves").items():
        of = {run["dataset"]: run for run in runs}
        for row, scores in ((name, "after"), ("backbone alone", "backbone")):
            expected = [of[dataset][scores][score] for dataset in ("cars", "flowers") for score in SCORES[:2]]
            assert rows[row] == percent(*expected)
    assert rows.keys() == claims("halves").keys() | {"backbone alone"}


def test_options_of_magnet_stand_there_as_they_were_measured() -> None:
    rows = by_name(table("Magnet on known classes of Flowers", "| other images, head, % | error |"))
    for name, runs in claims("options-head").items():
        kinds = ("nearest_cluster_error", "classifier_error", "soft_knn_error")  # the first is the paper's reading
        read = next(kind for kind in kinds if kind in runs[0]["after"])
        scores = (read, "soft_knn_error", "map@r")
        assert rows.pop(name) == [in_words([100 * run["after"][score] for run in runs]) for score in scores]
    assert not rows


def test_known_classes_with_equal_tuning_stand_there_as_they_were_measured() -> None:
    rows = by_name(table("Magnet on known classes of Flowers", "| known classes, tuned head, % | read by |"))
    found = raw("known-tuned")
    readings = {"classifier": "classifier_error", "kNC": "nearest_cluster_error", "soft kNN": "soft_knn_error"}
    assert rows.keys() == found["rows"].keys()
    for name, (read_by, *cells) in rows.items():
        errors = [trial["error"] for trial in found["trials"][name]]
        runs = found["rows"][name]
        assert len(errors) == 15 and len(runs) == 3 and cells[:2] == percent(errors[0], min(errors))
        scores = (readings[read_by], "soft_knn_error", "recall@1", "map@r")
        assert cells[2:] == [in_words([100 * run[score] for run in runs]) for score in scores]


def test_known_classes_of_flowers_stand_there_as_they_were_measured() -> None:
    columns = ("nearest_cluster_error", "classifier_error", "soft_knn_error", "recall@1", "map@r")
    for section, head in (
        ("known-head", "| known classes, head, % |"),
        ("known", "| known classes, all weights, % |"),
    ):
        rows = by_name(table("Magnet on known classes of Flowers", head))
        for name, runs in claims(section).items():
            seeds = [[100 * run["after"][column] for run in runs if column in run["after"]] for column in columns]
            assert rows.pop(name) == ["" if not each else in_words(each) for each in seeds]
        assert not rows


def test_families_and_pairs_of_birds_stand_there_as_they_were_measured() -> None:
    rows = by_name(table("What an embedding knows besides its classes", "| % | error, trained on species |"))
    species, pairs = claims("species-head"), claims("pairs-head")
    assert rows.keys() == species.keys() == pairs.keys()
    for name, cells in rows.items():
        error = "nearest_cluster_error" if name.startswith("magnet") else "soft_knn_error"
        errors = [", ".join(percent(*(run["after"][error] for run in of[name]))) for of in (species, pairs)]
        shares = [np.mean([run["family"][size] for run in species[name]]) for size in ("1", "8", "32", "128")]
        assert cells == [*errors, *percent(*shares)]


def test_partitions_with_a_head_stand_there_as_they_were_measured() -> None:
    rows = by_name(table("Divide and conquer over 80 epochs", "| head, 80 epochs, % |"))
    for name, runs in (claims("learners-head") | claims("partitions-head")).items():
        assert rows.pop(name) == [in_words([100 * run["after"][score] for run in runs]) for score in SCORES]
    assert not rows


def test_facility_location_in_other_batches_stands_there_as_it_was_measured() -> None:
    rows = by_name(table("Facility location: batches and unit length", "| head, d = 64, % |"))
    for name, runs in claims("facilities-head").items():
        assert rows.pop(name) == [in_words([100 * run["after"][score] for run in runs]) for score in SCORES]
    assert not rows


def test_how_often_magnet_refreshes_from_scratch_stands_there_as_it_was_measured() -> None:
    rows = table("How often the space is embedded", "| `magnet`, from scratch |")
    found = raw("methods")["refreshes"]
    for epochs, (_, *cells) in zip((1, 3), rows, strict=True):
        new, known = (found[f"magnet-{classes}-every-{epochs}"] for classes in ("new", "known"))
        scores = [new["recall@1"], new["map@r"], new["refresh share"]]
        scores += [known["nearest_cluster_error"], known["refresh share"]]
        for at, (cell, values) in enumerate(zip(cells, scores, strict=True)):
            assert cell == (f"{100 * np.mean(values):.0f} %" if at in (2, 4) else mean_and_deviation(values))


def test_how_often_the_space_is_embedded_stands_there_as_it_was_measured() -> None:
    rows = table("How often the space is embedded", "| refreshes, % |")
    found = raw("refreshes")
    divide, magnet = found["divide-and-conquer"], found["magnet"]
    intervals = ["", ",recluster_epochs=1", ",recluster_epochs=5", ",recluster_epochs=9"]
    two, one, five, nine = (divide[f"divide-and-conquer{interval}"] for interval in intervals)
    scaled = "magnet,scaling=15,alpha=8"
    seeds = [one, two, five, nine, magnet[scaled], magnet[f"{scaled},refresh_epochs=3"]]
    for row, each in zip(rows, seeds, strict=True):
        means = percent(*(float(np.mean(each[score])) for score in SCORES[:2]))
        assert row[1:] == [*means, str(len(each["map@r"]))]


def in_words(values: Sequence[float]) -> str:
    return f"{np.mean(values):.1f}" + (f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else "")


def test_heads_on_two_more_datasets_stand_there_as_they_were_measured() -> None:
    rows = by_name(table("A head on frozen features", "| head alone, % | Cars Recall@1 | MAP@R | epoch |"))
    found = {(row["dataset"], row["method"]): row for row in raw("defaults")["check-head"]["rows"]}
    for method in {method for _, method in found}:
        for dataset, cells in (("cars", rows[method][:3]), ("flowers", rows[method][3:])):
            one = found[dataset, method]
            assert cells[:2] == percent(one["after"]["recall@1"], one["after"]["map@r"])
            assert cells[2] == f"{one['best_epoch']} of {one['epochs']}"


def test_the_search_for_rates_stands_there_as_it_was_measured() -> None:
    rows = by_name(table("Default learning rates", "| gain in MAP@R | head, CUB: 3e-5 |"))
    heads, finetuned = (raw("defaults")[f"search-{kind}"]["rows"] for kind in ("head", "finetune"))
    for method, cells in rows.items():
        own = [row for row in [*heads, *finetuned] if row["method"] == method]
        assert cells == [f"{100 * (row['best'] - row['backbone']):+.1f}" for row in own]
    assert rows.keys() == {row["method"] for row in heads}


def test_ones_own_data_stand_there_as_they_were_measured() -> None:
    rows = by_name(table("A head on frozen features", "| | Recall@1, backbone alone | before | after | MAP@R"))
    for label, name in (("Flowers-102", "flowers"), ("200 characters", "glyphs")):
        found = raw("own-data")[name]
        scores = [found[when][score] for score in ("recall@1", "map@r") for when in ("backbone", "before", "after")]
        assert rows[label] == [*(f"{score:.3f}" for score in scores), str(found["best_epoch"])]


def test_the_speed_of_training_is_as_measured() -> None:
    rates: dict[str, list[float]] = {}
    for row in raw("training")["results"]:  # two backbones with compile=off, then one with compile=on
        rates.setdefault(row["what"], []).append(row["images_per_second"])
    rows = by_name(table("Training", "| method | ResNet-50, `off` | ratio |", "performance"))
    for method, of in rates.items():
        ratios = (f"{rate / bare:.2f}" for rate, bare in zip(of, rates["bare loop"], strict=True))
        cells = [cell for rate, ratio in zip(of, ratios, strict=True) for cell in (f"{rate:,.0f}", ratio)]
        assert rows.pop(method) == (cells if method != "bare loop" else [cells[0], "", cells[2], "", cells[4], ""])
    assert not rows
