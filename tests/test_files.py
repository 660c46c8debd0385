"""A failed write never damages a saved file."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from reference.untrained import save_untrained

from nearkin.errors import UserError
from nearkin.files import (
    atomic_path,
    check_regular,
    open_lock,
    open_regular,
    read_json,
    read_text,
    sweep,
    write_json,
    write_text,
)
from nearkin.training import Run


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
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
def test_a_full_disk_gives_one_sentence_and_damages_nothing(tmp_path: Path, what: str) -> None:
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
    assert done.stdout.startswith(f"could not write {target}: file too large; files that were saved earlier are intact")
    assert target.read_text() == before
    assert list(tmp_path.iterdir()) == [target]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_read_only_folder_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"could not write .*: (not a directory|file exists); choose another folder"):
        write_text(tmp_path / "file" / "x.txt", "")


def test_files_get_ordinary_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    write_text(tmp_path / "x", "")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    """A FIFO would block for ever."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "socket-like").symlink_to("/dev/zero")
    for name in ("fifo", "socket-like"):
        for opened in (open_regular, check_regular, read_json):
            with pytest.raises(OSError, match=r"not a regular file|a symbolic link"):
                opened(tmp_path / name)
    with pytest.raises(OSError):
        open_lock(tmp_path / "fifo-not-there" / "x")
    with pytest.raises(OSError, match="not a regular file"):
        open_lock(tmp_path / "fifo")


def test_links_are_followed_only_in_trusted_folders(tmp_path: Path) -> None:
    write_json(tmp_path / "real.json", {})
    (tmp_path / "link.json").symlink_to("real.json")
    assert open_regular(tmp_path / "link.json").read() == b"{}\n"
    with pytest.raises(OSError, match="a symbolic link, which is not followed here"):
        read_json(tmp_path / "link.json")
    with pytest.raises(OSError):
        open_lock(tmp_path / "link.json")


@pytest.mark.parametrize("content", ["[" * 100_000, " " * (16 * 2**20 + 1), "\xff"])
def test_invalid_json_is_a_value_error(tmp_path: Path, content: str) -> None:
    (tmp_path / "x.json").write_text(content, encoding="latin-1")
    with pytest.raises(ValueError):
        read_json(tmp_path / "x.json")


def test_text_that_is_not_utf_8_gives_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_bytes(b"caf\xe9")
    with pytest.raises(UserError, match=r"notes\.txt is not valid UTF-8"):
        read_text(tmp_path / "notes.txt")


def test_unfinished_files_of_killed_processes_are_swept_and_those_of_running_ones_are_not(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys; from nearkin.files import atomic_path, unfinished_folder\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "with unfinished_folder(folder / 'got.index'), atomic_path(folder / 'README.md'):\n"
        "    print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        written = {path.name.rpartition("-")[0] for path in tmp_path.iterdir()}
        assert written == {".nearkin-got.index", ".nearkin-README"}
        sweep(tmp_path)
        assert len(list(tmp_path.iterdir())) == 2
        process.kill()
    (tmp_path / ".README-mine.md").touch()
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".README-mine.md"]


def test_opening_a_run_and_saving_a_model_sweep_their_folders(tmp_path: Path) -> None:
    run = Run(tmp_path)
    folders = (run.folder, run.model_folder, run.checkpoint_file.parent)
    for folder in folders:
        folder.mkdir(exist_ok=True)
        (folder / ".nearkin-x-12345678.json").touch()
    run.config_file.touch()
    Run.open(tmp_path)
    assert [path.name for folder in folders for path in folder.glob(".*")] == []
    (run.model_folder / ".nearkin-README-12345678.md").touch()
    save_untrained(run.model_folder)
    assert not [*run.model_folder.glob(".*")]
