"""What mkdocs does besides: the command-line reference from typer, and formulas as MathML, which needs no script."""

from __future__ import annotations

import html
import re
from typing import Any

import latex2mathml.converter
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

CLI_PAGE = "reference/cli.md"
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, CLI_PAGE, content=command_reference()))
    return files


def on_page_content(text: str, **_: Any) -> str:
    return FORMULA.sub(_mathml, text)


def command_reference() -> str:
    """A section for each command: its help, how it is called, and a table of its arguments and options."""
    from nearkin.cli import app

    group: Any = typer.main.get_command(app)
    parts = ["# Command line", f"{group.help}", _table(group.params)]
    for name, command in group.commands.items():
        arguments = (each for each in command.params if each.param_type_name == "argument")
        words = ["nearkin", name, "[OPTIONS]", *map(_argument, arguments)]
        call = f"```text\n{' '.join(words)}\n```"
        parts += [f"## {name}", command.help, call, _table(command.params)]
    return "\n\n".join(parts) + "\n"


def _table(parameters: list[Any]) -> str:
    rows = ["| | default | |", "|---|---|---|"]
    for each in parameters:
        if getattr(each, "hidden", False) or each.name == "help":
            continue
        names = "`" + "`, `".join([*each.opts, *each.secondary_opts]) + "`"
        if each.param_type_name == "argument":
            names = f"`{_argument(each)}`"
        default = "required" if each.required else _shown(each.default)
        explained = (each.help or "").replace("|", r"\|")
        rows.append(f"| {names} | {default} | {explained} |")
    return "\n".join(rows)


def _argument(each: Any) -> str:
    name = each.name.upper() + ("..." if each.nargs != 1 else "")
    return name if each.required else f"[{name}]"


def _shown(value: Any) -> str:
    if value is None or value == [] or callable(value):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _mathml(found: re.Match[str]) -> str:
    display = "block" if found[2] == "[" else "inline"
    return latex2mathml.converter.convert(html.unescape(found[3]), display=display)
