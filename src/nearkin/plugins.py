"""Imports a user's own Python files, which register the methods, losses, metrics and backbones they define."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from nearkin.errors import UserError

_NAMED = "NEARKIN_IMPORT"  # tells worker processes what their parent imported


def import_files(files: Iterable[str | Path]) -> None:
    """Imports Python files, in this process and in worker processes started later.

    >>> import_files(["my_method.py"])  # doctest: +SKIP
    """
    paths = [Path(file).expanduser().absolute() for file in files]
    for path in paths:
        name = f"nearkin_import_{path.stem}"
        spec = spec_from_file_location(name, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise UserError(
                f"{path} is not a Python file; pass one that registers methods, losses, metrics or backbones"
            )
        module = module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"{path} could not be imported ({type(error).__name__}: {error}); fix the file") from error
    if paths:
        known = filter(None, os.environ.get(_NAMED, "").split(os.pathsep))
        os.environ[_NAMED] = os.pathsep.join(dict.fromkeys([*known, *map(str, paths)]))


def import_as_parent() -> None:
    """In a worker process: imports the files that its parent imported."""
    import_files(filter(None, os.environ.get(_NAMED, "").split(os.pathsep)))
