"""Paths that come from list files are data, not commands: they must stay inside their folder."""

from __future__ import annotations

import re

# Absolute paths and "..", by the rules of every system, so that a list is judged alike everywhere.
_LEADS_OUT = re.compile(r"^[/\\]|^[A-Za-z]:|(^|[/\\])\.\.([/\\]|$)")


def leads_out(path: str) -> bool:
    """Whether a path from a list could leave the folder it starts from.

    >>> leads_out("birds/1.jpg"), leads_out("../1.jpg"), leads_out("/etc/passwd")
    (False, True, True)
    """
    return bool(_LEADS_OUT.search(path))
