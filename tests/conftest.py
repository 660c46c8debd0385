"""Shared fixtures: a separate cache, tiny datasets, the command as a function."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image

from nearkin import _torchvision  # noqa: F401 (before any test imports timm)

# The same examples every time, so that tests do not pass or fail by chance. EXPLORE=1 draws new ones.
settings.register_profile("steady", derandomize=not os.environ.get("EXPLORE"))
settings.load_profile("steady")

pytest_plugins = ["serve.fixtures"]

TINY_GLYPHS = "glyphs:classes=12,per_class=8,size=16"


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    os.environ["NEARKIN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    # One thread: as fast for tiny networks, much faster on a busy machine, and the same bits here and in commands.
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    logging.getLogger("nearkin").setLevel(logging.INFO)
    yield


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder of six classes with six small images each; every class has its own brightness."""
    rng = np.random.default_rng(0)
    for label in range(6):
        folder = tmp_path / "photos" / f"class{label}"
        folder.mkdir(parents=True)
        for number in range(6):
            pixels = np.full((24, 20, 3), 40 * label, dtype=np.uint8) + rng.integers(0, 12, (24, 20, 3), dtype=np.uint8)
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{number}.png")
    return tmp_path / "photos"


@pytest.fixture
def vectors(tmp_path: Path) -> str:
    return vectors_in(tmp_path)


def vectors_in(folder: Path) -> str:
    """A file of feature vectors: 24 overlapping classes of eight items."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(24), 8)
    np.savez(folder / "x.npz", vectors=rng.normal(size=(24, 6))[labels] + rng.normal(size=(192, 6)), labels=labels)
    return str(folder / "x.npz")


@pytest.fixture
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes what a test registers after the test."""
    from nearkin.data.benchmarks import registry as benchmarks
    from nearkin.evaluation import metrics
    from nearkin.losses import registry as losses
    from nearkin.methods import base as methods
    from nearkin.models.backbones import registry as backbones

    monkeypatch.setenv("NEARKIN_IMPORT", "")
    for module, name in (
        (benchmarks, "_registry"),
        (metrics, "_metrics"),
        (losses, "_LOSSES"),
        (methods, "_registry"),
        (backbones, "_BACKBONES"),
    ):
        monkeypatch.setattr(module, name, dict(getattr(module, name)))


@dataclass
class Outcome:
    """The result of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def nearkin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in an empty folder, as a user would: ``nearkin("train", "photos")``."""
    from nearkin import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> Outcome:
        monkeypatch.setattr("sys.argv", ["nearkin", *map(str, arguments)])
        capsys.readouterr()
        code = 0
        try:
            cli.main()
        except SystemExit as exit:
            code = int(exit.code or 0)
        finally:  # a stopped command leaves the default handlers behind
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
