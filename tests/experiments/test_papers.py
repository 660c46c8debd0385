"""The papers' tables as data: numbers as printed, known recipes and scores, differences as in the docs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import TINY_GLYPHS

from nearkin.errors import UserError
from nearkin.experiments.paper_figures import KINDS
from nearkin.experiments.papers import PaperTable, Row, known_papers, known_tables, paper_file, read_paper, read_table
from nearkin.experiments.recipes import known_recipes, recipe_description, recipe_tables
from nearkin.experiments.reproduction_plan import datasets, make_plans
from nearkin.methods import make_method

ROOT = Path(__file__).parents[2]
PAPERS = ROOT.parent / "shared" / "papers"  # where the papers' text lies beside a checkout
TEXTS = {
    "divide-and-conquer": "divide_and_conquer",
    "facility-location": "facility_location",
    "magnet": "magnet",
    "rank": "rank_approximation_nra",
    "spectral": "spectral_clustering_dscl",
}
# The printed numbers, by paper, table and row.
PRINTED = {
    ("rank", "table-1", "NRA (ours), d = 512", "cars196/rank"): [81.9, 88.8, 92.8, 95.4],
    ("rank", "table-2", "NRA (ours), d = 512", "cars196/rank"): [82.1],
    ("facility-location", "table-3", "Clustering (Ours)", "sop/facility-location"): [89.48, 67.02, 83.65, 93.23],
    ("spectral", "table-2", "Ours (last layer/with SC)", "cars196/spectral"): [64.25, 73.07, 82.19, 89.01, 92.99],
    ("divide-and-conquer", "table-1", "Ours (Margin)", "sop/divide-and-conquer"): [75.9, 88.4, 94.9, 98.1, 90.2],
    ("divide-and-conquer", "table-1", "FacilityLoc", "sop/facility-location"): [67.0, 83.7, 93.2, None, None],
    ("divide-and-conquer", "table-4", "Margin baseline*", "inshop/margin"): [82.6, 94.8, 96.2, 97.0, 97.7, 87.8],
    ("divide-and-conquer", "table-6", "GT labels grouping", "sop/divide-and-conquer"): [74.5, 87.1, 93.8, 97.6],
}
SCORES = r"(random_gallery_)?recall@\d+|nmi_geometric|nmi_arithmetic|map|soft_knn_error|nearest_cluster_error"
every_table = pytest.mark.parametrize(("paper", "name"), [(p, n) for p in known_papers() for n in known_tables(p)])


def rows_with_numbers(table: PaperTable) -> list[Row]:
    return [row for row in table.rows if any(number is not None for number in row.paper.values())]


def test_every_table_with_results_of_the_five_papers_is_there() -> None:
    assert {paper: known_tables(paper) for paper in known_papers()} == {
        "divide-and-conquer": ["figure-1", *(f"table-{number}" for number in range(1, 7))],
        "facility-location": ["table-1", "table-2", "table-3"],
        "magnet": ["figure-5", "table-4"],
        "rank": ["figure-3", "figure-4", "table-1", "table-2"],
        "spectral": ["table-1", "table-2", "table-3"],
    }


@pytest.mark.parametrize(("where", "numbers"), PRINTED.items(), ids=lambda value: str(value)[:60])
def test_numbers_are_those_that_the_paper_prints(where: tuple[str, str, str, str], numbers: list[float]) -> None:
    paper, name, method, recipe = where
    (row,) = [row for row in read_table(paper, name).rows if (row.method, row.recipe) == (method, recipe)]
    assert list(row.paper.values()) == numbers


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers' text is not here")
@every_table
def test_the_numbers_of_a_row_stand_on_one_line_of_the_paper(paper: str, name: str) -> None:
    table = read_table(paper, name)
    lines = (PAPERS / f"{TEXTS[paper]}.txt").read_text(encoding="utf-8").splitlines()
    found = [re.findall(r"(?<![\d.])\d\d\.\d+(?!\d)", line) for line in lines]
    for row in rows_with_numbers(table):
        printed = [f"{number:.{table.decimals}f}" for number in row.paper.values() if number is not None]
        assert any(is_within(printed, line) for line in found), (row.method, printed)


def is_within(wanted: list[str], line: list[str]) -> bool:
    """Whether the line has the wanted words in this order, possibly with others in between."""
    rest = iter(line)
    return all(number in rest for number in wanted)


@every_table
def test_a_row_names_recipes_methods_scores_and_notes_that_exist(paper: str, name: str) -> None:
    table = read_table(paper, name)
    assert table.rows and bool(table.draw) == name.startswith("figure") and table.draw in ("", *KINDS)
    for row in table.rows:
        assert row.recipe in known_recipes() or (row.base and not row.recipe)
        assert all(re.fullmatch(SCORES, column) for column in row.paper)
        if row.read:
            make_method(row.read.partition(":")[0])
        assert table.draw != "sweep" or list(row.set) == list(table.rows[0].set)


@every_table
def test_every_row_can_be_planned_on_glyphs(paper: str, name: str) -> None:
    table = read_table(paper, name)
    data = dict.fromkeys(datasets(table), TINY_GLYPHS)
    for plan in make_plans(table, data, {}):
        assert plan.settings is not None
        assert plan.settings.training.keep == ("last" if plan.row.base else "best-on-test")
        assert plan.differs(plan.settings)[0].startswith("other data: glyphs")


def test_every_recipe_of_a_paper_is_used_somewhere() -> None:
    tables = [read_table(paper, name) for paper in known_papers() for name in known_tables(paper)]
    of_papers = {recipe for recipe in known_recipes() if not recipe_description(recipe).startswith("Tuned here")}
    assert {row.recipe for table in tables for row in table.rows} >= of_papers


def test_every_note_of_a_paper_and_of_a_table_is_used() -> None:
    for paper in known_papers():
        tables = [read_table(paper, name) for name in known_tables(paper)]
        used = {note for table in tables for row in table.rows for note in row.notes}
        written = [read_paper(paper).notes, *(paper_file(table.name).get("notes", {}) for table in tables)]
        assert used == {sentence for notes in written for sentence in notes.values()}


def origins() -> dict[str, dict[str, Any]]:
    """The origins of recipes from papers."""
    found = {recipe: recipe_tables(recipe)["origin"] for recipe in known_recipes()}
    return {recipe: origin for recipe, origin in found.items() if "paper" in origin}


def test_the_differences_of_recipes_are_those_of_the_docs() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|[^|]*\|[^|]*\| ([^|]*) \|$", text, re.MULTILINE)
    assert {recipe: words.split(", ") for recipe, words in rows} == {
        recipe: origin["differs"] for recipe, origin in origins().items()
    }
    for paper in known_papers():
        used = {word for origin in origins().values() if origin["paper"] == paper for word in origin["differs"]}
        assert used == set(read_paper(paper).differences)


@pytest.mark.parametrize("recipe", origins())
def test_what_the_comments_of_a_recipe_call_open_is_said_to_be_open(recipe: str) -> None:
    text = (ROOT / "src" / "nearkin" / "experiments" / "recipes" / f"{recipe}.toml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if re.search(r"  # .*\bopen\b", line)]
    origin = origins()[recipe]
    assert {line.split()[0] for line in lines} == {*origin["open"], *origin.get("partly_open", {})}
    assert recipe_description(recipe).startswith(f"{read_paper(origin['paper']).authors}, ")


def test_the_docs_list_every_table_and_figure() -> None:
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\S+) (\S+)` \|", text, re.MULTILINE)
    assert sorted(listed) == [(paper, name) for paper in known_papers() for name in known_tables(paper)]


@pytest.mark.parametrize(
    ("paper", "name", "expected"),
    [
        ("ranks", "table-1", "paper 'ranks' is unknown; did you mean 'rank'?"),
        ("rank", "table1", "rank: table or figure 'table1' is unknown; did you mean 'table-1'?"),
        ("rank", "../magnet/table-4", "is unknown"),
    ],
)
def test_unknown_names_are_told_the_nearest(paper: str, name: str, expected: str) -> None:
    with pytest.raises(UserError, match=re.escape(expected)):
        read_table(paper, name)
