"""Publishes a finished comparison in the docs: its numbers, a figure of its learning curves, and its table.

    python benchmarks/publish.py runs/compare-photos photos

writes docs/results/photos.json and docs/images/photos.png, and prints the table. Paths of this machine are cut to their
last part. ``--add`` keeps the rows that the file already has, which another machine may have trained.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import fields
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from provenance import without_paths

from nearkin.experiments import ComparisonResult
from nearkin.experiments.comparison_plots import curves_figure, mean_curves
from nearkin.experiments.comparison_result import by_falling_map_at_r
from nearkin.files import atomic_path, write_json

DOCS = Path(__file__).parent.parent / "docs"
BY_ROW = ("scores", "refused", "chosen", "concatenated", "seconds", "curves", "read_outs", "tried")
SAME: dict[str, Callable[[dict[str, Any]], Any]] = {
    "protocol": itemgetter("protocol"),
    "trials": itemgetter("trials"),
    "epochs of tuning": lambda found: found.get("tuning_epochs", 0),
    "seeds": lambda found: {len(scores["map@r"]) for scores in found["scores"].values()},
    "settings": lambda found: set(re.findall(r"--set (?!root=|weights=)(\S+)", found["command"])),
}
SAME_BACKBONE = 0.005  # a GPU and a CPU differ by less


def publish(folder: Path, name: str, docs: Path = DOCS, add: bool = False) -> ComparisonResult:
    if not (folder / "comparison.json").is_file():
        raise SystemExit(f"{folder} has no comparison.json: it is not a finished comparison")
    found = read(folder / "comparison.json")
    found["command"] = without_paths(found["command"])
    trials, file = folder / "tune" / "trials.json", docs / "results" / f"{name}.json"
    if trials.is_file():
        compared = {*found["scores"], *found["refused"]}
        found["tried"] = {row: of for row, of in read(trials).items() if row in compared}
    if add and file.is_file():
        found = added(read(file), found)
    comparison = ComparisonResult(**{field.name: found[field.name] for field in fields(ComparisonResult)})
    write_json(file, found)
    with atomic_path(docs / "images" / f"{name}.png") as partial:
        curves_figure(comparison, mean_curves(comparison)).savefig(partial, dpi=110)
    return comparison


def added(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The rows of two comparisons; where both have a row, that of the second.

    The backbone's scores tell whether they had the same data, image size and backbone.
    """
    backbones = [list(each["backbone"].values()) for each in (before, found)]
    if not np.allclose(*backbones, atol=SAME_BACKBONE):
        raise SystemExit(f"the scores of the backbone alone differ: {before['backbone']} and {found['backbone']}")
    for what, of in SAME.items():
        if of(before) != of(found):
            raise SystemExit(f"the rows differ in {what}: {of(before)} and {of(found)}")
    again = {*found["scores"], *found["refused"]}
    names = [name for name in BY_ROW if name in before or name in found]
    joined = {name: _without(before.get(name, {}), again) | found.get(name, {}) for name in names}
    made = {name: _once(before["made"].get(name, value), value) for name, value in found["made"].items()}
    command = _once(before["command"], found["command"])
    return found | joined | {"scores": by_falling_map_at_r(joined["scores"]), "made": made, "command": command}


def _without(table: dict[str, Any], rows: set[str]) -> dict[str, Any]:
    """Read-outs and concatenated models have names such as "spectral, with SC"."""
    return {name: value for name, value in table.items() if name not in rows and name.rpartition(", ")[0] not in rows}


def _once(*values: str) -> str:
    return "; ".join(dict.fromkeys("; ".join(values).split("; ")))


def read(file: Path) -> dict[str, Any]:
    return dict(json.loads(file.read_text(encoding="utf-8")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output folder of `nearkin compare`")
    parser.add_argument("name", help="name of the files in docs/")
    parser.add_argument("--add", action="store_true", help="keep the rows that are there")
    arguments = parser.parse_args()
    print(publish(arguments.folder, arguments.name, add=arguments.add).markdown())


if __name__ == "__main__":
    main()
