"""How the numbers of a benchmark were made: date, hardware, versions, commit and command, for its JSON file.

    python benchmarks/provenance.py     # writes COMMIT, before the files are copied to a machine without the repository

A copy reads its commit from that file. If its code has changed since, the commit ends in "-dirty".
"""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from nearkin.experiments.provenance import note_commit, provenance


def made(device: str = "auto") -> dict[str, str]:
    """The provenance of the running script."""
    return {**provenance(device), "command": command()}


def command() -> str:
    """The command that was typed, without paths of this machine."""
    return without_paths(shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]))


def without_paths(text: str) -> str:
    """Cuts absolute paths to their last part.

    >>> without_paths("python benchmarks/defaults.py --data /home/me/data --out=/tmp/x.json")
    'python benchmarks/defaults.py --data data --out=x.json'
    """
    return re.sub(r"(?<![^\s=])/(?:[^/\s=]+/)*([^/\s=]+)", r"\1", text)


if __name__ == "__main__":
    print(note_commit())
