"""What came out, the paper's numbers beside ours, with everything in which the two differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nearkin.evaluation import score_name
from nearkin.reproduce.parts import Part
from nearkin.reproduce.plan import Plan


@dataclass(frozen=True)
class Outcome:
    """One row: its scores by column, between 0 and 1, its run's folder, or why there are none."""

    plan: Plan
    scores: dict[str, float]
    folder: str = ""
    problem: str = ""

    @property
    def sentences(self) -> list[str]:
        """Why there are no scores, or in what they differ from the paper's."""
        return [self.problem] if self.problem else self.plan.differs


@dataclass(frozen=True)
class Reproduction:
    """A table or figure with what came out for every row; when, on what and by which command the runs were made."""

    part: Part
    outcomes: tuple[Outcome, ...]
    made: Mapping[str, str]
    command: str

    @property
    def title(self) -> str:
        return f"{self.part.paper}. {self.part.number}: {self.part.caption}"

    @property
    def legend(self) -> str:
        means = [column.removeprefix("nmi_") for column in self.part.columns if column.startswith("nmi_")]
        return (
            "Numbers in percent, ours from one run each (bf16 on CUDA, else 32 bits); "
            + "".join(f"our NMI is over the {mean} mean of the two entropies; " for mean in means)
            + "the last column tells in what a run differs from the paper."
        )

    @property
    def origin(self) -> str:
        return " · ".join([*(f"{name} {value}" for name, value in self.made.items()), self.command])

    @property
    def nothing_came_out(self) -> str:
        """Why, where rows were tried and none has scores; else empty."""
        tried = [outcome for outcome in self.outcomes if outcome.plan.settings is not None]
        if not tried or any(outcome.scores for outcome in tried):
            return ""
        return f"none of the rows that were tried has scores; the first {tried[0].problem}"

    @property
    def headings(self) -> list[str]:
        return ["method", "data", "", *(heading(column) for column in self.part.columns), "differs in"]

    def differences(self) -> list[str]:
        """Every sentence once, in the order in which they come; the rows refer to them by number, from 1."""
        return list(dict.fromkeys(sentence for outcome in self.outcomes for sentence in outcome.sentences))

    def rows(self) -> list[list[str]]:
        """Two lines for a row of the paper: its numbers and ours; one where the paper has none."""
        lines = []
        for outcome in self.outcomes:
            plan, said = outcome.plan, ""
            if outcome.problem or plan.other_data:  # the first of the row's sentences
                first = outcome.sentences[0]
                said = f"{first.partition(':')[0]} ({self._number(first)})"
            name, data = plan.row.method, "; ".join(filter(None, (plan.dataset, said)))
            if any(number is not None for number in plan.row.paper):
                numbers = dict(zip(plan.row.columns, plan.row.paper, strict=True))
                lines.append([name, plan.dataset, "paper", *self._cells(numbers), ""])
                name, data = "", said
            percent = {column: 100 * score for column, score in outcome.scores.items()}
            references = _ranges(map(self._number, outcome.sentences))
            lines.append([name, data, "here", *self._cells(percent), references])
        return lines

    def markdown(self) -> str:
        head = [f"# {self.part.number}", "", f"{self.title}.", "", self.legend, ""]
        table = [_line(self.headings), "|---" * len(self.headings) + "|", *map(_line, self.rows())]
        notes = [f"{number}. {sentence}" for number, sentence in enumerate(self.differences(), 1)]
        return "\n".join([*head, *table, "", self.origin, "", *notes, ""])

    def record(self) -> dict[str, Any]:
        """Everything, for a machine."""
        return {
            "part": self.part.name,
            "paper": self.part.paper,
            "number": self.part.number,
            "caption": self.part.caption,
            "unit": "percent",
            "made": dict(self.made),
            "command": self.command,
            "rows": [self._row_record(outcome) for outcome in self.outcomes],
        }

    def _row_record(self, outcome: Outcome) -> dict[str, Any]:
        plan = outcome.plan
        return {
            "method": plan.row.method,
            "dataset": plan.dataset,
            "data": plan.data,
            "recipe": plan.row.recipe,
            "run": outcome.folder,
            "paper": dict(zip(plan.row.columns, plan.row.paper, strict=True)),
            "here": {column: 100 * score for column, score in outcome.scores.items()},
            "problem": outcome.problem,
            "differs": [] if outcome.problem else plan.differs,
        }

    def _cells(self, numbers: Mapping[str, float | None]) -> list[str]:
        found = [numbers.get(column) for column in self.part.columns]
        return ["" if number is None else f"{number:.{self.part.decimals}f}" for number in found]

    def _number(self, sentence: str) -> int:
        return self.differences().index(sentence) + 1


def heading(column: str) -> str:
    """A column's name as papers write it.

    >>> heading("recall@1"), heading("random_gallery_recall@5"), heading("nmi_geometric")
    ('Recall@1', 'Recall@5', 'NMI')
    """
    return score_name(column.removeprefix("random_gallery_")).partition(" (")[0]


def _ranges(numbers: Iterable[int]) -> str:
    """
    >>> _ranges([7, 1, 2, 3])
    '1–3, 7'
    """
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][-1] + 1:
            found[-1].append(number)
        else:
            found.append([number])
    return ", ".join(f"{each[0]}–{each[-1]}" if len(each) > 1 else str(each[0]) for each in found)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
