"""The provenance of a result: date, hardware, version and commit."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import date
from functools import cache
from pathlib import Path

import nearkin


def provenance(device: str = "auto") -> dict[str, str]:
    """Date, hardware, version, and the commit if nearkin runs from a checkout.

    >>> sorted(provenance("cpu"))[-3:]
    ['date', 'hardware', 'nearkin']
    """
    commit = _commit(Path(nearkin.__file__).parent)
    return {
        "date": date.today().isoformat(),
        "hardware": hardware(device),
        "nearkin": nearkin.__version__,
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


@cache
def _commit(package: Path) -> str | None:
    """The commit, such as ``237546a``, or ``237546a-dirty`` with changes; None outside of a checkout."""
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:  # installed inside another checkout
        return None
    return _git(package, "describe", "--always", "--dirty", "--exclude=*")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
