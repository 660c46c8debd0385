"""Log messages of long tasks, such as the line after every epoch, on standard error."""

from __future__ import annotations

import logging
import sys

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


class StderrHandler(logging.Handler):
    """Writes to the current ``sys.stderr``, so that lines appear above a progress bar and not inside it."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or not is_quiet():
            print(as_message(self.format(record)), file=sys.stderr, flush=True)
