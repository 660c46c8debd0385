"""Nothing that was saved is ever damaged by a write that fails."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from nearkin.errors import UserError
from nearkin.files import atomic_path, write_json, write_text


def test_a_failed_write_leaves_the_old_file_and_no_rubbish(tmp_path: Path) -> None:
    target = tmp_path / "x.txt"
    write_text(target, "old")
    with pytest.raises(RuntimeError), atomic_path(target) as partial:
        partial.write_text("half of the n")
        raise RuntimeError
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


WRITERS = {
    "text": "from nearkin.files import write_text; write_text(target, 'x' * 5000)",
    "a checkpoint": (
        "import torch; from nearkin.training.checkpoint import Position, save_checkpoint; "
        "save_checkpoint(target, Position(), {'model': torch.nn.Linear(50, 50)})"
    ),
    "a model": (
        "from nearkin.models import Embedder, EmbeddingModel, ModelSpec; "
        "Embedder(EmbeddingModel(ModelSpec('linear', 50, features=50))).save(target.parent)"
    ),
    "vectors": (
        "import numpy as np; from nearkin.files import atomic_path\n"
        "    with atomic_path(target) as partial: np.savez(partial, x=np.zeros((50, 50)))"
    ),
}


@pytest.mark.parametrize("what", WRITERS)
def test_a_full_disk_is_one_sentence_and_harms_nothing(tmp_path: Path, what: str) -> None:
    """A limit on file size makes the operating system refuse the write, as a full disk does."""
    target = tmp_path / ("model.safetensors" if what == "a model" else "x.npz")
    write_json(target, {"kept": True})
    before = target.read_text()
    code = (
        "import resource, signal, pathlib\n"
        "from nearkin.errors import UserError\n"
        f"target = pathlib.Path({str(target)!r})\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "try:\n"
        f"    {WRITERS[what]}\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(f"could not write {target}: file too large; what was saved before is unharmed")
    assert target.read_text() == before
    assert list(tmp_path.iterdir()) == [target]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"could not write .*: (not a directory|file exists); choose another place"):
        write_text(tmp_path / "file" / "x.txt", "")


def test_files_get_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_text(tmp_path / "x", "")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode
