"""Messages of long work, such as the line after every epoch, on standard error."""

from __future__ import annotations

import logging
import sys

from nearkin.names import as_message
from nearkin.progress import is_quiet, speaks


def show_messages() -> None:
    """Shows nearkin's messages, unless the program has set up logging itself.

    Called by what a user calls, never by an import. ``logging.getLogger("nearkin").setLevel("WARNING")`` silences
    messages but for warnings, before or after.
    """
    log = logging.getLogger("nearkin")
    if not log.hasHandlers():
        handler = StderrHandler()
        handler.addFilter(lambda _: not logging.getLogger().handlers)  # whoever sets up logging later shows them there
        log.addHandler(handler)
        if log.level == logging.NOTSET:
            log.setLevel(logging.INFO if speaks() else logging.ERROR)


class StderrHandler(logging.Handler):
    """Writes to what ``sys.stderr`` is at the moment, so that lines come above a moving bar and not into it."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING or not is_quiet():
            print(as_message(self.format(record)), file=sys.stderr, flush=True)
