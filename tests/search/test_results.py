"""Results as text and as JSON."""

from __future__ import annotations

import json
import math
from pathlib import Path

from nearkin.data.images import Unreadable
from nearkin.search import Calibration, Entry, Hit, IndexResult, MatchResult, SearchResult

HITS = [Hit(3, Entry("/photos/1.jpg", "rose", 0, 0), 0.25), Hit(10, Entry("/[x]/2.jpg", "", 0, 0), 1.5)]
CALIBRATION = Calibration(0.5, 0.05, 0.9, 0.97, 2000)


def test_a_search_prints_as_a_table_and_lists_its_columns() -> None:
    result = SearchResult("a.jpg", HITS)
    rows = [line.split() for line in str(result).splitlines()]
    assert rows[0] == ["a.jpg"] and rows[2:] == [
        ["1", "0.2500", "rose", "/photos/1.jpg"],
        ["2", "1.5000", "/[x]/2.jpg"],
    ]
    assert (result.paths, result.labels) == (["/photos/1.jpg", "/[x]/2.jpg"], ["rose", ""])
    assert result.distances == [0.25, 1.5] and list(result) == HITS and len(result) == 2
    assert str(SearchResult("a.jpg", [])).splitlines() == ["a.jpg", "rank  distance  label  path"]


def test_a_match_has_its_label_or_is_unknown() -> None:
    known, unknown = (MatchResult("a.jpg", label, 0.2, 0.75, HITS, CALIBRATION) for label in ("rose", None))
    assert str(known) == "a.jpg: rose (75% of the votes, distance 0.2000)"
    assert str(unknown) == "a.jpg: unknown (75% of the votes, distance 0.2000)"


def test_results_are_plain_json() -> None:
    found = json.loads(json.dumps(SearchResult("a.jpg", HITS).to_dict(), allow_nan=False))
    first = {"id": 3, "path": "/photos/1.jpg", "label": "rose", "distance": 0.25}
    assert found["query"] == "a.jpg" and found["hits"][0] == first and len(found["hits"]) == 2
    nobody = MatchResult("a.jpg", None, math.inf, 0.0, HITS, CALIBRATION)
    matched = json.loads(json.dumps(nobody.to_dict(), allow_nan=False))
    assert matched["label"] is None and matched["distance"] is None and matched["threshold"] == 0.5


def test_a_calibration_prints_its_error_rates() -> None:
    said = str(CALIBRATION)
    assert "unknown above distance 0.5000" in said and "5.0% of unknown images and 90.0% of known ones" in said
    assert "97.0% of these with the right label (measured on 2,000" in said


def test_an_index_result_lists_a_limited_number_of_problem_files() -> None:
    unreadable = [Unreadable(Path(f"{number}.jpg"), "cut off") for number in range(30)]
    result = IndexResult(added=3, total=3, missing=["/gone.jpg"] * 21, unreadable=unreadable, searched="Exactly.")
    lines = str(result).splitlines()
    assert lines[0] == "3 items: 3 added" and lines[-1] == "Exactly."
    assert "  19.jpg: cut off" in lines and "  … and 10 more" in lines and lines.count("  /gone.jpg") == 20
    assert "prune to remove them" in str(result) and "  … and 1 more" in lines
