"""In what a run differs from the paper, in sentences: the recipe's own differences, and what the paper leaves open."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from functools import cache
from importlib.resources import files
from typing import Any

from nearkin.experiments.recipes import recipe_description
from nearkin.training import Settings

# What a value's comment says in a recipe where the paper is silent: "open", or "open: how long".
OPEN = re.compile(r"^(?P<name>\w+) = (?P<value>.+?)  # (?:.*; )?open(?:: (?P<what>[^;\n]+))?(?=;|$)", re.MULTILINE)
PLACEHOLDERS = {
    "image_size": "the backbone's own",
    "batch_size": "the method's usual",
    "micro_batch": "the whole batch",
    "backbone_learning_rate": "the usual share of the head's",
    "loss_learning_rate": "the head's",
}


def recipe_differences(recipe: str, settings: Settings, **facts: Any) -> list[str]:
    """What the recipe cannot do as the paper did, as far as it is true of a run with these settings.

    Args:
        facts: ``photographs``, ``views`` at test, ``untrained``; those left out are True, 1 and False.

    >>> from nearkin.experiments.recipes import read_recipe
    >>> recipe_differences("cub200/rank", read_recipe("cub200/rank"))[0][:60]
    'resize: Schall et al. 2019 scales the longer side to 256 pix'
    """
    known = _known()
    of_run = {"photographs": True, "views": 1, "untrained": False} | _flat(settings) | facts
    of_run["method"] = (settings.method, str(settings.method_settings.get("wraps", "")).partition(":")[0])
    words = [
        word
        for word in known["recipes"][recipe]
        if all(_is(of_run[name], wanted) for name, wanted in known["only"].get(word, {}).items())
    ]
    return [f"{word.partition(':')[0]}: {_named(known['words'][word], recipe)}" for word in words]


def open_settings(recipe: str, besides: Collection[str], with_method: bool = True) -> list[str]:
    """What the paper does not say and the recipe chose, in one sentence; none where nothing is open.

    Args:
        besides: settings that were chosen elsewhere.
        with_method: whether the recipe's own method is trained.

    >>> open_settings("cub200/rank", besides=("epochs", "schedule"))
    ['open in Schall et al. 2019, chosen by the recipe: weight_decay = 0.0']
    """
    text = files("nearkin.experiments.recipes").joinpath(f"{recipe}.toml").read_text(encoding="utf-8")
    sections = re.split(r"^(?=\[)", text, flags=re.MULTILINE)
    found = [
        match
        for section in sections
        if with_method or not section.startswith("[method]")
        for match in OPEN.finditer(section)
        if match["name"] not in besides
    ]
    chosen = [f"{each['name']} = {each['value']}" + (f" ({each['what']})" if each["what"] else "") for each in found]
    return [f"open in {_authors(recipe)}, chosen by the recipe: {', '.join(chosen)}"] if chosen else []


def open_besides(recipe: str) -> list[str]:
    """What the paper does not say about its data.

    >>> open_besides("cub200/rank")
    []
    """
    said = _known()["open"].get(recipe, "")
    return [_named(said, recipe)] if said else []


def how_the_paper_chose(recipe: str) -> str:
    """
    >>> how_the_paper_chose("cub200/spectral")
    'Law et al. 2017 stops early, by what is not said'
    """
    return _named(_known()["chosen"][_authors(recipe)], recipe) if recipe else "how the paper chose is not said"


def changes(before: Settings, after: Settings, names: Collection[str]) -> str:
    """Those of the named settings that differ, "epochs = 1 instead of 222"; empty where none does."""
    old, new = _flat(before), _flat(after)
    return ", ".join(
        f"{name} = {_shown(name, new[name])}" + (f" instead of {_shown(name, old[name])}" if name in old else "")
        for name in names
        if name in new and new[name] != old.get(name)
    )


def _flat(settings: Settings) -> dict[str, Any]:
    return {name: value for table in settings.to_tables().values() for name, value in table.items()}


def _is(value: Any, wanted: Any) -> bool:
    return wanted in value if isinstance(value, tuple) else bool(value == wanted)


def _shown(name: str, value: Any) -> str:
    """A value, or in words what one that stands for another means."""
    if value == "":
        return "the usual"
    return str(value) if value else PLACEHOLDERS.get(name, str(value))


def _authors(recipe: str) -> str:
    return recipe_description(recipe).partition(",")[0]


def _named(sentence: str, recipe: str) -> str:
    """A table may hold rows of several papers, so "the paper" is called by its name."""
    return sentence.replace("the paper", _authors(recipe))


@cache
def _known() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__package__).joinpath("differences.toml").read_text(encoding="utf-8"))
