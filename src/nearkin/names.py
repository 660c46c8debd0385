"""Names from outside, of files, classes and settings: which are refused, and how any of them is printed."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from nearkin.errors import UserError


def check_names(names: Iterable[str], what: str) -> None:
    """Refuses names that could not be written down again: with a zero byte, or not UTF-8.

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
    """Whether a name from the file system is text; bytes that are not are surrogates in Python.

    >>> is_utf8("café"), is_utf8("caf\\udce9")
    (True, False)
    """
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def printable(text: str) -> str:
    """Text as a terminal may show it: what would move the cursor, colour or reorder other text is spelled out.

    >>> print(printable("a\\x1b[2Jb\\u202ec"))
    a\\x1b[2Jb\\u202ec
    >>> printable("two\\nlines")
    'two\\nlines'
    """
    if text.isprintable():
        return text
    return "".join(_spelled(letter) for letter in text)


def _spelled(letter: str) -> str:
    # Controls, invisible marks that change the direction of writing, and bytes that are not text.
    hidden = letter not in "\n\t" and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    return ascii(letter)[1:-1] if hidden else letter


def as_message(text: str, most: int = 20_000) -> str:
    """Printable text no longer than a terminal is for: a file may hold a name of megabytes.

    >>> as_message("abcdef", most=3)
    'abc… (3 more characters)'
    """
    left = len(text) - most
    return printable(text if left <= 0 else f"{text[:most]}… ({left:,} more characters)")
