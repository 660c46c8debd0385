"""What many tests share: a cache of their own, tiny datasets, the command as a function."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from nearkin import _torchvision  # noqa: F401 (before any test imports timm)

TINY_GLYPHS = "glyphs:classes=12,per_class=8,size=16"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["NEARKIN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    # One thread: as fast for tiny networks, much faster beside other work, and the same bits here and in commands.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    logging.getLogger("nearkin").setLevel(logging.INFO)
    yield


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of six classes with six small coloured images each; a class has its own hue."""
    rng = np.random.default_rng(0)
    for label in range(6):
        folder = tmp_path / "photos" / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(6):
            pixels = np.full((24, 20, 3), 40 * label, dtype=np.uint8) + rng.integers(0, 12, (24, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "photos"


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def nearkin(tmp_path: Path) -> Command:
    """Runs the command in an empty folder, as a user would: ``nearkin("train", "photos")``."""

    def run(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "nearkin", *map(str, arguments)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            **options,  # type: ignore[call-overload]
        )

    return run
