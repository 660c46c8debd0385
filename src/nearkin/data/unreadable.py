"""Finds images that cannot be read, before any work starts."""

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
    """Returns the dataset without the image files that cannot be decoded, and a list of those files.

    ``action="stop"`` raises instead and lists them in one message. An object that cannot return one of its items, such
    as a torch dataset, is always refused: an error in code should be fixed, not skipped.
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
            f"{len(found)} of {len(dataset)} images cannot be read; fix or remove them, "
            f'or continue without them (unreadable="skip"):\n  {listed(found)}'
        )
    bad = {unreadable.path for unreadable in found}
    readable = dataset.where(np.array([path not in bad for path in dataset.items.paths]))
    note = f"ignored {counted(len(found), 'image')} that cannot be read"
    return replace(readable, notes=(*dataset.notes, note)), found


def find_unreadable(files: ImageFiles, remember: bool = True) -> list[Unreadable]:
    """Decodes every file once, under the limits of `DecoderPool`, and lists those that cannot be read.

    Failures are never cached: their cause may lie outside the files.

    Args:
        remember: if all files can be read, cache the result until a file changes.
    """
    mark = _mark(files) if remember else None  # taken first, in case a file changes meanwhile
    if mark and mark.exists():
        return []
    found = [verdict for verdict in track(_verdicts(files), "checking images", len(files)) if verdict]
    if mark and not found:
        _write(mark)
    return found


def check_all(items: LazyImages) -> None:
    """Reads every item once and raises the first error. Success is cached, as for files."""
    from nearkin.data.loader import each_item  # here: torch is slow to import

    mark = _mark(items)
    if not mark.exists():
        each_item(items.check, len(items), "checking images")
        _write(mark)


def mark_readable(items: LazyImages) -> None:
    """Marks items as readable after they have all been read, so that they need no check."""
    _write(_mark(items))


def listed(unreadable: list[Unreadable], most: int = 100) -> str:
    """Lists them, one per line, and the number of those left out."""
    lines = [str(each) for each in unreadable[:most]]
    if len(unreadable) > most:
        lines.append(f"… and {len(unreadable) - most:,} more")
    return "\n  ".join(lines)


def _mark(items: ImageFiles | LazyImages) -> Path:
    return cache_folder() / "readable" / items.fingerprint()


def _write(mark: Path) -> None:
    with suppress(UserError):  # without a cache, the check is repeated next time
        write_text(mark, "")


def _verdicts(files: ImageFiles) -> Iterator[Unreadable | None]:
    """Checks each file under limits with the function that reads it later, which then needs no limits."""
    decoders = DecoderPool()
    with ThreadPoolExecutor(decoders.workers) as threads, decoders:
        yield from threads.map(decoders.check, files.paths)
