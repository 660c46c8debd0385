"""The ranges of tuning belong to settings of the methods and contain their defaults."""

from __future__ import annotations

from pathlib import Path

import pytest

from nearkin.methods import Method, known_methods, make_method
from nearkin.methods.ranges import Between, OneOf, Range


@pytest.mark.parametrize("name", [method.name for method in known_methods()])
def test_every_range_belongs_to_a_setting_and_contains_its_default(name: str) -> None:
    method = make_method(name)
    settings = method.settings()
    assert all(value in where for value, where in method.searched().values())
    for setting, where in method.ranges.items():
        ends = where.values if isinstance(where, OneOf) else (where.low, where.high)
        for value in ends:
            assert type(value) is type(settings[setting])
            assert make_method(name, **{setting: value}).settings()[setting] == value
        assert not isinstance(where, Between) or (where.low < where.high and (where.low > 0 or not where.log))


@pytest.mark.parametrize("method", known_methods(), ids=lambda method: method.name)
def test_the_docs_say_what_is_searched(method: type[Method]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "methods.md").read_text(encoding="utf-8")
    words = "; ".join(f"`{name}` {in_words(where)}" for name, where in method.ranges.items())
    assert not method.paper or f"| `{method.name}` | {words or 'nothing of its own'} |" in page


def in_words(where: Range) -> str:
    if isinstance(where, OneOf):
        return ", ".join(f"{value:g}" for value in where.values)
    return f"{where.low:g}…{where.high:g}{' (log)' if where.log else ''}"
