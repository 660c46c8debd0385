"""The docs page of losses agrees with their docstrings and signatures."""

from __future__ import annotations

import inspect
import re
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


def test_every_loss_is_documented_with_its_settings_and_their_defaults() -> None:
    from nearkin.losses.registry import registered_losses

    page = (DOCS / "losses.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    for kind in registered_losses().values():
        if kind.__module__.startswith("nearkin."):
            said = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", sections[kind.__name__], re.MULTILINE))
            settings = inspect.signature(kind).parameters.values()
            named = [setting for setting in settings if setting.kind is setting.POSITIONAL_OR_KEYWORD]
            assert list(said) == [setting.name for setting in named], kind.__name__
            for setting in named:
                words, default = said[setting.name].strip("`"), setting.default
                expected = "required" if default is setting.empty else str(default).lower()
                assert words == expected or float(words) == default, f"{kind.__name__}: {setting.name}"
