"""The result of an evaluation, shared by training, commands, reports and notebooks."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

from rich.console import Console, ConsoleRenderable, Group, RichCast
from rich.table import Table
from rich.text import Text
from torch import Tensor

from nearkin.errors import UserError
from nearkin.evaluation.diagnostics import Diagnostics
from nearkin.evaluation.metrics import describe, score_text
from nearkin.evaluation.retrieval import Retrieval

if TYPE_CHECKING:
    from pandas import DataFrame

Interval = tuple[float, float]
Columns = Mapping[str, Mapping[str, float | Interval]]  # by heading and score


@dataclass(frozen=True, eq=False, repr=False)
class EvaluationResult:
    """The scores of embeddings. Prints as a table.

    Attributes:
        scores: by name, such as "recall@1" or "map@r"; `nearkin.evaluation.describe` explains a name.
        retrieval: the scores and neighbours of each query.
        clusters: (items,) the cluster of each item; None without clustering.
        intervals: the ends of the 95 % confidence intervals of retrieval scores, by name, if requested.
        backbone: the scores of the pretrained backbone alone, if known.
        attributes: the share of neighbours with the same attribute, by neighbourhood size and attribute, and "chance".
        diagnostics: distances and spectrum of the space, if requested.
        split: "train", "validation", "test" or "all", if a split of a dataset was evaluated.
    """

    scores: dict[str, float]
    retrieval: Retrieval
    clusters: Tensor | None = None
    intervals: dict[str, Interval] = field(default_factory=dict)
    backbone: dict[str, float] = field(default_factory=dict)
    attributes: dict[str, dict[str, float]] = field(default_factory=dict)
    diagnostics: Diagnostics | None = None
    split: str = ""

    primary: ClassVar[str] = "map@r"  # the score that compares models and selects checkpoints

    @property
    def neighbours(self) -> Tensor:
        """(queries, kept) rows of the space: the nearest gallery items of each query."""
        return self.retrieval.neighbours

    @property
    def columns(self) -> Columns:
        """The columns of the table: headings and scores."""
        columns: dict[str, Mapping[str, float | Interval]] = {
            "backbone alone": self.backbone,
            self.split or "score": self.scores,
            "95 % interval": self.intervals,
        }
        return {heading: column for heading, column in columns.items() if column}

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and lists, for a file: the scores by split, and everything else that is known."""
        optional = {
            "attributes": self.attributes,
            "distances": self.diagnostics.histograms if self.diagnostics else {},
            "backbone": self.backbone,
        }
        known = {name: value for name, value in optional.items() if value}
        return {self.split or "scores": self.scores, "intervals": self.intervals, **known}

    def to_pandas(self) -> DataFrame:
        """One row per score: its title, value and, if known, its interval and the backbone's score."""
        try:
            from pandas import DataFrame
        except ImportError:
            raise UserError("to_pandas needs pandas; run `pip install pandas`") from None
        columns: dict[str, list[Any]] = {
            "title": [describe(name).title for name in self.scores],
            "value": list(self.scores.values()),
        }
        if self.intervals:
            ends = [self.intervals.get(name, (float("nan"),) * 2) for name in self.scores]
            columns |= {"low": [low for low, _ in ends], "high": [high for _, high in ends]}
        if self.backbone:
            columns["backbone"] = [self.backbone.get(name, float("nan")) for name in self.scores]
        return DataFrame(columns, index=list(self.scores))

    def __rich__(self) -> Group:
        tables = [score_table(self.columns, sampled=self._sampled)]
        return Group(*tables, *([attribute_table(self.attributes)] if self.attributes else []))

    def __str__(self) -> str:
        return plain_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        headings, rows = _cells(self.columns, self._sampled)
        head = "".join(f"<th>{escape(text)}</th>" for text in headings)
        body = "".join("<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    @property
    def _sampled(self) -> tuple[str, ...]:
        return self.diagnostics.sampled if self.diagnostics else ()


def plain_text(shown: ConsoleRenderable | RichCast) -> str:
    """The text that a terminal would show, without colours."""
    text = io.StringIO()
    Console(file=text, width=200, color_system=None).print(shown)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def score_table(columns: Columns, title: str | None = None, sampled: tuple[str, ...] = ()) -> Table:
    """A table of scores for the terminal; marks scores that were computed from a sample of pairs."""
    headings, rows = _cells(columns, sampled)
    table = Table(title=title, title_justify="left")
    for number, head in enumerate(headings):
        table.add_column(Text(head), justify="right" if number else "left")
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def attribute_table(shares: Mapping[str, Mapping[str, float]]) -> Table:
    """A table of shares[size][attribute]: one row per attribute, one column per neighbourhood size, and chance."""
    table = Table(
        title="share of the n nearest neighbours with the same attribute",
        title_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    table.add_column("", overflow="fold")
    for size in shares:
        table.add_column(size, justify="right", no_wrap=True, min_width=5)
    for name in shares["chance"]:
        table.add_row(Text(name), *(f"{column[name]:.3f}" if name in column else "" for column in shares.values()))
    return table


def _cells(columns: Columns, sampled: tuple[str, ...]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a table of scores; an arrow shows the better direction."""
    rows = []
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        if name == "queries_without_positives" and not any(column.get(name) for column in columns.values()):
            continue
        metric = describe(name)
        head = f"{metric.title} {metric.arrow}".rstrip() + (", sampled" if name in sampled else "")
        rows.append([head, *(_text(name, column[name]) if name in column else "" for column in columns.values())])
    return ["", *columns], rows


def _text(name: str, value: float | Interval) -> str:
    return " – ".join(score_text(name, each) for each in (value if isinstance(value, tuple) else (value,)))
