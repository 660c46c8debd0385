"""The provenance of a result: date, hardware, versions and commit.

Results may be made on a machine that has the files but not the repository. `note_commit` writes the commit to a file
before the files are copied.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from datetime import date
from functools import cache
from pathlib import Path

import nearkin
from nearkin.errors import UserError
from nearkin.files import write_text

PACKAGE = Path(nearkin.__file__).parent
NOTE = "COMMIT"  # beside src/; ignored by git
DIRTY = "-dirty"


def provenance(device: str = "auto") -> dict[str, str]:
    """Date, hardware, versions, and the commit if nearkin runs from a checkout or from a copy with a note.

    >>> sorted(provenance("cpu"))[-4:]
    ['date', 'hardware', 'nearkin', 'torch']
    """
    import torch

    commit = _own_commit()
    return {
        "date": date.today().isoformat(),
        "hardware": hardware(device),
        "nearkin": nearkin.__version__,
        "torch": torch.__version__,
        **({"commit": commit} if commit else {}),
    }


def hardware(device: str = "auto") -> str:
    """The name of the GPU if one is used, else of the processor, with its number of cores."""
    import torch

    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name()
    information = Path("/proc/cpuinfo")
    lines = information.read_text(encoding="utf-8").splitlines() if information.is_file() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor() or platform.machine())}, {os.cpu_count()} cores"


def commit_of(package: Path) -> str | None:
    """The commit of a package in src/, such as ``237546a``, or ``237546a-dirty`` with changes; None if unknown."""
    in_git, noted = _commit_in_git(package), _noted_commit(package)
    # Files may be copied over an older checkout: git calls them changed, and the note knows better.
    knows_better = noted is not None and not noted.endswith(DIRTY)
    return noted if in_git is None or (in_git.endswith(DIRTY) and knows_better) else in_git


def note_commit(package: Path = PACKAGE) -> Path:
    """Writes the commit, and a digest of the files that it belongs to, to the file COMMIT beside src/."""
    commit = _commit_in_git(package)
    if commit is None:
        raise UserError(f"{_root(package)} is not a git checkout of nearkin; note the commit before copying the files")
    file = _root(package) / NOTE
    write_text(file, f"{commit} {_digest(package)}\n")
    return file


@cache
def _own_commit() -> str | None:
    return commit_of(PACKAGE)


def _commit_in_git(package: Path) -> str | None:
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:  # installed inside another checkout
        return None
    return _git(package, "describe", "--always", f"--dirty={DIRTY}", "--exclude=*")


def _noted_commit(package: Path) -> str | None:
    file = _root(package) / NOTE
    words = file.read_text(encoding="utf-8").split() if file.is_file() else []
    if len(words) != 2:
        return None
    commit, digest = words
    return commit if digest == _digest(package) else commit.removesuffix(DIRTY) + DIRTY


def _root(package: Path) -> Path:
    return package.parents[1]


def _digest(package: Path) -> str:
    """Changes with the code of the package or of a benchmark, and with a recipe or a paper's table."""
    found = hashlib.sha256()
    for folder in (package, _root(package) / "benchmarks"):
        for file in sorted(file for file in folder.rglob("*") if file.suffix in (".py", ".toml")):
            found.update(f"{file.relative_to(_root(package)).as_posix()}\0".encode() + file.read_bytes())
    return found.hexdigest()


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
