"""The frame of all HTML pages: a single self-contained file, for light and dark mode and any screen width."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING

from nearkin.reports.figures import FAINT, INK, SOFT, svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = """
:root { color-scheme: light dark; --ink: #1f2933; --soft: #616e7c; --faint: #e4e7eb; --paper: #fff; --panel: #f5f7fa;
  --good: #1b4d26; --good-back: #e3f2e6; --warn: #7a3e00; --warn-back: #fdecd8 }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #9aa5b1; --faint: #323f4b; --paper: #14181d;
  --panel: #1f2630; --good: #a7dcb4; --good-back: #17301d; --warn: #ffc078; --warn-back: #3a2508 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 62rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
.protocol { display: inline-block; padding: .3rem .8rem; border-radius: .4rem; background: var(--good-back);
  color: var(--good) }
.protocol.paper { background: var(--warn-back); color: var(--warn); font-weight: 600 }
.wide { overflow-x: auto } svg { width: 100%; height: auto }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--faint); white-space: nowrap }
th:first-child, td:first-child { text-align: left }
td.words { text-align: left; white-space: normal; overflow-wrap: anywhere; min-width: 6rem }
th { font-weight: 600; color: var(--soft) } .legend, footer { color: var(--soft); font-size: .9rem }
pre { background: var(--panel); padding: .7rem 1rem; border-radius: .4rem; white-space: pre-wrap;
  overflow-wrap: anywhere }
"""


def page(title: str, body: str, style: str = "", scripts: Sequence[str] = ()) -> str:
    """A complete HTML page; ``body`` is HTML, ``style`` is CSS, and ``title`` is plain text.

    A content security policy forbids the browser to fetch anything or to run other scripts.

    >>> "<title>a &lt; b</title>" in page("a < b", "<h1>a</h1>")
    True
    """
    allowed = " ".join(map(_hash, scripts)) or "'none'"
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {allowed}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}{style}</style></head><body>{body}"
        + "".join(f"<script>{text}</script>" for text in scripts)
        + "</body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: Sequence[int] = (), kind: str = "") -> str:
    """An HTML table that scrolls if it is too wide; the columns in ``words`` contain text, which may wrap.

    >>> "<td>&lt;b&gt;</td>" in table(["a"], [["<b>"]])
    True
    """

    def cell(number: int, text: str) -> str:
        return f'<td class="words">{escape(text)}</td>' if number in words else f"<td>{escape(text)}</td>"

    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join("<tr>" + "".join(cell(n, text) for n, text in enumerate(row)) + "</tr>" for row in rows)
    return f'<div class="wide"><table class="{kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def drawing(figure: Figure, label: str = "") -> str:
    """A figure as an ``<svg>`` element, in the colours of light or dark mode."""
    text = svg(figure)
    for colour, variable in ((INK, "ink"), (SOFT, "soft"), (FAINT, "faint"), ("#ffffff", "paper")):
        text = text.replace(colour, f"var(--{variable})")
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(label)}"', 1) if label else text


def resource(name: str) -> str:
    """The text of a script or style sheet in this package.

    >>> "sortable" in resource("run_tables.js")
    True
    """
    return files("nearkin.reports").joinpath(name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"
