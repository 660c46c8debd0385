"""What a user sees of long tasks: bars, lines if nothing can be overwritten, messages, or nothing."""

from __future__ import annotations

import logging
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

import nearkin
from nearkin import progress
from nearkin.messages import REPEATED, StderrHandler, show_messages, without_repetition
from nearkin.progress import bar, quiet, track


class Clock:
    """A clock that a test moves."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    moved = Clock()
    monkeypatch.setattr(progress, "time", moved)
    # The dataclass keeps the function it was defined with.
    monkeypatch.setattr(progress, "Task", lambda *fields: RealTask(*fields, started=moved.now))
    return moved


RealTask = progress.Task


def work(clock: Clock, steps: int, seconds: float, what: str = "training") -> None:
    for n in track(range(steps), what):
        clock.now += seconds
        assert n >= 0


class TestLines:
    def test_a_long_task_prints_a_line_every_half_minute(
        self, clock: Clock, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with bar("training", 1000, done=100) as advance:
            for step in range(100):
                clock.now += 1
                advance(note=f"loss {step}")
        assert capsys.readouterr().err.splitlines() == [
            "training 130/1,000, 0:00:30, 0:14:30 left, loss 29",
            "training 160/1,000, 0:01:00, 0:14:00 left, loss 59",
            "training 190/1,000, 0:01:30, 0:13:30 left, loss 89",
        ]

    def test_a_short_task_prints_nothing(self, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
        for _ in range(20):
            work(clock, 2, 10)
        assert capsys.readouterr() == ("", "")

    def test_nested_bars_share_a_line(self, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
        with bar("runs", 3) as advance:
            work(clock, 4, 5)
            advance()
            work(clock, 4, 5, "embedding")
        assert capsys.readouterr().err == "runs 1/3, 0:00:30, 0:01:00 left | embedding 2/4, 0:00:10, 0:00:10 left\n"

    def test_an_unknown_total_is_left_out(self, clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
        with bar("reading", None) as advance:
            clock.now += 40
            advance(3)
        assert capsys.readouterr().err == "reading 3, 0:00:40\n"

    def test_other_processes_and_quiet_blocks_are_silent(
        self, clock: Clock, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with quiet():
            work(clock, 5, 60)
        monkeypatch.setenv("RANK", "1")
        work(clock, 5, 60)
        assert capsys.readouterr() == ("", "")


class TestTerminal:
    def test_a_bar_moves_and_messages_come_above_it(self) -> None:
        code = (
            "import logging, time\n"
            "from nearkin.messages import show_messages\n"
            "from nearkin.progress import bar, track\n"
            "show_messages()\n"
            "with bar('training', 4) as advance:\n"
            "    for n in range(4):\n"
            "        for _ in track(range(2), 'embedding'): time.sleep(0.08)\n"
            "        advance(note=f'loss {n}')\n"
            "        logging.getLogger('nearkin').info('epoch %d', n)\n"
        )
        shown = in_a_terminal(code)
        assert "training" in shown and "3/4" in shown and "embedding" in shown
        # A message starts on its own line: the bar is erased first.
        assert all(f"\x1b[2Kepoch {n}" in shown for n in range(4))


def in_a_terminal(code: str) -> str:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env=environment):
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 4096):
                shown += piece
        except OSError:  # the other end is closed
            pass
    os.close(ours)
    return shown.decode()


class TestNotebook:
    @pytest.fixture
    def cell(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:  # noqa: ARG002
        """A notebook that records what it is told to draw: (display id, text, whether the area is new)."""
        shell = SimpleNamespace(execution_count=1, drawn=[])

        def draw(new: bool) -> Any:
            return lambda content, display_id, raw: shell.drawn.append((display_id, content["text/html"], new, raw))

        module = ModuleType("IPython.display")
        module.display, module.update_display = draw(True), draw(False)  # type: ignore[attr-defined]
        package = ModuleType("IPython")
        package.get_ipython = lambda: shell  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setitem(sys.modules, "IPython.display", module)
        monkeypatch.setattr("rich.console.Console.is_jupyter", True, raising=False)
        monkeypatch.setattr(progress, "_new_display", progress.Notebook)
        monkeypatch.setattr(progress.Notebook, "last_cell", (-1, ""))
        return shell

    def test_a_cell_has_one_output_area_that_is_cleared_at_the_end(self, cell: SimpleNamespace, clock: Clock) -> None:
        for _ in range(3):
            work(clock, 4, 1, "<b>")
        areas, drawings, new, raw = zip(*cell.drawn, strict=True)
        assert len(set(areas)) == 1 and new == (True, *[False] * 14) and all(raw)
        assert drawings[0] == (
            '<div><progress value="1" max="4"></progress> &lt;b&gt; 1/4, 0:00:01, 0:00:03 left</div>'
        )
        assert [n for n, drawing in enumerate(drawings) if not drawing] == [4, 9, 14]

    def test_the_next_cell_has_its_own_output_area(self, cell: SimpleNamespace, clock: Clock) -> None:
        work(clock, 2, 1)
        cell.execution_count = 2
        work(clock, 2, 1)
        assert len({place for place, *_ in cell.drawn}) == 2

    def test_a_short_task_leaves_nothing(self, cell: SimpleNamespace, clock: Clock) -> None:
        work(clock, 40, 0.01)
        assert cell.drawn == []


@contextmanager
def unconfigured_logging() -> Iterator[logging.Logger]:
    """nearkin's logger in a program that has not set up logging; pytest has, so its handlers are put aside."""
    log, root = logging.getLogger("nearkin"), logging.getLogger()
    before = log.handlers, log.level, root.handlers
    log.handlers, root.handlers = [], []
    log.setLevel(logging.NOTSET)
    try:
        yield log
    finally:
        log.handlers, root.handlers = before[0], before[2]
        log.setLevel(before[1])


class TestMessages:
    def test_they_are_shown_once(self, capsys: pytest.CaptureFixture[str]) -> None:
        with unconfigured_logging() as log:
            show_messages()
            show_messages()
            log.info("epoch %d", 1)
        assert capsys.readouterr() == ("", "epoch 1\n")

    def test_logging_set_up_by_the_program_takes_over(self, capsys: pytest.CaptureFixture[str]) -> None:
        with unconfigured_logging() as log:
            logging.getLogger().addHandler(logging.NullHandler())
            show_messages()
            log.warning("news")
            assert not log.handlers
        assert capsys.readouterr() == ("", "")

    def test_logging_set_up_later_takes_over_from_then_on(self, capsys: pytest.CaptureFixture[str]) -> None:
        with unconfigured_logging() as log:
            show_messages()
            logging.getLogger().addHandler(StderrHandler())
            log.info("news")
        assert capsys.readouterr().err == "news\n"

    @pytest.mark.parametrize("early", [True, False])
    def test_they_can_be_silenced(self, capsys: pytest.CaptureFixture[str], early: bool) -> None:
        with unconfigured_logging() as log:
            if early:
                log.setLevel("WARNING")
            show_messages()
            if not early:
                log.setLevel("WARNING")
            log.info("news")
            log.warning("a problem")
        assert capsys.readouterr().err == "a problem\n"

    def test_a_quiet_block_shows_only_warnings(self, capsys: pytest.CaptureFixture[str]) -> None:
        with unconfigured_logging() as log:
            show_messages()
            with quiet():
                log.info("news")
                log.warning("a problem")
            log.info("later news")
        assert capsys.readouterr().err == "a problem\nlater news\n"

    def test_only_the_main_process_prints(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("RANK", "1")
        with unconfigured_logging() as log:
            show_messages()
            log.warning("a problem")
        assert capsys.readouterr().err == ""

    def test_training_from_python_shows_them(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Finished:
            scores: ClassVar = {"verdict": "Better."}

            def __init__(self, *_: object, **__: object) -> None:
                logging.getLogger("nearkin").info("epoch 1")

        monkeypatch.setattr("nearkin.training.loop.train", Finished)
        with unconfigured_logging():
            nearkin.train("glyphs", out="unused")
        assert capsys.readouterr().err == "epoch 1\nBetter.\n"


def test_a_comparison_says_the_same_only_once(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("nearkin")
    with caplog.at_level(logging.INFO, "nearkin"):
        with without_repetition():
            for text, extra in (("data", REPEATED), ("epoch", None), ("data", REPEATED), ("epoch", None)):
                log.info(text, extra=extra)
        log.info("data", extra=REPEATED)
    assert caplog.messages == ["data", "epoch", "epoch", "data"]
