"""Write the tables of the docs that come from docstrings.

    python docs/tables.py

A page marks such a table with ``<!-- table: name -->`` and ``<!-- end -->``. A test fails if the table is outdated.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from torch import nn

from nearkin.losses.registry import registered_losses

LOSSES = Path(__file__).parent / "losses.md"


def losses_table(page: str) -> str:
    """One row per loss: class, name, and what the docstring says."""
    rows = ["| loss | name | what it does | needs | takes miners |", "|---|---|---|---|---|"]
    here = {name: kind for name, kind in registered_losses().items() if kind.__module__.startswith("nearkin.")}
    for name, kind in here.items():
        summary, needs = _said(kind)
        link = f"[{kind.__name__}](#{kind.__name__.lower()})" if f"\n## {kind.__name__}\n" in page else kind.__name__
        pairs = "no" if getattr(kind, "without_pairs", True) else "yes"
        rows.append(f"| {link} | `{name}` | {summary} | {needs} | {pairs} |")
    return "\n".join(rows)


def written(page: str, name: str, table: str) -> str:
    """The page with the table filled in."""
    return re.sub(rf"(<!-- table: {name} -->\n).*?(<!-- end -->)", rf"\g<1>{table}\n\g<2>", page, flags=re.DOTALL)


def _said(kind: type[nn.Module]) -> tuple[str, str]:
    """The summary in the first line of a docstring, after the paper, and the sentence that begins with "Needs"."""
    text = inspect.getdoc(kind) or ""
    summary = text.partition("\n")[0].rstrip(".").rpartition("): ")[2]
    text = re.sub(r"\s\([^)]*\)", "", text)
    needs = re.search(r"^Needs (.+?)[.:;](?:\s|$)", text, re.MULTILINE | re.DOTALL)
    return summary, " ".join(needs[1].split()) if needs else "nothing in particular"


if __name__ == "__main__":
    page = LOSSES.read_text(encoding="utf-8")
    LOSSES.write_text(written(page, "losses", losses_table(page)), encoding="utf-8")
