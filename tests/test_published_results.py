"""The tables of docs/results.md are those of the raw numbers beside it."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nearkin.compare import Comparison

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")
COMPARISONS = ("cub", "cars", "flowers", "cub-paper", "cub-tuned", "cub-head")


def raw(name: str) -> dict[str, Any]:
    return dict(json.loads((DOCS / f"results/{name}.json").read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", COMPARISONS)
def test_a_comparison_stands_there_as_it_was_measured(name: str) -> None:
    found = raw(name)
    table = Comparison(**{field.name: found[field.name] for field in fields(Comparison)}).markdown().split("\n\n")[0]
    assert table in PAGE
    assert f"results/{name}.json" in PAGE and f"images/{name}.png" in PAGE
    assert all(found["made"][what] for what in ("date", "hardware", "commit")) and found["command"]


def test_which_method_sums_up_the_comparisons() -> None:
    columns = [raw("methods")["table"], *(raw(name)["scores"] for name in ("cub", "cub-tuned", "cars", "flowers"))]
    rows = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", PAGE.partition("## Which method?")[2].partition("\n## ")[0], re.M)
    scores = np.array([[100 * np.mean(column[method]["map@r"]) for column in columns] for method, _ in rows])
    places = (scores[None] > scores[:, None]).sum(1).mean(1) + 1
    for (_, cells), row, place in zip(rows, scores, places, strict=True):
        assert [float(cell.strip("* ")) for cell in cells.split("|")] == pytest.approx([*row, place], abs=0.0501)
    assert len(rows) == 8 and (np.diff(places) >= 0).all()


def test_every_picture_and_file_of_the_page_is_there() -> None:
    for place in re.findall(r"\]\(((?:images|results)/[^)]+)\)", PAGE):
        assert (DOCS / place).is_file(), place
