"""The wheel holds everything: installed alone, it runs the demo outside the repository."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_a_built_wheel_runs_the_demo(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("nearkin-*.whl")
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)  # as pip installs a wheel of pure Python, but faster
    # What is on this path wins over the repository's own package.
    environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}
    where = "import nearkin, sys; sys.stdout.write(nearkin.__file__)"
    found = subprocess.run([sys.executable, "-c", where], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert Path(found.stdout).is_relative_to(installed)
    demo = ["demo", "--epochs", "1", "--data", "glyphs:classes=16,per_class=6", "--out", "demo"]
    outcome = subprocess.run(
        [sys.executable, "-m", "nearkin", *demo], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert outcome.returncode == 0, outcome.stderr
    assert "Recall@1" in outcome.stdout
    listed = subprocess.run(
        [sys.executable, "-m", "nearkin", "recipes"], env=environment, cwd=tmp_path, capture_output=True, text=True
    )
    assert "cub200/rank" in listed.stdout
