"""Rewrite docstrings for the reference: examples become code blocks, and joint parameters get one entry each."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> (?:.*\n?)(?:.+\n?)*", re.MULTILINE)
JOINT = re.compile(r"^( +)(\w+(?:, \w+)+): (.+(?:\n\1 +.+)*)", re.MULTILINE)


class Docstrings(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = rewritten(obj.docstring.value)


def rewritten(text: str) -> str:
    """
    >>> rewritten("Args:\\n    a, b: numbers.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Args:', '    a: numbers.', '    b: numbers.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    text = JOINT.sub(lambda found: "\n".join(f"{found[1]}{name}: {found[3]}" for name in found[2].split(", ")), text)
    text = re.sub(r" +# doctest: .*", "", text)
    return EXAMPLE.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
