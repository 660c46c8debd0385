"""Checks of paths and names while options are parsed: torch takes seconds to import, a typing error takes none."""

from __future__ import annotations

from pathlib import Path


def existing_data(source: str | None) -> str | None:
    """Data that can be loaded, as far as its name says."""
    if source:
        from nearkin.data.sources import check_source

        check_source(source)
    return source


def existing_gallery(folder: Path) -> Path:
    """A folder that holds a gallery."""
    from nearkin.search.description import read_description

    read_description(folder.expanduser())
    return folder


def existing_files(paths: list[Path]) -> list[Path]:
    """Files or folders that exist."""
    from nearkin.errors import UserError

    if missing := next((path for path in paths if not path.expanduser().exists()), None):
        raise UserError(f"{missing}: no such file; fix this file or leave it out")
    return paths
