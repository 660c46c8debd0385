"""The result of a reproduction: the paper's numbers and ours, and how the runs differ from the paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearkin.evaluation import score_name
from nearkin.experiments.comparison_result import data_frame
from nearkin.experiments.papers import PaperTable

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Group


@dataclass(frozen=True)
class RowResult:
    """One row of the table; numbers are in percent."""

    method: str  # the paper's name for it
    recipe: str
    dataset: str  # the paper's data
    other_data: str  # the replacement for it; empty: none
    run: str  # folder of the run; empty: not run
    paper: dict[str, float | None]  # the paper's numbers by score
    here: dict[str, float] = field(default_factory=dict)  # our numbers
    problem: str = ""  # why there are none
    differs: list[str] = field(default_factory=list)  # how the run differs from the paper, in sentences

    @property
    def difference(self) -> dict[str, float]:
        """Our number minus the paper's, if both are known."""
        return {score: ours - paper for score, ours in self.here.items() if (paper := self.paper[score]) is not None}

    @property
    def sentences(self) -> list[str]:
        return [self.problem] if self.problem else self.differs


@dataclass(frozen=True, repr=False)
class ReproductionResult:
    """The results for all rows of a table or figure, with provenance (``made``), command and folder."""

    table: PaperTable
    rows: tuple[RowResult, ...]
    made: Mapping[str, str]
    command: str
    folder: Path

    @property
    def title(self) -> str:
        return f"{self.table.title}. {self.table.number}: {self.table.caption}"

    @property
    def legend(self) -> str:
        nmi = "".join(f", {score_name(column)}" for column in self.table.columns if column.startswith("nmi_"))
        return (
            f"Numbers in percent{nmi}; ours are from one run each (bf16 on CUDA, else float32); "
            "the last column refers to notes on how a run differs from the paper."
        )

    @property
    def origin(self) -> str:
        return " · ".join([*(f"{name} {value}" for name, value in self.made.items()), self.command])

    @property
    def headings(self) -> list[str]:
        return ["method", "data", "", *map(heading, self.table.columns), "differs in"]

    def lines(self) -> list[list[str]]:
        """Two lines per row, the paper's numbers and ours; one line if the paper has none."""
        numbers, lines = self.notes(), []
        for row in self.rows:
            notice = row.sentences[0].partition(":")[0] if row.problem or row.other_data else ""
            name = row.method
            if any(value is not None for value in row.paper.values()):
                lines.append([name, row.dataset, "paper", *self._cells(row.paper), ""])
                name = ""
            references = ", ".join(map(str, sorted(numbers[sentence] for sentence in row.sentences)))
            lines.append([name, notice or row.dataset, "here", *self._cells(row.here), references])
        return lines

    def notes(self) -> dict[str, int]:
        """Every sentence once, in order, with the number that lines refer to."""
        sentences = dict.fromkeys(sentence for row in self.rows for sentence in row.sentences)
        return {sentence: number for number, sentence in enumerate(sentences, 1)}

    def to_pandas(self) -> DataFrame:
        """One row per method, dataset and score: the paper's number, ours and the difference, in percent."""
        return data_frame(
            {"method": row.method, "dataset": row.dataset, "score": score, "paper": paper}
            | {"here": row.here.get(score), "difference": row.difference.get(score)}
            for row in self.rows
            for score, paper in row.paper.items()
        )

    def markdown(self) -> str:
        table = [self.headings, ["---"] * len(self.headings), *self.lines()]
        notes = [f"{number}. {sentence}" for sentence, number in self.notes().items()]
        head = [f"# {self.table.number}", "", f"{self.title}.", "", self.legend, ""]
        return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in table), "", self.origin, "", *notes, ""])

    __str__ = __repr__ = _repr_markdown_ = markdown  # in a terminal and in a notebook

    def record(self) -> dict[str, Any]:
        """The whole result as plain data, for JSON."""
        about = {"table": self.table.name, "paper": self.table.title}
        about |= {"number": self.table.number, "caption": self.table.caption, "unit": "percent"}
        return about | {"made": dict(self.made), "command": self.command, "rows": [vars(row) for row in self.rows]}

    def __rich__(self) -> Group:
        """The table for a terminal, followed by its provenance and the notes."""
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        # Without column borders, and with score names on several lines, ten columns fit into 80 characters.
        table = Table(box=SIMPLE_HEAD, padding=0, show_edge=False)
        table.add_column("method", min_width=11, overflow="fold")
        table.add_column("data", min_width=10, overflow="fold")
        table.add_column("", no_wrap=True)
        for column in self.table.columns:
            title = heading(column).replace("@", "\n@").replace(" ", "\n")
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("differs in", width=8)
        for line in self.lines():
            table.add_row(*line, end_section=line[2] == "here")
        notes = (Text(f"{number}. {sentence}") for sentence, number in self.notes().items())
        origin = Text(self.origin, no_wrap=True, overflow="ignore")  # one line, so that it can be copied
        return Group(Text(f"{self.title}\n{self.legend}"), table, origin, *notes)

    def _cells(self, numbers: Mapping[str, float | None]) -> list[str]:
        found = [numbers.get(column) for column in self.table.columns]
        return ["" if number is None else f"{number:.{self.table.decimals}f}" for number in found]


def heading(column: str) -> str:
    """The name of a score as papers write it.

    >>> heading("recall@1"), heading("random_gallery_recall@5"), heading("nmi_geometric")
    ('Recall@1', 'Recall@5', 'NMI')
    """
    return score_name(column.removeprefix("random_gallery_")).partition(" (")[0]
