"""The page of one run, section by section, from what `run_facts` gathered."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from datetime import date
from html import escape
from importlib.metadata import version
from typing import TYPE_CHECKING

from nearkin.evaluation import describe, score_name, score_text
from nearkin.report.page import drawing, page, resource, table
from nearkin.report.provenance import provenance
from nearkin.report.run_classes import class_scores, confusions
from nearkin.report.run_facts import Looked, RunFacts
from nearkin.report.run_groups import Grouping
from nearkin.report.run_map import Map, map_html
from nearkin.report.run_sheet import COLUMNS, Sheet
from nearkin.report.run_words import choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BIG = ("recall@1", "map@r", "nmi_arithmetic")
NEIGHBOURS = 8
MOST_CLASSES = 500


def run_page(
    facts: RunFacts,
    curves: dict[str, Figure],
    spread: dict[str, Figure],
    shown: Map | None,
    random: Sequence[int],
    worst: Sequence[int],
    grouping: Grouping | None,
) -> str:
    """The whole page.

    Args:
        curves, spread: figures by name.
        shown: the map of the part that was looked at; None where there is none.
        random, worst: queries to show with their neighbours, as places in ``space.queries``.
        grouping: what the method divides the training part into, if it does.
    """
    looked, sheets = facts.looked, []
    sections = [_head(facts)]
    if curves:
        sections += ["<h2>Learning curves</h2>", _side_by_side(curves)]
    sections.append(_scores(facts))
    if looked is not None:
        sheet = Sheet("near", looked.dataset.items, 96)
        sheets.append(sheet)
        if shown is not None:
            sections.append(_map(shown, looked))
        if looked.evaluation is not None:
            sections += [_gallery(looked, sheet, random, worst), _classes(looked), _confusions(looked, sheet)]
        sections += ["<h2>Distances and spectrum</h2>", _side_by_side(spread), _spread(looked)]
    if grouping is not None and facts.train is not None:
        sheets.append(Sheet("groups", facts.train.items, 96))
        sections.append(_groups(grouping, facts.train.classes, facts.train.labels.tolist(), sheets[-1]))
    sections.append(_repeat(facts))
    scripts = [resource("run_map.js")] if shown is not None else []
    scripts.append(resource("run_tables.js"))
    style = f":root{{--columns:{COLUMNS}}}" + resource("run_page.css") + "".join(sheet.style() for sheet in sheets)
    return page(_title(facts), "\n".join(sections), style, scripts)


def _title(facts: RunFacts) -> str:
    return f"{facts.settings.method} on {facts.looked.dataset.name if facts.looked else facts.settings.data.source}"


def _head(facts: RunFacts) -> str:
    settings, looked = facts.settings, facts.looked
    saved = date.fromtimestamp((facts.run.model_folder / "model.json").stat().st_mtime).isoformat()
    lines = [
        f"backbone {settings.model.backbone}" + (", frozen" if settings.model.freeze_backbone else ""),
        f"{settings.model.dim or 'no head, all'} dimensions, "
        + ("not normalised" if settings.model.normalize == "never" else "of unit length"),
        f"{settings.training.epochs} epochs",
        f"seed {settings.training.seed}",
        f"model saved {saved}",
    ]
    if looked is not None:
        items, classes = len(looked.dataset), len(looked.dataset.present_classes)
        lines.append(f"{looked.part} part: {items:,} items of {classes:,} classes")
    return (
        f"<h1>{escape(_title(facts))}</h1>"
        f'<p class="facts">{escape(" · ".join(lines))}</p>{_verdict(facts)}'
        + "".join(f'<p class="notice">{escape(notice)}</p>' for notice in facts.notices)
        + _big_numbers(facts)
    )


def _verdict(facts: RunFacts) -> str:
    """What training was worth, and how the model was chosen; a choice on the test split is said as a warning."""
    protocol, words = choice(facts.settings.training.keep)
    kind = facts.outcome.replace(" ", "-") or "unknown"
    verdict = f'<p class="verdict {kind}">{escape(facts.verdict)}</p>' if facts.verdict else ""
    return verdict + f'<p class="{"protocol paper" if protocol == "paper" else "facts"}">{escape(words)}</p>'


def _big_numbers(facts: RunFacts) -> str:
    base, after = _of_test(facts, facts.backbone or facts.before), _measured(facts)

    def number(score: str) -> str:
        start = f"<small>{base[score]:.3f} → </small>" if score in base else ""
        return f"<div><b>{start}{after[score]:.3f}</b>{_abbreviated(score)}</div>"

    return f'<div class="big">{"".join(number(score) for score in BIG if score in after)}</div>'


def _of_test(facts: RunFacts, scores: dict[str, float]) -> dict[str, float]:
    """Scores of the test split, where that is what the page shows."""
    return scores if facts.looked is None or facts.looked.part == "test" else {}


def _measured(facts: RunFacts) -> dict[str, float]:
    """The scores of the part that was looked at; those of the method's own read-out as training measured them."""
    if facts.looked is None:
        return facts.after
    own = facts.looked.evaluation.scores if facts.looked.evaluation else {}
    return own | {name: value for name, value in facts.after.items() if name not in own and facts.looked.part == "test"}


def _abbreviated(score: str) -> str:
    return f'<abbr title="{escape(describe(score).meaning)}">{escape(score_name(score))}</abbr>'


def _scores(facts: RunFacts) -> str:
    after, intervals = _measured(facts), facts.looked.intervals if facts.looked else {}
    after = {name: value for name, value in after.items() if value or name != "queries_without_positives"}
    if not after:
        return ""
    earlier = {"backbone alone": facts.backbone, "before training": facts.before}
    earlier = {name: scores for name, scores in earlier.items() if _of_test(facts, scores)}
    heads = ("", *earlier, "after training" if earlier else "score", "95 % interval")

    def row(name: str) -> str:
        starts = [score_text(name, scores[name]) if name in scores else "" for scores in earlier.values()]
        interval = " – ".join(score_text(name, end) for end in intervals.get(name, ()))
        cells = (*starts, score_text(name, after[name]), interval)
        return f"<tr><td>{_abbreviated(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"

    meanings = "".join(
        f"<dt>{escape(score_name(name))}</dt><dd>{escape(describe(name).meaning)}</dd>" for name in after
    )
    return (
        f'<h2>Scores</h2><div class="wide"><table><thead><tr>{"".join(f"<th>{head}</th>" for head in heads)}'
        f"</tr></thead><tbody>{''.join(map(row, after))}</tbody></table></div>"
        '<p class="legend">Intervals: percentile bootstrap over classes of queries; the gallery stays as it is.</p>'
        f"<details><summary>What the scores mean</summary><dl>{meanings}</dl></details>"
    )


def _side_by_side(figures: dict[str, Figure]) -> str:
    drawn = (f"<div>{drawing(figure, name)}</div>" for name, figure in figures.items())
    return f'<div class="side">{"".join(drawn)}</div>'


def _map(shown: Map, looked: Looked) -> str:
    number, all_items = len(shown.rows), len(looked.space)
    drawn = "" if number == all_items else f", drawn by chance from {all_items:,}"
    return (
        f'<h2>Map of the space</h2><p class="legend">t-SNE of {number:,} items of the {looked.part} part{drawn}; '
        "a colour for each class. "
        "Hover or tap for an item and its nearest neighbour; wheel or pinch to zoom, drag to move.</p>"
        + map_html(shown, looked)
    )


def _gallery(looked: Looked, sheet: Sheet, random: Sequence[int], worst: Sequence[int]) -> str:
    text = [
        "<h2>Nearest neighbours</h2>",
        '<p class="legend">The query first, then its neighbours, nearest first; ✓ same class, ✗ another.</p>',
        *(_row(looked, sheet, query, "") for query in random),
    ]
    if len(worst):
        text.append("<h2>The hardest queries</h2>")
        text.append(
            '<p class="legend">Those whose nearest item of their class is the farthest down, one of a class.</p>'
        )
    assert looked.evaluation is not None
    ranks = looked.evaluation.retrieval.first_rank
    for query in worst:
        text.append(_row(looked, sheet, query, f": first right neighbour at place {int(ranks[query]):,}"))
    return "".join(text)


def _row(looked: Looked, sheet: Sheet, query: int, remark: str) -> str:
    assert looked.evaluation is not None
    own = int(looked.space.queries[query])
    tiles = [sheet.tile(own, looked.class_name(own), "query")]
    for row in looked.evaluation.neighbours[query, :NEIGHBOURS].tolist():
        mark = "right" if looked.dataset.labels[row] == looked.dataset.labels[own] else "wrong"
        tiles.append(sheet.tile(row, looked.class_name(row), mark))
    words = escape(looked.class_name(own) + remark)
    return f'<div class="row">{"".join(tiles)}<span class="legend">{words}</span></div>'


def _classes(looked: Looked) -> str:
    assert looked.evaluation is not None
    rows = class_scores(looked.space, looked.evaluation)
    cut = f"{MOST_CLASSES} of {len(rows):,}, " if len(rows) > MOST_CLASSES else ""
    cells = [
        [
            looked.dataset.classes[row.label],
            f"{row.items:,}",
            f"{row.recall:.3f}",
            f"{row.map_at_r:.3f}",
            f"{row.r_precision:.3f}",
        ]
        for row in rows[:MOST_CLASSES]
    ]
    heads = ("class", "items", "Recall@1", "MAP@R", "R-precision")
    return (
        f'<h2>Classes</h2><p class="legend">{cut}the hardest first; click a heading to sort.</p>'
        f'<div class="tall">{table(heads, cells, words=(0,), kind="sortable")}</div>'
    )


def _confusions(looked: Looked, sheet: Sheet) -> str:
    assert looked.evaluation is not None
    found = confusions(looked.space, looked.evaluation)
    if not found:
        return "<h2>Confusions</h2><p>None: every query's nearest neighbour is of its class.</p>"
    classes = looked.dataset.classes
    pairs = (
        f"<div>{sheet.tile(each.query, classes[each.label])}{sheet.tile(each.neighbour, classes[each.other], 'wrong')}"
        f'<span class="names"><b>{each.count:,} ×</b> '
        f"{escape(classes[each.label])} → {escape(classes[each.other])}</span></div>"
        for each in found
    )
    return (
        '<h2>Confusions</h2><p class="legend">Class of a query → class of its nearest neighbour, how many times, '
        f'and one of them.</p><div class="pairs">{"".join(pairs)}</div>'
    )


def _spread(looked: Looked) -> str:
    scores, exact = looked.spread.scores, looked.spread.positives.exact and looked.spread.negatives.exact
    words = (
        f"Mean distance within classes over that between: {scores['distance_ratio']:.3f}; spectral decay "
        f"{scores['spectral_decay']:.3f} (0: all directions used alike); collapsed directions "
        f"{scores['collapsed_dimensions']:.0%}. " + ("All pairs." if exact else "A sample of the pairs.")
    )
    return f'<p class="legend">{escape(words)}</p>'


def _groups(grouping: Grouping, classes: Sequence[str], labels: Sequence[int], sheet: Sheet) -> str:
    text = [f'<h2>{escape(grouping.title)}</h2><p class="legend">Training part; {escape(grouping.source)}.</p>']
    for group in grouping.groups:
        tiles = "".join(sheet.tile(item, classes[labels[item]]) for item in group.items)
        text.append(
            f'<div class="group"><b>{escape(group.title)}</b> <span class="legend">{escape(group.about)}</span>'
            f'<div class="row">{tiles}</div></div>'
        )
    return "".join(text)


def _repeat(facts: RunFacts) -> str:
    command = f"nearkin train --config {shlex.quote(str(facts.run.config_file))}"
    made = provenance() | {"Python": platform.python_version()} | {name: version(name) for name in ("torch", "timm")}
    words = " · ".join(f"{name} {value}" for name, value in made.items())
    return (
        f"<h2>Settings</h2><pre>{escape(facts.run.config_file.read_text(encoding='utf-8'))}</pre>"
        f"<h2>To repeat it</h2><pre>{escape(command)}</pre>"
        f"<footer>This report was made with: {escape(words)}</footer>"
    )
