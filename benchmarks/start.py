"""How long the command line takes to start, in CPU seconds: a busy machine changes these less than the clock.

    OMP_NUM_THREADS=1 python benchmarks/start.py

    train, first step   from `nearkin train` on 64 small JPEGs to the end of the first step, with evaluations before it
    search, answer      `nearkin search` for one JPEG in a gallery of these 64
    … does not exist    until the error message

The smallest of several runs is shown. torch's own import is the floor of the first two.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

COMMAND = "from nearkin.__main__ import main; main()"
FIRST_STEP = """
import os
from nearkin.training.loop import Trainer
step = Trainer._step
Trainer._step = lambda *given: (step(*given), os._exit(0))
"""


def seconds(code: str, arguments: list[str], expected: int = 0) -> float:
    """The CPU seconds of a Python process and its children."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != expected:
        raise SystemExit(f"{arguments} ended with {process.returncode}; run it to see why")
    return usage.ru_utime + usage.ru_stime


def make_photos(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(64):
        path = folder / str(number // 8) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled modules are part of a warm cache
    with tempfile.TemporaryDirectory() as scratch:
        os.chdir(scratch)
        make_photos(Path("photos"))
        options = ["--backbone", "small", "--weights", "none", "--set", "image_size=32", "--set", "workers=0"]
        train = ["train", "photos", "--set", "batch_size=16", "--logger", "none", *options]
        seconds(COMMAND, [*train, "--epochs", "1", "--out", "run"])
        seconds(COMMAND, ["index", "run", "photos", "--out", "gallery"])
        print("| | CPU s |\n|---|--:|")
        rows: list[tuple[str, str, list[str], int]] = [
            ("import torch", "import torch", [], 0),
            ("nearkin --help", COMMAND, ["--help"], 0),
            ("train, first step", FIRST_STEP + COMMAND, train, 0),
            ("train, folder does not exist", COMMAND, ["train", "nowhere"], 1),
            ("search, answer", COMMAND, ["search", "gallery", "photos/0/0.jpg"], 0),
            ("search, gallery does not exist", COMMAND, ["search", "nowhere", "photos/0/0.jpg"], 1),
            ("search, query does not exist", COMMAND, ["search", "gallery", "nowhere.jpg"], 1),
            ("index, folder does not exist", COMMAND, ["index", "run", "nowhere"], 1),
        ]
        for name, code, arguments, expected in rows:
            best = min(seconds(code, arguments, expected) for _ in range(repeats))
            print(f"| {name} | {best:.2f} |", flush=True)


if __name__ == "__main__":
    main()
