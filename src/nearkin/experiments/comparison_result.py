"""The result of a comparison, as a value and as tables."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from nearkin.data.summary import counted
from nearkin.errors import UserError
from nearkin.evaluation import score_name
from nearkin.experiments.comparison_plan import PROTOCOLS
from nearkin.training.model_selection import KEEP

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Group

IN_WORDS = {protocol: KEEP[settings["keep"]][1] for protocol, settings in PROTOCOLS.items()}
BACKBONE = "backbone alone"
COLUMNS = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "nmi_arithmetic")
HEADINGS = ("method", *map(score_name, COLUMNS))


@dataclass(frozen=True, repr=False)
class ComparisonResult:
    """The scores of several methods; prints as a table.

    Attributes:
        protocol: "fair" or "paper".
        scores: by method and score, one number per seed; methods sorted by MAP@R, best first.
        refused: by method, why it could not be trained on the data.
        chosen: by method, the settings found by tuning; empty without tuning.
        trials: number of tuning trials per method.
        tuning_epochs: number of epochs that the trials of a method trained together.
        concatenated: by "method, N models", the scores of the concatenated embeddings of all seeds.
        seconds: by method, the training time of each run.
        curves: by method and seed, pairs of epoch and MAP@R.
        backbone: scores of the backbone alone, without training.
        made: date, hardware, version and commit.
        read_outs: by "method, read-out", the scores of the same runs with the method's own read-out.
        command: the command that repeats the comparison.
    """

    protocol: str
    scores: dict[str, dict[str, list[float]]]
    refused: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, dict[str, Any]] = field(default_factory=dict)
    trials: int = 0
    tuning_epochs: int = 0
    concatenated: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: dict[str, list[float]] = field(default_factory=dict)
    curves: dict[str, list[list[tuple[int, float]]]] = field(default_factory=dict)
    backbone: dict[str, float] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)
    read_outs: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    command: str = ""

    @property
    def legend(self) -> str:
        """The protocol, and what the numbers are."""
        return f"{IN_WORDS[self.protocol]}; {self.notes}"

    @property
    def notes(self) -> str:
        """What the numbers are."""
        seeds = max((len(scores["map@r"]) for scores in self.scores.values()), default=0)
        means = f"mean ± 95 % interval (Student's t) over {seeds} seeds" if seeds > 1 else "one seed, so no interval"
        words = [means]
        if self.trials:
            budget = f"{counted(self.trials, 'trial')}, {counted(self.tuning_epochs, 'epoch')} in all"
            words.append(f"settings tuned on validation classes, for each method with {budget}")
        if self.read_outs:
            words.append(f"{', '.join(self.read_outs)}: the same models with the method's own read-out")
        if self.concatenated:
            words.append("N models: concatenated embeddings of N seeds")
        if self.backbone:
            words.append(f"{BACKBONE}: its features without training")
        return "; ".join(words)

    def all_scores(self) -> dict[str, dict[str, list[float]]]:
        """Methods, their own read-outs, concatenated models and the backbone alone, sorted by MAP@R."""
        once = self.concatenated | ({BACKBONE: self.backbone} if self.backbone else {})
        single = {name: {score: [value] for score, value in one.items()} for name, one in once.items()}
        return by_falling_map_at_r(self.scores | self.read_outs | single)

    def rows(self) -> list[list[str]]:
        """One row per method: its name, then the mean and half the 95 % interval of every score."""
        return [
            [name, *(mean_in_words(scores[score]) for score in COLUMNS)] for name, scores in self.all_scores().items()
        ]

    def to_pandas(self) -> DataFrame:
        """One row per method and seed, one column per score.

        >>> result = ComparisonResult("fair", {"rank": {score: [0.5, 0.6] for score in COLUMNS}})
        >>> result.to_pandas()[["method", "seed", "map@r"]].values.tolist()
        [['rank', 0, 0.5], ['rank', 1, 0.6]]
        """
        return data_frame(
            {"method": name, "seed": seed} | {score: values[seed] for score, values in scores.items()}
            for name, scores in self.all_scores().items()
            for seed in range(len(scores["map@r"]))
        )

    def markdown(self) -> str:
        rows = [HEADINGS, ["---"] * len(HEADINGS), *self.rows()]
        remarks = ["", *(f"- {remark}" for remark in self._remarks())] if self.chosen else []
        return "\n".join([*(f"| {' | '.join(row)} |" for row in rows), "", self.legend, *remarks, ""])

    __str__ = __repr__ = _repr_markdown_ = markdown  # in a terminal and in a notebook

    def latex(self) -> str:
        """A LaTeX table with a caption; needs the package booktabs."""

        def line(row: Sequence[str]) -> str:
            return _for_latex(" & ".join(row)) + r" \\"

        top = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{l{'r' * len(COLUMNS)}}}", r"\toprule"]
        rows = [line(HEADINGS), r"\midrule", *map(line, self.rows()), r"\bottomrule", r"\end{tabular}"]
        caption = ". ".join([self.legend, *self._remarks()])
        return "\n".join([*top, *rows, rf"\caption{{{_for_latex(caption)}}}", r"\end{table}", ""])

    def __rich__(self) -> Group:
        """The table for a terminal, followed by the chosen settings and the methods left out."""
        from rich.console import Group
        from rich.table import Table

        table = Table(title=self.legend, title_justify="left")
        for heading in HEADINGS:
            table.add_column(heading, justify="left" if heading == "method" else "right", overflow="fold")
        for row in self.rows():
            table.add_row(*row)
        left_out = [f"{method} was left out: {reason}" for method, reason in self.refused.items()]
        return Group(table, *self._remarks(), *left_out)

    def _remarks(self) -> list[str]:
        return [f"{method}: {in_words(settings)}" for method, settings in self.chosen.items()]


def data_frame(rows: Iterable[Mapping[str, Any]]) -> DataFrame:
    """A pandas table."""
    try:
        from pandas import DataFrame
    except ImportError:
        raise UserError("to_pandas needs pandas; run `pip install pandas`") from None
    return DataFrame(rows)


def by_falling_map_at_r(scores: Mapping[str, dict[str, list[float]]]) -> dict[str, dict[str, list[float]]]:
    return dict(sorted(scores.items(), key=lambda item: -float(np.mean(item[1]["map@r"]))))


def mean_in_words(values: Sequence[float]) -> str:
    """The mean, with half of its 95 % interval (Student's t) if there are several values.

    >>> mean_in_words([0.5]), mean_in_words([0.4, 0.5, 0.6])
    ('0.5000', '0.5000 ± 0.2484')
    """
    mean = f"{np.mean(values):.4f}"
    return mean if len(values) < 2 else f"{mean} ± {half_interval(values):.4f}"


def half_interval(values: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean (Student's t); 0 for a single value."""
    if len(values) < 2:
        return 0.0
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


def in_words(settings: Mapping[str, Any]) -> str:
    """Settings as one line of text.

    >>> in_words({"learning_rate": 0.00123456, "per_class": 4})
    'learning_rate = 0.001235, per_class = 4'
    """
    words = {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in settings.items()}
    return ", ".join(f"{name} = {value}" for name, value in words.items())


def _for_latex(text: str) -> str:
    signs = {"±": r"$\pm$", "%": r"\%", "_": r"\_"}
    return "".join(signs.get(sign, sign) for sign in text)
