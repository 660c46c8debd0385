"""The table of losses in the docs is what their docstrings say."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def test_the_table_of_losses_is_up_to_date() -> None:
    tables = runpy.run_path(str(DOCS / "tables.py"))
    page = (DOCS / "losses.md").read_text(encoding="utf-8")
    assert tables["written"](page, "losses", tables["losses_table"](page)) == page, "run python docs/tables.py"
    assert "| `rank` |" in page


def test_every_loss_says_what_it_does_and_what_it_needs() -> None:
    from nearkin.losses.registry import registered_losses

    for name, kind in registered_losses().items():
        if kind.__module__.startswith("nearkin."):
            assert "Needs " in (kind.__doc__ or ""), name
