"""Publishes a finished comparison in the docs: its numbers, a figure of its learning curves, and its table.

    python benchmarks/publish.py runs/compare-photos photos

writes docs/results/photos.json and docs/images/photos.png, and prints the table. Paths of this machine are cut to their
last part.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path

from provenance import without_paths

from nearkin.experiments import ComparisonResult
from nearkin.experiments.comparison_plots import curves_figure, mean_curves
from nearkin.files import atomic_path, write_json

DOCS = Path(__file__).parent.parent / "docs"


def publish(folder: Path, name: str, docs: Path = DOCS) -> ComparisonResult:
    found = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    found["command"] = without_paths(found["command"])
    trials = folder / "tune" / "trials.json"
    if trials.is_file():
        found["tried"] = json.loads(trials.read_text(encoding="utf-8"))
    comparison = ComparisonResult(**{field.name: found[field.name] for field in fields(ComparisonResult)})
    write_json(docs / "results" / f"{name}.json", found)
    with atomic_path(docs / "images" / f"{name}.png") as partial:
        curves_figure(comparison, mean_curves(comparison)).savefig(partial, dpi=110)
    return comparison


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="output folder of `nearkin compare`")
    parser.add_argument("name", help="name of the files in docs/")
    arguments = parser.parse_args()
    print(publish(arguments.folder, arguments.name).markdown())


if __name__ == "__main__":
    main()
