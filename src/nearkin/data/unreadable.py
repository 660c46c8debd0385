"""Before any work starts: which images cannot be read."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from nearkin.data.dataset import Dataset
from nearkin.data.decoders import DecoderPool
from nearkin.data.images import Unreadable
from nearkin.data.items import ImageFiles, LazyImages
from nearkin.data.summary import counted
from nearkin.errors import UserError, unknown_name
from nearkin.files import cache_folder, write_text
from nearkin.progress import track

ON_UNREADABLE = ("skip", "stop")


def without_unreadable(dataset: Dataset, action: str = "skip") -> tuple[Dataset, list[Unreadable]]:
    """The dataset without the image files that cannot be decoded, and the list of those.

    ``action="stop"`` raises instead, with all of them in one message. An object that cannot give one of its items, such
    as a torch dataset, is always refused: an error of a program should be mended, not passed over.
    """
    if action not in ON_UNREADABLE:
        raise unknown_name("action for unreadable images", action, ON_UNREADABLE)
    if isinstance(dataset.items, LazyImages):
        check_all(dataset.items)
    if not isinstance(dataset.items, ImageFiles):
        return dataset, []
    found = find_unreadable(dataset.items)
    if not found:
        return dataset, []
    if action == "stop" or len(found) == len(dataset):
        raise UserError(
            f"{len(found)} of {len(dataset)} images cannot be read; mend or remove them, "
            f'or go on without them (unreadable="skip"):\n  {listed(found)}'
        )
    bad = {unreadable.path for unreadable in found}
    readable = dataset.where(np.array([path not in bad for path in dataset.items.paths]))
    note = f"ignored {counted(len(found), 'image')} that cannot be read"
    return replace(readable, notes=(*dataset.notes, note)), found


def find_unreadable(files: ImageFiles, remember: bool = True) -> list[Unreadable]:
    """Decodes every file once, under the limits of `DecoderPool`, and lists those that cannot be read.

    Args:
        remember: keeps a mark in the cache when all files are readable, and skips the check until one changes.
    """
    mark = _mark(files) if remember else None  # taken first, in case a file changes meanwhile
    if mark and mark.exists():
        return []
    found = [verdict for verdict in track(_verdicts(files), "checking images", len(files)) if verdict]
    if mark and not found:
        _write(mark)
    return found


def check_all(items: LazyImages) -> None:
    """Reads every item once; raises the first error. As with files, success is remembered."""
    from nearkin.data.loader import each_item  # imported here because torch is slow to load

    mark = _mark(items)
    if not mark.exists():
        each_item(items.check, len(items), "checking images")
        _write(mark)


def remember_readable(items: LazyImages) -> None:
    """Spares items that were all read for another reason the check."""
    _write(_mark(items))


def listed(unreadable: list[Unreadable], most: int = 100) -> str:
    """One line each, and how many more there are."""
    lines = [str(each) for each in unreadable[:most]]
    if len(unreadable) > most:
        lines.append(f"… and {len(unreadable) - most:,} more")
    return "\n  ".join(lines)


def _mark(items: ImageFiles | LazyImages) -> Path:
    return cache_folder() / "readable" / items.fingerprint()


def _write(mark: Path) -> None:
    with suppress(UserError):  # without a cache the check is only repeated
        write_text(mark, "")


def _verdicts(files: ImageFiles) -> Iterator[Unreadable | None]:
    """By the function that reads them later, but under limits: who reads a file that passed needs none."""
    decoders = DecoderPool()
    with ThreadPoolExecutor(decoders.workers) as threads, decoders:
        yield from threads.map(decoders.check, files.paths)
