"""Untrusted names of files, classes and settings: which are refused, and how to print them safely."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from nearkin.errors import UserError


def check_names(names: Iterable[str], what: str) -> None:
    """Raises if a name cannot be written to a file again: it contains a zero byte or is not UTF-8.

    >>> check_names(["rose", "lily\\0"], "class")
    Traceback (most recent call last):
    nearkin.errors.UserError: class 'lily\\x00' contains a zero byte; rename it
    """
    for name in names:
        if "\0" in name:
            raise UserError(f"{what} '{printable(name)}' contains a zero byte; rename it")
        if not is_utf8(name):
            raise UserError(f"{what} '{printable(name)}' is not UTF-8; rename it")


def is_utf8(name: str) -> bool:
    """Whether a name from the file system is valid UTF-8; Python decodes invalid bytes to surrogates.

    >>> is_utf8("café"), is_utf8("caf\\udce9")
    (True, False)
    """
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def printable(text: str) -> str:
    """Escapes characters that would move the cursor, change colours or reorder text in a terminal.

    >>> print(printable("a\\x1b[2Jb\\u202ec"))
    a\\x1b[2Jb\\u202ec
    >>> printable("two\\nlines")
    'two\\nlines'
    """
    if text.isprintable():
        return text
    return "".join(_escaped(letter) for letter in text)


def _escaped(letter: str) -> str:
    # Control characters, invisible marks that change the direction of text, surrogates, line separators.
    hidden = letter not in "\n\t" and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return ascii(letter)[1:-1] if hidden else letter


def as_message(text: str, most: int = 20_000) -> str:
    """Makes text printable and limits its length: a file may contain a name of several megabytes.

    >>> as_message("abcdef", most=3)
    'abc… (3 more characters)'
    """
    left = len(text) - most
    return printable(text if left <= 0 else f"{text[:most]}… ({left:,} more characters)")
