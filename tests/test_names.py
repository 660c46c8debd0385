"""Untrusted names: refused if they cannot be written again, harmless when printed."""

from __future__ import annotations

import os

import pytest

from nearkin.data.dataset import encode_labels
from nearkin.errors import UserError
from nearkin.names import check_names, printable


@pytest.mark.parametrize("letter", ["\x1b", "\x07", "\x7f", "\x9b", "\r", "\u202e", "\u2028", "\udcff", "\0"])
def test_control_characters_are_escaped(letter: str) -> None:
    shown = printable(f"a{letter}b")
    assert letter not in shown and "\\" in shown and shown.encode()


def test_text_in_all_scripts_is_printed_unchanged() -> None:
    text = "Straße, 花, ж, 😀\n\tnext"
    assert printable(text) == text


@pytest.mark.parametrize("name", ["a\0b", os.fsdecode(b"caf\xe9")])
def test_names_that_cannot_be_written_again_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="rename it"):
        check_names(["fine", name], "file")


@pytest.mark.parametrize("labels", [["--1", "2"], ["9" * 5000, "1"], ["-", "1"], ["²", "1"]])
def test_labels_that_only_look_like_numbers_are_text(labels: list[str]) -> None:
    codes, classes = encode_labels(labels)
    assert classes == sorted(labels) and [classes[code] for code in codes] == labels
