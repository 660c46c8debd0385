"""The papers' tables as data: numbers as printed, recipes and scores that nearkin has, differences as in the docs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from conftest import TINY_GLYPHS

from nearkin.errors import UserError
from nearkin.experiments.differences import OPEN, _known, open_besides, open_settings
from nearkin.experiments.papers import Part, Row, known_papers, known_parts, read_part
from nearkin.experiments.recipes import known_recipes, recipe_description
from nearkin.experiments.reproduction_figures import KINDS
from nearkin.experiments.reproduction_plan import Wishes, datasets, plans
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
# By paper, part and row: what the paper prints.
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
every_part = pytest.mark.parametrize(("paper", "name"), [(p, n) for p in known_papers() for n in known_parts(p)])


def rows_with_numbers(part: Part) -> list[Row]:
    return [row for row in part.rows if any(number is not None for number in row.paper)]


def test_every_table_with_results_of_the_five_papers_is_there() -> None:
    assert {paper: known_parts(paper) for paper in known_papers()} == {
        "divide-and-conquer": ["figure-1", *(f"table-{number}" for number in range(1, 7))],
        "facility-location": ["table-1", "table-2", "table-3"],
        "magnet": ["figure-5", "table-4"],
        "rank": ["figure-3", "figure-4", "table-1", "table-2"],
        "spectral": ["table-1", "table-2", "table-3"],
    }


@pytest.mark.parametrize(("where", "numbers"), PRINTED.items(), ids=lambda value: str(value)[:60])
def test_numbers_are_those_that_the_paper_prints(where: tuple[str, str, str, str], numbers: list[float]) -> None:
    paper, name, method, recipe = where
    (row,) = [row for row in read_part(paper, name).rows if (row.method, row.recipe) == (method, recipe)]
    assert list(row.paper) == numbers


@pytest.mark.skipif(not PAPERS.is_dir(), reason="the papers' text is not here")
@every_part
def test_the_numbers_of_a_row_stand_on_one_line_of_the_paper(paper: str, name: str) -> None:
    part = read_part(paper, name)
    lines = (PAPERS / f"{TEXTS[paper]}.txt").read_text(encoding="utf-8").splitlines()
    found = [re.findall(r"(?<![\d.])\d\d\.\d+(?!\d)", line) for line in lines]
    for row in rows_with_numbers(part):
        printed = [f"{number:.{part.decimals}f}" for number in row.paper if number is not None]
        assert any(is_within(printed, line) for line in found), (row.method, printed)


def is_within(wanted: list[str], line: list[str]) -> bool:
    """Whether the line holds what is wanted in this order, with others between."""
    rest = iter(line)
    return all(number in rest for number in wanted)


@every_part
def test_a_row_names_recipes_methods_scores_and_notes_that_exist(paper: str, name: str) -> None:
    part = read_part(paper, name)
    assert part.rows and set(part.notes) == {note for row in part.rows for note in row.notes}
    assert bool(part.draw) == name.startswith("figure") and part.draw in ("", *KINDS)
    for row in part.rows:
        assert row.recipe in known_recipes() or (part.base and not row.recipe)
        assert len(row.paper) == len(row.columns) == len(set(row.columns))
        assert all(re.fullmatch(SCORES, column) for column in row.columns)
        if row.read:
            make_method(row.read.partition(":")[0])
        assert not part.swept or part.swept in row.set


@every_part
def test_every_row_can_be_planned_on_glyphs(paper: str, name: str, tmp_path: Path) -> None:
    part = read_part(paper, name)
    wishes = Wishes(data=dict.fromkeys(datasets(part), TINY_GLYPHS))
    for plan in plans(part, wishes, tmp_path):
        assert (plan.settings is None) == bool(plan.row.not_run) == bool(plan.problem)
        if plan.settings is not None:
            make_method(plan.settings.method, **plan.settings.method_settings)
            assert plan.settings.training.keep == ("last" if part.base else "best-on-test")
            assert plan.differs[0].startswith("other data: glyphs")


def test_every_recipe_of_a_paper_is_used_somewhere() -> None:
    parts = [read_part(paper, name) for paper in known_papers() for name in known_parts(paper)]
    of_papers = {recipe for recipe in known_recipes() if not recipe_description(recipe).startswith("Tuned here")}
    assert {row.recipe for part in parts for row in part.rows} >= of_papers


def test_the_differences_of_recipes_are_those_of_the_docs() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([^`]+)` \|[^|]*\|[^|]*\| ([^|]*) \|$", text, re.MULTILINE)
    said = {recipe: sorted(re.split(r"[,;] ", words)) for recipe, words in rows}
    known = _known()
    assert said == {
        recipe: sorted(word.partition(":")[0] for word in words) for recipe, words in known["recipes"].items()
    }
    used = {word for words in known["recipes"].values() for word in words}
    assert used == set(known["words"]) and set(known["only"]) <= used and set(known["open"]) <= set(known["recipes"])


@pytest.mark.parametrize("recipe", known_recipes())
def test_whatever_a_recipe_calls_open_is_told(recipe: str) -> None:
    text = (ROOT / "src" / "nearkin" / "experiments" / "recipes" / f"{recipe}.toml").read_text(encoding="utf-8")
    told = " ".join(open_settings(recipe, besides=()))
    for line in text.splitlines():
        if re.search(r"#.*\bopen\b", line) and not line.startswith("#"):
            assert OPEN.match(line), f"write '# open; …' or '# …; open: what; …': {line}"
            assert line.partition("  # ")[0] in told
    if any(re.search(r"\bopen\b", line) for line in text.splitlines() if line.startswith("#")):
        known = _known()
        sentences = [*open_besides(recipe), *(known["words"][word] for word in known["recipes"][recipe])]
        assert any("open" in sentence for sentence in sentences)


def test_the_docs_list_every_table_and_figure() -> None:
    text = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\S+) (\S+)` \|", text, re.MULTILINE)
    assert sorted(listed) == [(paper, name) for paper in known_papers() for name in known_parts(paper)]


@pytest.mark.parametrize(
    ("paper", "name", "expected"),
    [
        ("ranks", "table-1", "paper 'ranks' is unknown; did you mean 'rank'?"),
        ("rank", "table1", "table or figure of rank 'table1' is unknown; did you mean 'table-1'?"),
        ("rank", "../magnet/table-4", "is unknown"),
    ],
)
def test_unknown_names_are_told_the_nearest(paper: str, name: str, expected: str) -> None:
    with pytest.raises(UserError, match=re.escape(expected)):
        read_part(paper, name)
