"""The examples run as they are, and what they train gets better."""

import io
import re
import runpy
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
LINE = re.compile(r"^(.*): Recall@1 on unseen classes: ([\d.]+) before, ([\d.]+) after$", re.MULTILINE)


def recalls(text):
    return {name: (float(before), float(after)) for name, before, after in LINE.findall(text)}


@cache
def run_here(name):
    """What an example prints, without the time that a new process needs to start."""
    with patch("sys.argv", [f"{name}.py", "--quick"]), redirect_stdout(io.StringIO()) as printed:
        runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    return recalls(printed.getvalue())


def run_afresh(name):
    """The same in a new process: nothing was imported before that it might need."""
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return recalls(done.stdout)


def test_losses_and_samplers_learn_in_a_plain_loop_and_after_looks_at_the_whole_space():
    found = run_here("plain_pytorch")
    assert found.keys() == {"rank", "magnet"}
    for before, after in found.values():
        assert after > before + 0.02


def test_lightning_takes_every_step_of_the_plain_loop():
    assert run_afresh("lightning_module") == {"rank": run_here("plain_pytorch")["rank"]}


def test_losses_work_in_pytorch_metric_learning_and_its_losses_here():
    found = run_here("pytorch_metric_learning_trainer")
    assert len(found) == 2
    for before, after in found.values():
        assert after > before + 0.05


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.py")), ids=lambda file: file.name)
def test_an_example_is_short_and_says_how_to_run_it(file):
    text = file.read_text(encoding="utf-8")
    assert f"python examples/{file.name}" in text
    assert len(text.splitlines()) <= 80
