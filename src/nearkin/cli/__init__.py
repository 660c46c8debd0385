"""The commands. Each parses its options, calls one function and prints the result."""

from __future__ import annotations

import io
import logging
import signal
import sys
import threading

# These imports register the commands, in the order of `--help`.
from nearkin.cli import train  # noqa: F401  # isort: skip
from nearkin.cli import evaluate  # noqa: F401  # isort: skip
from nearkin.cli import search  # noqa: F401  # isort: skip
from nearkin.cli import experiments  # noqa: F401  # isort: skip
from nearkin.cli import listing  # noqa: F401  # isort: skip
from nearkin.cli.app import app
from nearkin.cli.wording import OptionFormatter, worded_for
from nearkin.names import as_message, check_names
from nearkin.signals import sigterm_as_ctrl_c

STOPPED = 130  # exit code after Ctrl-C


def main() -> None:
    """The `nearkin` command. A user error prints one sentence; any other error also points to --debug."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]  # allowed anywhere
    debug = len(arguments) < len(sys.argv) - 1
    from nearkin.messages import StderrHandler
    from nearkin.progress import is_main_process

    handler = StderrHandler()
    handler.setFormatter(OptionFormatter(arguments))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("nearkin").setLevel(logging.INFO if is_main_process() else logging.ERROR)
    _print_anything()
    try:
        with sigterm_as_ctrl_c():
            check_names(arguments, "argument")
            app(arguments, prog_name="nearkin")
    except KeyboardInterrupt:
        if debug:
            raise
        _fail("stopped", STOPPED)
    except SystemExit as end:  # newer versions of typer turn Ctrl-C into SystemExit, without a message
        if end.code == STOPPED:
            _fail("stopped", STOPPED)
        raise
    except Exception as error:
        if debug:
            raise
        from nearkin.errors import Interrupted, UserError

        if isinstance(error, Interrupted):
            _fail(str(error), STOPPED)
        if isinstance(error, UserError | OSError):
            _fail(worded_for(str(error), arguments), 1)
        _fail(f"unexpected {type(error).__name__}: {error} (add --debug for the traceback)", 1)


def _fail(message: str, code: int) -> None:
    from nearkin.progress import is_main_process

    if code == STOPPED and threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):  # a second Ctrl-C ends the cleanup without a message
            signal.signal(number, signal.SIG_DFL)
    if is_main_process():
        print(f"nearkin: {as_message(message)}", file=sys.stderr)
    raise SystemExit(code)


def _print_anything() -> None:
    """Escapes characters that the terminal's encoding lacks, as Python does on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
