"""The command `nearkin`, also as `python -m nearkin`."""

import signal

HANDLER = signal.getsignal(signal.SIGINT)
if HANDLER is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during imports ends it without a traceback

from nearkin import cli  # noqa: E402


def main() -> None:
    signal.signal(signal.SIGINT, HANDLER)
    cli.main()


if __name__ == "__main__":
    main()
