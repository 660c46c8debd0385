"""Output is harmless and printable on every terminal; a signal ends a command with one line at any time."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY_GLYPHS, Command
from rich.table import Table

from nearkin import cli
from nearkin.cli.printing import PlainConsole, say
from nearkin.messages import StderrHandler
from nearkin.models import Embedder, EmbeddingModel, ModelSpec
from nearkin.search import SearchResult
from nearkin.training.loop import Trainer

EVIL = "\x1b[2J\x1b]0;owned\x07[/red]"
QUICK = ["--epochs", "1", "--batch-size", "16", "--dim", "8", "--set", "per_class=4", "--set", "workers=0"]


@pytest.mark.parametrize(
    ("encoding", "command"),
    [("ascii", ["methods"]), ("ascii", ["datasets"]), ("ascii", ["--help"]), ("latin-1", ["evaluate"])],
)
def test_output_is_printable_on_every_terminal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, vectors: str, encoding: str, command: list[str]
) -> None:
    if command == ["evaluate"]:
        Embedder(EmbeddingModel(ModelSpec("linear", 4, features=6))).save(tmp_path / "model")
        command = ["evaluate", str(tmp_path / "model"), "--data", vectors]
    printed = io.BytesIO()
    monkeypatch.setattr("sys.argv", ["nearkin", *command])
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(printed, encoding=encoding))
    try:
        cli.main()
    except SystemExit as end:
        assert not end.code
    sys.stdout.flush()
    assert len(printed.getvalue()) > 200


def test_names_cannot_control_the_terminal(nearkin: Command, capsys: pytest.CaptureFixture[str]) -> None:
    outcome = nearkin("train", EVIL)
    assert outcome.code == 1 and "\x1b" not in outcome.err and "\\x1b[2J" in outcome.err
    say(SearchResult(EVIL, []))
    StderrHandler().emit(logging.LogRecord("nearkin", logging.WARNING, "", 0, "cannot read %s", (EVIL,), None))
    for text in capsys.readouterr():
        assert "\x1b" not in text and "\\x1b[2J" in text and "\x07" not in text


def test_a_table_prints_names_literally() -> None:
    table = Table(title=EVIL)
    table.add_column(EVIL)
    table.add_row(EVIL)
    printed = io.StringIO()
    PlainConsole(file=printed, width=200, color_system=None).print(table)
    assert "\x1b" not in printed.getvalue() and printed.getvalue().count("\\x1b[2J") == 3
    assert "[/red]" in printed.getvalue()


def test_an_argument_that_is_not_utf8_is_one_sentence(nearkin: Command) -> None:
    outcome = nearkin("train", os.fsdecode(b"caf\xe9"))
    assert outcome.code == 1 and "'caf\\udce9' is not UTF-8; rename it" in outcome.err


@pytest.mark.parametrize("place", ["_measure_start", "_choose_model", "_finish"])
def test_sigterm_outside_the_steps_says_how_to_continue(
    nearkin: Command, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def ended(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, place, ended)
        outcome = nearkin("train", TINY_GLYPHS, *QUICK, "--out", "run")
    assert outcome.code == 130 and outcome.err.endswith("continue with: nearkin resume run\n"), outcome.err
    assert nearkin("resume", "run").code == 0


def test_sigterm_in_any_command_is_one_line(nearkin: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nearkin.cli.listing.show", lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    outcome = nearkin("methods")
    assert (outcome.code, outcome.err) == (130, "nearkin: stopped\n")


def test_a_second_ctrl_c_prints_nothing() -> None:
    """It arrives during the cleanup after the first one, in a separate process, which it kills."""
    code = (
        "import atexit, os, signal, time\n"
        "from nearkin import cli\n"
        "from nearkin.cli import listing\n"
        "listing.show = lambda *_: os.kill(os.getpid(), signal.SIGINT)\n"
        "atexit.register(lambda: (os.kill(os.getpid(), signal.SIGINT), time.sleep(9)))\n"
        "import sys; sys.argv = ['nearkin', 'recipes']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGINT and done.stderr == "nearkin: stopped\n"
