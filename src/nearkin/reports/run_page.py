"""The HTML page of a run report, section by section."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from nearkin.evaluation import describe, score_text
from nearkin.reports.map import Map, map_html
from nearkin.reports.page import drawing, page, resource, table
from nearkin.reports.split import EmbeddedSplit, class_scores, confusions
from nearkin.reports.thumbnails import COLUMNS, Sheet, Thumbnails

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEADLINE = ("recall@1", "map@r", "nmi_arithmetic")
NEIGHBOURS = 8
MAX_CLASSES = 500


@dataclass(frozen=True)
class Group:
    """A group of training items: a title, a line of description, and some example items."""

    title: str
    about: str
    items: Mapping[int, str]  # class name by item number


@dataclass(frozen=True, eq=False)
class Grouping:
    """The groups into which a method divides the training split, where they come from, and thumbnails of the items."""

    title: str
    source: str
    groups: Sequence[Group]
    thumbnails: Thumbnails | None


@dataclass(frozen=True, eq=False)
class RunReport:
    """Everything that a report shows about a run, finished or not.

    Attributes:
        title: method and dataset.
        facts: facts about model, training and split, a few words each.
        notices: sentences about what is missing or unexpected.
        outcome, verdict: whether training helped ("better", "mixed", "not better" or "unknown") and a sentence; may be
            empty.
        protocol: how the model was chosen: "fair" or "paper", and a sentence.
        records: the lines of the run's metrics.
        kept_epoch: the epoch whose model was kept; None if it was not chosen by its score.
        backbone, before, after: scores that training measured on the test split, for the backbone alone and for the
            model before and after training; empty if it measured none, or on other data.
        split: the split to show, embedded by the model; None if the data are missing.
        grouping: the method's groups of training items; None if it has none or the data are missing.
        config: the run's settings, as TOML.
        command: the command that repeats the run.
        made: versions and hardware that made the report, by name.
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
    """The complete page.

    Args:
        curves, spread: figures by name.
        shown: the map of the split, or None.
        random, worst: queries to show with their neighbours, as positions in ``space.queries``.
    """
    split, grouping, sheets = report.split, report.grouping, []
    sections = [_head(report)]
    if curves:
        sections += ["<h2>Learning curves</h2>", _side_by_side(curves)]
    sections.append(_scores(report))
    if split is not None:
        sheet = Sheet("near", split.thumbnails, 96)
        sheets.append(sheet)
        if shown is not None:
            sections.append(_map(shown, split))
        if split.result is not None:
            sections += [_neighbours(split, sheet, random, worst), _classes(split), _confusions(split, sheet)]
        sections += ["<h2>Distances and spectrum</h2>", _side_by_side(spread), _spread(split)]
    if grouping is not None:
        sheets.append(Sheet("groups", grouping.thumbnails, 96))
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
        + _headline(report)
    )


def _verdict(report: RunReport) -> str:
    """Whether training helped, and how the model was chosen; a choice on the test split is shown as a warning."""
    protocol, words = report.protocol
    kind = report.outcome.replace(" ", "-") or "unknown"
    verdict = f'<p class="verdict {kind}">{escape(report.verdict)}</p>' if report.verdict else ""
    return verdict + f'<p class="{"protocol paper" if protocol == "paper" else "facts"}">{escape(words)}</p>'


def _headline(report: RunReport) -> str:
    base, after = _if_test(report, report.backbone or report.before), _measured(report)

    def number(score: str) -> str:
        start = f"<small>{base[score]:.3f} → </small>" if score in base else ""
        return f"<div><b>{start}{after[score]:.3f}</b>{_abbreviated(score)}</div>"

    return f'<div class="big">{"".join(number(score) for score in HEADLINE if score in after)}</div>'


def _if_test(report: RunReport, scores: dict[str, float]) -> dict[str, float]:
    """Scores on the test split, if that is the split on the page; otherwise none."""
    return scores if report.split is None or report.split.name == "test" else {}


def _measured(report: RunReport) -> dict[str, float]:
    """Scores of the split on the page; those of the method's own read-out are as training measured them."""
    if report.split is None:
        return report.after
    own = report.split.result.scores if report.split.result else {}
    return own | {name: value for name, value in _if_test(report, report.after).items() if name not in own}


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
    earlier = {name: scores for name, scores in earlier.items() if _if_test(report, scores)}
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
        '<p class="legend">95 % intervals: percentile bootstrap over the classes of the queries, with a fixed '
        "gallery.</p>"
        f"<details><summary>What the scores mean</summary><dl>{meanings}</dl></details>"
    )


def _side_by_side(figures: dict[str, Figure]) -> str:
    drawn = (f"<div>{drawing(figure, name)}</div>" for name, figure in figures.items())
    return f'<div class="side">{"".join(drawn)}</div>'


def _map(shown: Map, split: EmbeddedSplit) -> str:
    number, all_items = len(shown.rows), len(split.space)
    items = f"{number:,} items" if number == all_items else f"a random sample of {number:,} of {all_items:,} items"
    return (
        f'<h2>Map of the space</h2><p class="legend">t-SNE of {items} of the {split.name} split, one colour per class. '
        "Hover over or tap an item to see its nearest neighbour. Scroll or pinch to zoom; drag to move.</p>"
        + map_html(shown, split)
    )


def _neighbours(split: EmbeddedSplit, sheet: Sheet, random: Sequence[int], worst: Sequence[int]) -> str:
    text = [
        "<h2>Nearest neighbours</h2>",
        '<p class="legend">Random queries, each followed by its neighbours, nearest first. '
        "✓ same class, ✗ other class.</p>",
        *(_row(split, sheet, query, "") for query in random),
    ]
    if len(worst):
        text.append("<h2>Hardest queries</h2>")
        text.append('<p class="legend">The queries whose first right neighbour has the worst rank, one per class.</p>')
    assert split.result is not None
    ranks = split.result.retrieval.first_rank
    for query in worst:
        text.append(_row(split, sheet, query, f": first right neighbour at rank {int(ranks[query]):,}"))
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
    shown = f"The hardest {MAX_CLASSES} of {len(rows):,} classes" if len(rows) > MAX_CLASSES else "Hardest first"
    cells = [
        [
            split.classes[row.label],
            f"{row.items:,}",
            f"{row.recall:.3f}",
            f"{row.map_at_r:.3f}",
            f"{row.r_precision:.3f}",
        ]
        for row in rows[:MAX_CLASSES]
    ]
    heads = ("class", "items", "Recall@1", "MAP@R", "R-precision")
    return (
        f'<h2>Classes</h2><p class="legend">{shown}; click a heading to sort.</p>'
        f'<div class="tall">{table(heads, cells, words=(0,), kind="sortable")}</div>'
    )


def _confusions(split: EmbeddedSplit, sheet: Sheet) -> str:
    assert split.result is not None
    found = confusions(split.space, split.result)
    if not found:
        return "<h2>Confusions</h2><p>None: the nearest neighbour of every query has the same class.</p>"
    classes = split.classes
    pairs = (
        f"<div>{sheet.tile(each.query, classes[each.label])}{sheet.tile(each.neighbour, classes[each.other], 'wrong')}"
        f'<span class="names"><b>{each.count:,} ×</b> '
        f"{escape(classes[each.label])} → {escape(classes[each.other])}</span></div>"
        for each in found
    )
    return (
        '<h2>Confusions</h2><p class="legend">Class of the query → class of its nearest neighbour, with the number of '
        f'queries and an example.</p><div class="pairs">{"".join(pairs)}</div>'
    )


def _spread(split: EmbeddedSplit) -> str:
    scores, exact = split.diagnostics.scores, split.diagnostics.positives.exact and split.diagnostics.negatives.exact
    words = (
        f"Mean distance within classes / between classes: {scores['distance_ratio']:.3f}. Spectral decay: "
        f"{scores['spectral_decay']:.3f} (0 for a uniform spectrum). Collapsed dimensions: "
        f"{scores['collapsed_dimensions']:.0%}. Distances of "
        + ("all pairs." if exact else "a random sample of the pairs.")
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
        f"<h2>How to repeat this</h2><pre>{escape(report.command)}</pre>"
        f"<footer>About this report: {escape(words)}</footer>"
    )
