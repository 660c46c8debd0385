"""In what a run differs from the paper, in sentences: the recipe's own differences, and what the paper leaves open."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from typing import Any

from nearkin.recipes import recipe_description
from nearkin.training import Settings


def recipe_differences(recipe: str, settings: Settings) -> list[str]:
    """What the recipe cannot do as the paper did, as far as it is true of these settings' method.

    >>> from nearkin.recipes import read_recipe
    >>> recipe_differences("cub200/rank", read_recipe("cub200/rank"))[0][:60]
    'resize: Schall et al. 2019 scales the longer side to 256 pix'
    """
    known = _known()
    trained = f"{settings.method} {settings.method_settings.get('wraps', '')}"
    words = [word for word in known["recipes"][recipe] if known["only"].get(word, "") in trained]
    return [f"{word.partition(':')[0]}: {_named(known['words'][word], recipe)}" for word in words]


def open_settings(recipe: str, besides: Collection[str], with_method: bool = True) -> list[str]:
    """What the paper does not say and the recipe chose, in one sentence; none where nothing is open.

    Args:
        besides: settings that were chosen elsewhere.
        with_method: whether the recipe's own method is trained.

    >>> open_settings("cub200/rank", besides=("epochs", "schedule"))
    ['open in Schall et al. 2019, chosen by the recipe: weight_decay = 0.0']
    """
    text = files("nearkin.recipes").joinpath(f"{recipe}.toml").read_text(encoding="utf-8")
    found = []
    for section in re.split(r"^(?=\[)", text, flags=re.MULTILINE):
        if with_method or not section.startswith("[method]"):
            found += re.findall(r"^(\w+) = (.+?)  # open", section, re.MULTILINE)
    chosen = [f"{name} = {value}" for name, value in found if name not in besides]
    return [f"open in {_authors(recipe)}, chosen by the recipe: {', '.join(chosen)}"] if chosen else []


def changes(before: Settings, after: Settings, names: Collection[str]) -> str:
    """Those of the named settings that differ, "epochs = 1 instead of 222"; empty where none does."""
    old, new = (
        {name: value for table in each.to_tables().values() for name, value in table.items()}
        for each in (before, after)
    )
    return ", ".join(
        f"{name} = {new[name]} instead of {old[name]}" if name in old else f"{name} = {new[name]}"
        for name in names
        if name in new and new[name] != old.get(name)
    )


def _authors(recipe: str) -> str:
    return recipe_description(recipe).partition(",")[0]


def _named(sentence: str, recipe: str) -> str:
    """A table may hold rows of several papers, so "the paper" is called by its name."""
    return sentence.replace("the paper", _authors(recipe))


@cache
def _known() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__package__).joinpath("differences.toml").read_text(encoding="utf-8"))
