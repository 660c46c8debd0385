"""Log messages of long tasks, such as the line after every epoch, on standard error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from nearkin.names import as_message
from nearkin.progress import is_main_process, is_quiet


def show_messages() -> None:
    """Shows nearkin's messages, unless the program has set up logging itself.

    Functions that users call do this, never an import. ``logging.getLogger("nearkin").setLevel("WARNING")`` silences
    all messages except warnings, before or after.
    """
    log = logging.getLogger("nearkin")
    if not log.hasHandlers():
        handler = StderrHandler()
        handler.addFilter(lambda _: not logging.getLogger().handlers)  # the program may set up logging later
        log.addHandler(handler)
        if log.level == logging.NOTSET:
            log.setLevel(logging.INFO if is_main_process() else logging.ERROR)


REPEATED = {"repeated": True}  # ``extra`` of a message that the runs of a comparison would repeat


@contextmanager
def without_repetition() -> Iterator[None]:
    """In this block, messages logged with ``extra=REPEATED`` are shown only the first time.

    >>> with without_repetition():
    ...     for _ in range(2):
    ...         logging.getLogger("nearkin").info("16 images", extra=REPEATED)
    """

    def is_new(record: logging.LogRecord) -> bool:
        if not getattr(record, "repeated", False):
            return True
        known = record.getMessage() in said
        said.add(record.getMessage())
        return not known

    said: set[str] = set()
    log = logging.getLogger("nearkin")
    log.addFilter(is_new)
    try:
        yield
    finally:
        log.removeFilter(is_new)


class StderrHandler(logging.Handler):
    """Writes to the current ``sys.stderr``, so that lines appear above a progress bar and not inside it."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or not is_quiet():
            print(as_message(self.format(record)), file=sys.stderr, flush=True)
