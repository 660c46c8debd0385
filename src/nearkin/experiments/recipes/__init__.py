"""Recipes: settings for a dataset and a method, one TOML file each.

A recipe is a run's ``config.toml`` with a table ``[origin]``. It has a ``description`` and, for settings from a paper,
the ``paper``, how the recipe differs from it (``differs``: keywords of that paper's file), and the settings that the
paper does not state (``open``, ``partly_open``). Comments say where each setting comes from. The recipes of
``cub200-lite0`` were found by tuning.
"""

from __future__ import annotations

import tomllib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from nearkin.errors import unknown_name

if TYPE_CHECKING:
    from nearkin.training.settings import Settings

# The defaults of recipes: plain training as in the papers, on all training classes with a randomly initialised head.
PLAIN: dict[str, dict[str, Any]] = {
    "data": {"validation": 0.0},
    "model": {"head_init": "random", "freeze_batch_norm": False},
    "training": {"warmup_steps": 0, "evaluate_every": 1, "patience": 0},
}


def known_recipes() -> list[str]:
    """The names of all recipes, <dataset>/<method>.

    >>> "cub200/rank" in known_recipes()
    True
    """
    folders = (folder for folder in files(__name__).iterdir() if folder.is_dir())
    return sorted(
        f"{folder.name}/{file.name.removesuffix('.toml')}"
        for folder in folders
        for file in folder.iterdir()
        if file.name.endswith(".toml")
    )


def recipe_description(name: str) -> str:
    """The description of a recipe in one line: paper and table, or what it was tuned on.

    >>> recipe_description("cub200/rank")
    'Schall et al. 2019, nonlinear rank approximation: Table I, CUB-200-2011, NRA'
    """
    return str(recipe_tables(name)["origin"]["description"])


@cache
def read_recipe(name: str) -> Settings:
    """The settings of a recipe.

    >>> read_recipe("cub200/rank").training.batch_size
    128
    """
    from nearkin.methods import method_class  # here, so that listing the recipes does not import torch
    from nearkin.training.settings import Settings

    tables = {section: table for section, table in recipe_tables(name).items() if section != "origin"}
    filled = tables | {each: PLAIN[each] | tables[each] for each in PLAIN}
    filled["model"] = {"normalize": method_class(tables["method"]["name"]).normalize} | filled["model"]
    return Settings.from_tables(filled, f"recipe {name}")


@cache
def recipe_tables(name: str) -> dict[str, dict[str, Any]]:
    """The content of a recipe's file: ``origin`` and the sections of a ``config.toml``.

    >>> recipe_tables("cub200/rank")["origin"]["open"]
    ['epochs', 'weight_decay', 'schedule']
    """
    if name not in known_recipes():
        raise unknown_name("recipe", name, known_recipes())
    return tomllib.loads(files(__name__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))
