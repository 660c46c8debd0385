"""The file that describes a gallery; without torch, so that commands can say at once that a gallery does not exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nearkin.errors import UserError
from nearkin.files import read_json

FORMAT = 1
DESCRIPTION = "gallery.json"


def read_description(folder: Path) -> dict[str, Any]:
    """Returns the gallery's format, dimension, digest of the model, and address of the store."""
    file = folder / DESCRIPTION
    if (folder / "model").is_symlink():
        raise UserError(f"{folder / 'model'} is a link, which nearkin does not follow; replace it with a copy")
    if not file.is_file():
        raise UserError(f"{folder} is not a gallery ({DESCRIPTION} is missing); index images to create one")
    try:
        description = dict(read_json(file))
        newer = type(description["format"]) is int and description["format"] > FORMAT
        kinds = [type(description.get(name)) for name in ("format", "dim", "model", "store")]
        if not newer and (kinds != [int, int, str, str] or not description["store"].isprintable()):
            raise ValueError("it does not describe a gallery")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{file} cannot be read ({error}); index again into another folder") from error
    if newer:
        raise UserError(
            f"{folder} was made by a newer version of nearkin (format {description['format']}; this version reads up "
            f"to {FORMAT}); upgrade nearkin"
        )
    return description
