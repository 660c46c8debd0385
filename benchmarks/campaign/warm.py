"""Warms up the process that all workers are forked from: makes the specimens and runs the commands of the cases once.

Workers then start quickly, and no case includes the time to import libraries and compile.
"""

from __future__ import annotations

import logging
import os
import shutil
import sys
from pathlib import Path

from benchmarks.campaign.worker import Sandbox

FOLDER = "NEARKIN_CAMPAIGN"  # environment variable with the folder of the campaign


def warm_up(folder: Path) -> None:
    sandbox = Sandbox(folder / "warm", folder / "specimens")
    sys.path.insert(0, str(Path(__file__).parents[2]))  # was the current folder, which changes now
    sandbox.prepare()
    sandbox.fresh()

    from benchmarks.campaign import galleries, images, requests, runs  # noqa: F401 (requests only needs the import)
    from benchmarks.campaign.specimens import make_specimens

    logging.getLogger("nearkin").setLevel(logging.ERROR)
    make_specimens(sandbox.specimens)
    specimens, photo = sandbox.specimens, sandbox.specimens / "photos" / "class0" / "1.png"
    images.read_every_way(photo)
    for run, data in (("run", "photos"), ("vectors-run", "vectors.npz")):
        shutil.copytree(specimens / run, sandbox.out / run)
        sandbox.nearkin("evaluate", specimens / run)
        sandbox.nearkin("resume", sandbox.out / run, "--epochs", "2")
        runs.report(sandbox, specimens / run)
        runs.embed(sandbox, specimens / run, specimens / data)
    shutil.copytree(specimens / "gallery", sandbox.out / "gallery")
    galleries.browse(sandbox.out / "gallery")
    galleries.add_index(sandbox.out / "gallery")
    galleries.with_index(True, lambda: sandbox.nearkin("match", sandbox.out / "gallery", photo))
    sandbox.nearkin("search", sandbox.out / "gallery", photo, "--figure", sandbox.out / "found.png")


if FOLDER in os.environ:
    warm_up(Path(os.environ[FOLDER]))
