"""A score reads the same in the terminal, in a run report and in a model card."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from nearkin.evaluation import score_text
from nearkin.evaluation.result import score_table
from nearkin.models.card import Training, escaped, model_card
from nearkin.models.model import ModelSpec
from nearkin.reports.run_page import _scores


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("recall@1", 1.0, "1.0000"),
        ("recall@1", 0.0, "0.0000"),
        ("ari", -0.25, "-0.2500"),
        ("queries", 1.0, "1"),
        ("queries_without_positives", 123_456.0, "123,456"),
    ],
)
def test_shares_have_four_decimals_and_counts_none(
    capsys: pytest.CaptureFixture[str], name: str, value: float, text: str
) -> None:
    Console().print(score_table({"test": {name: value}, "95 % interval": {name: (value, value)}}))
    assert re.findall(r"│ *(\S+) │ *(\S+ – \S+) │", capsys.readouterr().out) == [(text, f"{text} – {text}")]

    found = {name: value}
    report: Any = SimpleNamespace(split=None, backbone=found, before=found, after=found)
    assert re.findall(r"<td>([^<]*)</td>", _scores(report)) == [text, text, text, ""]

    words = {name: score_text(name, value)}
    training = Training("d", {}, True, "rank", {}, words, words, words, "Better.", "last", False, {}, "2026-01-31")
    assert f"| {escaped(name)} | {text} | {text} | {text} |" in model_card(ModelSpec("linear", 2, features=3), training)
