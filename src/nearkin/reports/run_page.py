"""The page of one run, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from nearkin.evaluation import describe, score_text
from nearkin.reports.map import Map, map_html
from nearkin.reports.page import drawing, page, resource, table
from nearkin.reports.pictures import COLUMNS, Pictures, Sheet
from nearkin.reports.split import EmbeddedSplit, class_scores, confusions

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BIG = ("recall@1", "map@r", "nmi_arithmetic")
NEIGHBOURS = 8
MOST_CLASSES = 500


@dataclass(frozen=True)
class Group:
    """Items of the training split that the method holds together: title, a line about them, some items by number."""

    title: str
    about: str
    items: Mapping[int, str]  # with the names of their classes


@dataclass(frozen=True, eq=False)
class Grouping:
    """What a method divides the training split into, where this was read, and how its items are seen."""

    title: str
    source: str
    groups: Sequence[Group]
    pictures: Pictures | None


@dataclass(frozen=True, eq=False)
class RunReport:
    """All that a report tells about a run, as far as it got.

    Attributes:
        title: what was trained on what.
        facts: about model, training and split, a few words each.
        notices: what is left out or not as expected, a sentence each.
        outcome, verdict: what training was worth: "better", "not better" or "unknown", and in a sentence; or empty.
        protocol: how the model was chosen, "fair" or "paper", and the same in words.
        records: the lines of the run's metrics.
        kept_epoch: the epoch whose model was kept; None where it was not chosen by scores on the way.
        backbone, before, after: scores of the test split that training measured, of the backbone alone and of the model
            before and after; empty where it did not, or on other data.
        split: what the model embeds now; None where the data are gone.
        grouping: what the method divides the training split into; None where it does not, or the data are gone.
        config: the run's settings, as TOML.
        command: trains it again.
        made: with which versions and on what the report was made, by name.
    """

    title: str
    facts: Sequence[str]
    notices: Sequence[str]
    outcome: str
    verdict: str
    protocol: tuple[str, str]
    records: Sequence[dict[str, Any]]
    kept_epoch: int | None
    backbone: dict[str, float]
    before: dict[str, float]
    after: dict[str, float]
    split: EmbeddedSplit | None
    grouping: Grouping | None
    config: str
    command: str
    made: Mapping[str, str]


def run_page(
    report: RunReport,
    curves: dict[str, Figure],
    spread: dict[str, Figure],
    shown: Map | None,
    random: Sequence[int],
    worst: Sequence[int],
) -> str:
    """The whole page.

    Args:
        curves, spread: figures by name.
        shown: the map of the split; None where there is none.
        random, worst: queries to show with their neighbours, as places in ``space.queries``.
    """
    split, grouping, sheets = report.split, report.grouping, []
    sections = [_head(report)]
    if curves:
        sections += ["<h2>Learning curves</h2>", _side_by_side(curves)]
    sections.append(_scores(report))
    if split is not None:
        sheet = Sheet("near", split.pictures, 96)
        sheets.append(sheet)
        if shown is not None:
            sections.append(_map(shown, split))
        if split.result is not None:
            sections += [_gallery(split, sheet, random, worst), _classes(split), _confusions(split, sheet)]
        sections += ["<h2>Distances and spectrum</h2>", _side_by_side(spread), _spread(split)]
    if grouping is not None:
        sheets.append(Sheet("groups", grouping.pictures, 96))
        sections.append(_groups(grouping, sheets[-1]))
    sections.append(_repeat(report))
    scripts = [resource("run_map.js")] if shown is not None else []
    scripts.append(resource("run_tables.js"))
    style = f":root{{--columns:{COLUMNS}}}" + resource("run_page.css") + "".join(sheet.style() for sheet in sheets)
    return page(report.title, "\n".join(sections), style, scripts)


def _head(report: RunReport) -> str:
    return (
        f"<h1>{escape(report.title)}</h1>"
        f'<p class="facts">{escape(" · ".join(report.facts))}</p>{_verdict(report)}'
        + "".join(f'<p class="notice">{escape(notice)}</p>' for notice in report.notices)
        + _big_numbers(report)
    )


def _verdict(report: RunReport) -> str:
    """What training was worth, and how the model was chosen; a choice on the test split is said as a warning."""
    protocol, words = report.protocol
    kind = report.outcome.replace(" ", "-") or "unknown"
    verdict = f'<p class="verdict {kind}">{escape(report.verdict)}</p>' if report.verdict else ""
    return verdict + f'<p class="{"protocol paper" if protocol == "paper" else "facts"}">{escape(words)}</p>'


def _big_numbers(report: RunReport) -> str:
    base, after = _of_test(report, report.backbone or report.before), _measured(report)

    def number(score: str) -> str:
        start = f"<small>{base[score]:.3f} → </small>" if score in base else ""
        return f"<div><b>{start}{after[score]:.3f}</b>{_abbreviated(score)}</div>"

    return f'<div class="big">{"".join(number(score) for score in BIG if score in after)}</div>'


def _of_test(report: RunReport, scores: dict[str, float]) -> dict[str, float]:
    """Scores of the test split, where that is what the page shows."""
    return scores if report.split is None or report.split.name == "test" else {}


def _measured(report: RunReport) -> dict[str, float]:
    """The scores of the split that is shown; those of the method's own read-out as training measured them."""
    if report.split is None:
        return report.after
    own = report.split.result.scores if report.split.result else {}
    return own | {name: value for name, value in _of_test(report, report.after).items() if name not in own}


def _abbreviated(score: str) -> str:
    metric = describe(score)
    return f'<abbr title="{escape(metric.meaning)}">{escape(f"{metric.title} {metric.arrow}".rstrip())}</abbr>'


def _scores(report: RunReport) -> str:
    after = _measured(report)
    intervals = report.split.result.intervals if report.split and report.split.result else {}
    after = {name: value for name, value in after.items() if value or name != "queries_without_positives"}
    if not after:
        return ""
    earlier = {"backbone alone": report.backbone, "before training": report.before}
    earlier = {name: scores for name, scores in earlier.items() if _of_test(report, scores)}
    heads = ("", *earlier, "after training" if earlier else "score", "95 % interval")

    def row(name: str) -> str:
        starts = [score_text(name, scores[name]) if name in scores else "" for scores in earlier.values()]
        interval = " – ".join(score_text(name, end) for end in intervals.get(name, ()))
        cells = (*starts, score_text(name, after[name]), interval)
        return f"<tr><td>{_abbreviated(name)}</td>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"

    metrics = map(describe, after)
    meanings = "".join(f"<dt>{escape(each.title)}</dt><dd>{escape(each.meaning)}</dd>" for each in metrics)
    return (
        f'<h2>Scores</h2><div class="wide"><table><thead><tr>{"".join(f"<th>{head}</th>" for head in heads)}'
        f"</tr></thead><tbody>{''.join(map(row, after))}</tbody></table></div>"
        '<p class="legend">Intervals: percentile bootstrap over classes of queries; the gallery stays as it is.</p>'
        f"<details><summary>What the scores mean</summary><dl>{meanings}</dl></details>"
    )


def _side_by_side(figures: dict[str, Figure]) -> str:
    drawn = (f"<div>{drawing(figure, name)}</div>" for name, figure in figures.items())
    return f'<div class="side">{"".join(drawn)}</div>'


def _map(shown: Map, split: EmbeddedSplit) -> str:
    number, all_items = len(shown.rows), len(split.space)
    drawn = "" if number == all_items else f", drawn by chance from {all_items:,}"
    return (
        f'<h2>Map of the space</h2><p class="legend">t-SNE of {number:,} items of the {split.name} split{drawn}; '
        "a colour for each class. "
        "Hover or tap for an item and its nearest neighbour; wheel or pinch to zoom, drag to move.</p>"
        + map_html(shown, split)
    )


def _gallery(split: EmbeddedSplit, sheet: Sheet, random: Sequence[int], worst: Sequence[int]) -> str:
    text = [
        "<h2>Nearest neighbours</h2>",
        '<p class="legend">The query first, then its neighbours, nearest first; ✓ same class, ✗ another.</p>',
        *(_row(split, sheet, query, "") for query in random),
    ]
    if len(worst):
        text.append("<h2>The hardest queries</h2>")
        text.append(
            '<p class="legend">Those whose nearest item of their class is the farthest down, one of a class.</p>'
        )
    assert split.result is not None
    ranks = split.result.retrieval.first_rank
    for query in worst:
        text.append(_row(split, sheet, query, f": first right neighbour at place {int(ranks[query]):,}"))
    return "".join(text)


def _row(split: EmbeddedSplit, sheet: Sheet, query: int, remark: str) -> str:
    assert split.result is not None
    own = int(split.space.queries[query])
    tiles = [sheet.tile(own, split.class_name(own), "query")]
    for row in split.result.neighbours[query, :NEIGHBOURS].tolist():
        mark = "right" if split.space.labels[row] == split.space.labels[own] else "wrong"
        tiles.append(sheet.tile(row, split.class_name(row), mark))
    words = escape(split.class_name(own) + remark)
    return f'<div class="row">{"".join(tiles)}<span class="legend">{words}</span></div>'


def _classes(split: EmbeddedSplit) -> str:
    assert split.result is not None
    rows = class_scores(split.space, split.result)
    cut = f"{MOST_CLASSES} of {len(rows):,}, " if len(rows) > MOST_CLASSES else ""
    cells = [
        [
            split.classes[row.label],
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


def _confusions(split: EmbeddedSplit, sheet: Sheet) -> str:
    assert split.result is not None
    found = confusions(split.space, split.result)
    if not found:
        return "<h2>Confusions</h2><p>None: every query's nearest neighbour is of its class.</p>"
    classes = split.classes
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


def _spread(split: EmbeddedSplit) -> str:
    scores, exact = split.diagnostics.scores, split.diagnostics.positives.exact and split.diagnostics.negatives.exact
    words = (
        f"Mean distance within classes over that between: {scores['distance_ratio']:.3f}; spectral decay "
        f"{scores['spectral_decay']:.3f} (0: all directions used alike); collapsed directions "
        f"{scores['collapsed_dimensions']:.0%}. " + ("All pairs." if exact else "A sample of the pairs.")
    )
    return f'<p class="legend">{escape(words)}</p>'


def _groups(grouping: Grouping, sheet: Sheet) -> str:
    text = [f'<h2>{escape(grouping.title)}</h2><p class="legend">Training split; {escape(grouping.source)}.</p>']
    for group in grouping.groups:
        tiles = "".join(sheet.tile(item, name) for item, name in group.items.items())
        text.append(
            f'<div class="group"><b>{escape(group.title)}</b> <span class="legend">{escape(group.about)}</span>'
            f'<div class="row">{tiles}</div></div>'
        )
    return "".join(text)


def _repeat(report: RunReport) -> str:
    words = " · ".join(f"{name} {value}" for name, value in report.made.items())
    return (
        f"<h2>Settings</h2><pre>{escape(report.config)}</pre>"
        f"<h2>To repeat it</h2><pre>{escape(report.command)}</pre>"
        f"<footer>This report was made with: {escape(words)}</footer>"
    )
