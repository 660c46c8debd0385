"""Generate the command-line reference and the tutorial pages, and render formulas as MathML."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import latex2mathml.converter
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

CLI_PAGE = "reference/cli.md"
EXAMPLE = re.compile(r"^(Example|Without training): (nearkin .*)$", re.MULTILINE)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, CLI_PAGE, content=command_reference()))
    for notebook in Path(config.docs_dir, "tutorials").glob("*.ipynb"):
        page = f"tutorials/{notebook.stem}.md"
        files.append(File.generated(config, page, content=tutorial(notebook)))
    return files


def on_page_content(text: str, **_: Any) -> str:
    return FORMULA.sub(_mathml, text)


def command_reference() -> str:
    """One section per command: its help, its usage, and a table of its arguments and options."""
    from nearkin.cli import app

    group: Any = typer.main.get_command(app)
    parts = [
        "# Command line",
        f"{group.help}",
        "```text\nnearkin [OPTIONS] COMMAND [ARGS]...\n```",
        _table(group.params),
    ]
    for name, command in group.commands.items():
        arguments = (each for each in command.params if each.param_type_name == "argument")
        words = ["nearkin", name, "[OPTIONS]", *map(_argument, arguments)]
        call = f"```text\n{' '.join(words)}\n```"
        parts += [f"## {name}", EXAMPLE.sub(r"\1: `\2`", command.help), call, _table(command.params)]
    return "\n\n".join(parts) + "\n"


def tutorial(notebook: Path) -> str:
    """A notebook as a page, with a download link below the title."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells)
    title, *parts = (
        f"```python\n{text}\n```" if cell["cell_type"] == "code" else text
        for cell, text in zip(cells, texts, strict=True)
    )
    heading, _, rest = title.partition("\n")
    return "\n\n".join([heading, f"[Download this notebook]({notebook.name})", rest, *parts])


def _table(parameters: list[Any]) -> str:
    rows = []
    for each in parameters:
        if getattr(each, "hidden", False) or each.name == "help":
            continue
        names = "`" + "`, `".join([*each.opts, *each.secondary_opts]) + "`"
        if each.metavar and each.param_type_name == "option":
            names = names[:-1] + f" {each.metavar}`"
        if each.param_type_name == "argument":
            names = f"`{_argument(each)}`"
        default = "required" if each.required else _shown(each.default)
        explained = (each.help or "").replace("|", r"\|")
        rows.append(f"| {names} | {default} | {explained} |")
    return "\n".join(["| parameter | default | description |", "|---|---|---|", *rows]) if rows else ""


def _argument(each: Any) -> str:
    name = each.name.upper() + ("..." if each.nargs != 1 else "")
    return name if each.required else f"[{name}]"


def _shown(value: Any) -> str:
    if value in (None, "", []) or callable(value):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    return latex2mathml.converter.convert(html.unescape(found[3]), display=display)
