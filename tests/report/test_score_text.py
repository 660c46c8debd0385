"""A score reads the same in the terminal, on the page of a run and on a model's card."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from nearkin.models.card import Training, escaped, model_card
from nearkin.models.model import ModelSpec
from nearkin.report.run_page import _scores
from nearkin.report.tables import print_columns


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
    print_columns({"test": {name: value}, "95 % interval": {name: (value, value)}})
    assert re.findall(r"│ *(\S+) │ *(\S+ – \S+) │", capsys.readouterr().out) == [(text, f"{text} – {text}")]

    found = {name: value}
    facts: Any = SimpleNamespace(looked=None, backbone=found, before=found, after=found)
    assert re.findall(r"<td>([^<]*)</td>", _scores(facts)) == [text, text, text, ""]

    training = Training("d", {}, True, "rank", {}, found, found, found, "Better.", "last", False, {}, "2026-01-31")
    assert f"| {escaped(name)} | {text} | {text} | {text} |" in model_card(ModelSpec("linear", 2, features=3), training)
