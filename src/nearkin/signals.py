"""Who hears of Ctrl-C: it reaches a whole process group, but only one process can end the work in good order."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def block_signals() -> Iterator[None]:
    """Processes started here never hear of Ctrl-C or SIGTERM, from their first instruction on.

    This one hears of it afterwards, and must end them: Python's own request to end is a signal too.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """SIGTERM raises KeyboardInterrupt in this block: who ends a process gets the same words as who stops it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
