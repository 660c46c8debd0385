"""The registry of metrics: each declares its name, meaning and direction where it is computed.

Tables, reports and docs use these declarations. To add your own metric, decorate a function in any module that is
imported before `evaluate` is called:

    @metric("found", "Found", "share of queries with all items of their class among the 10 nearest",
            higher_is_better=True, needs="ranks")
    def found(ranks: PositiveRanks) -> Tensor:
        return ranks.mean(ranks.ranks <= 10) == 1
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from nearkin.errors import unknown_name

# The arguments and the result of a metric's function. `evaluate` computes all but the last two.
NEEDS = {
    "first rank": "(queries,) rank of the nearest positive, and K -> (queries,); computed for each K of recall_at",
    "ranks": "PositiveRanks -> (queries,); the score is the mean over queries that have a positive",
    "retrieval": "Retrieval -> number",
    "clusters": "clusters (items,) and labels (items,) -> number; skipped with clustering=None",
    "space": "Space -> number",
    "diagnostics": "Diagnostics -> number; computed by `diagnostics`",
    "read-out": "anything; called by the read-out of a method",
}
K = "{k}"  # in a metric's name, title and meaning
SPREAD = "_sd"
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Metric:
    """One score.

    Attributes:
        name: its key in `EvaluationResult.scores`.
        title: its name in tables.
        meaning: one line, without a full stop.
        higher_is_better: None if neither direction is better, as for the number of queries.
        needs: the input of the function, one of ``NEEDS``.
        decimals: number of decimals in tables.
        compute: the function.
    """

    name: str
    title: str
    meaning: str
    higher_is_better: bool | None
    needs: str
    decimals: int
    compute: Callable[..., Any]

    @property
    def arrow(self) -> str:
        """The better direction: "↑", "↓" or ""."""
        return {True: "↑", False: "↓", None: ""}[self.higher_is_better]

    def at(self, k: int) -> Metric:
        """One member of a family, such as Recall@4 of Recall@K."""
        words = {field: getattr(self, field).replace(K, str(k)) for field in ("name", "title", "meaning")}
        return replace(self, **words, compute=lambda given: self.compute(given, k))


_metrics: dict[str, Metric] = {}
_variants: dict[str, tuple[str, str]] = {}


def metric(
    name: str, title: str, meaning: str, *, higher_is_better: bool | None, needs: str, decimals: int = 4
) -> Callable[[Function], Function]:
    """Registers a function as a metric; see `Metric` and ``NEEDS``.

    Registering the same name again replaces the metric.
    """
    if needs not in NEEDS:
        raise unknown_name("needs", needs, NEEDS)

    def register(function: Function) -> Function:
        _metrics[name] = Metric(name, title, meaning, higher_is_better, needs, decimals, function)
        return function

    return register


def variant(prefix: str, title: str, meaning: str) -> str:
    """Registers a variant of all scores, whose names start with ``prefix``.

    >>> prefix = variant("upside_down_", "upside down", "of images rotated by 180°")
    >>> describe(prefix + "map@r").title
    'MAP@R, upside down'
    """
    _variants[prefix] = (title, meaning)
    return prefix


def known_metrics(needs: str | None = None) -> list[Metric]:
    """All metrics, or those with the given ``needs``, in order of declaration."""
    return [metric for metric in _metrics.values() if needs in (None, metric.needs)]


def known_variants() -> dict[str, tuple[str, str]]:
    """Title and meaning of each variant, by prefix."""
    return dict(_variants)


def describe(score: str) -> Metric:
    """The metric of a name in `EvaluationResult.scores`.

    >>> describe("recall@4").title, describe("recall@4").arrow, describe("soft_knn_error").arrow
    ('Recall@4', '↑', '↓')
    """
    if score in _metrics:
        return _metrics[score]
    family, at, k = score.rpartition("@")
    if k.isdecimal() and family + at + K in _metrics:
        return _metrics[family + at + K].at(int(k))
    for prefix, (title, meaning) in _variants.items():
        if score.startswith(prefix):
            plain = describe(score.removeprefix(prefix))
            return replace(
                plain, name=score, title=f"{plain.title}, {title}", meaning=f"{plain.meaning}; {meaning}".strip("; ")
            )
    if score.endswith(SPREAD):
        plain = describe(score.removesuffix(SPREAD))
        spread = f"standard deviation of {plain.title}"
        return replace(plain, name=score, title=f"{plain.title}, ±", meaning=spread, higher_is_better=None)
    words = score.replace("_", " ").capitalize()  # a metric whose module has not been imported
    return Metric(score, words, "", None, "read-out", 4, lambda *_: float("nan"))


def score_name(score: str) -> str:
    """The title of a score.

    >>> score_name("recall@1"), score_name("map@r")
    ('Recall@1', 'MAP@R')
    """
    return describe(score).title


def score_text(score: str, value: float) -> str:
    """Formats a score for display.

    >>> score_text("recall@1", 1.0), score_text("queries", 5200.0)
    ('1.0000', '5,200')
    """
    return f"{value:,.{describe(score).decimals}f}"
