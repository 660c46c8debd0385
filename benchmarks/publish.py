"""Publishes a finished comparison in the docs: its numbers, a figure of its learning curves, and its table.

    python benchmarks/publish.py runs/compare-photos photos

writes docs/results/photos.json and docs/images/photos.png, and prints the table. Paths of this machine are cut to their
last part. ``--add`` keeps the rows that the file already has, which another machine may have trained.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from provenance import without_paths

from nearkin.experiments import ComparisonResult
from nearkin.experiments.comparison_plots import curves_figure, mean_curves
from nearkin.files import atomic_path, write_json

DOCS = Path(__file__).parent.parent / "docs"


def publish(folder: Path, name: str, docs: Path = DOCS, add: bool = False) -> ComparisonResult:
    found = read(folder / "comparison.json")
    found["command"] = without_paths(found["command"])
    trials, file = folder / "tune" / "trials.json", docs / "results" / f"{name}.json"
    if trials.is_file():
        found["tried"] = read(trials)
    if add and file.is_file():
        found = added(read(file), found)
    comparison = ComparisonResult(**{field.name: found[field.name] for field in fields(ComparisonResult)})
    write_json(file, found)
    with atomic_path(docs / "images" / f"{name}.png") as partial:
        curves_figure(comparison, mean_curves(comparison)).savefig(partial, dpi=110)
    return comparison


def added(before: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The rows of two comparisons with the same protocol and number of trials; the later ones replace earlier ones."""
    for same in ("protocol", "trials", "tuning_epochs"):
        if before[same] != found[same]:
            raise SystemExit(f"the rows differ in {same}: {before[same]} and {found[same]}")
    joined = {name: before[name] | found[name] for name in found if isinstance(found[name], dict) and name != "made"}
    made = {name: ", ".join(dict.fromkeys([before["made"][name], found["made"][name]])) for name in found["made"]}
    return found | joined | {"made": made, "command": f"{before['command']}; {found['command']}"}


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
