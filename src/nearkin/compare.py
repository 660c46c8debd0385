"""Several methods on the same data, with as many passes over them and the same seeds: one table, nothing done twice.

Two protocols. ``fair``: the model is chosen on classes held out of the training classes, drawn anew for every seed;
nothing is chosen on the test part. ``paper``: trained on all training classes, the best point of the curve on the test
part is reported, as the papers did; its numbers are optimistic, and labelled so.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nearkin.api import make_settings
from nearkin.errors import Interrupted, UserError, unknown_name
from nearkin.files import write_json, write_text
from nearkin.methods import known_methods, method_class
from nearkin.training import Run, Settings, resume, train
from nearkin.training.prepare import absolute, load_splits
from nearkin.training.settings import by_section

log = logging.getLogger("nearkin")

PROTOCOLS: dict[str, dict[str, Any]] = {
    "fair": {"validation": 0.25, "keep": "best-on-validation"},
    "paper": {"validation": 0.0, "keep": "best-on-test"},
}
IN_WORDS = {
    "fair": "fair: models chosen on held-out training classes",
    "paper": "paper: the best point of the test curve, which is optimistic",
}
NOT_FREE = ("keep", "seed", "validation")  # what a protocol and the number of seeds decide
COLUMNS = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "nmi_arithmetic")


@dataclass(frozen=True)
class Comparison:
    """What was found.

    Attributes:
        protocol: "fair" or "paper".
        scores: by method and score, one number for each finished seed; methods by falling MAP@R.
        refused: by method, why it could not be trained on these data.
    """

    protocol: str
    scores: dict[str, dict[str, list[float]]]
    refused: dict[str, str] = field(default_factory=dict)

    @property
    def legend(self) -> str:
        seeds = max((len(scores["map@r"]) for scores in self.scores.values()), default=0)
        return f"{IN_WORDS[self.protocol]}; mean ± 95 % interval (Student's t) over {seeds} seeds"

    def rows(self) -> list[list[str]]:
        """One row for each method: its name, then mean and half the 95 % interval of every score."""
        return [[method, *(mean_in_words(scores[name]) for name in COLUMNS)] for method, scores in self.scores.items()]

    def markdown(self) -> str:
        lines = [f"| method | {' | '.join(COLUMNS)} |", "|---" * (len(COLUMNS) + 1) + "|"]
        return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in self.rows()), "", self.legend, ""])

    def latex(self) -> str:
        heads = " & ".join(name.replace("_", r"\_") for name in ("method", *COLUMNS))
        rows = [" & ".join(row).replace("±", r"$\pm$") + r" \\" for row in self.rows()]
        head = [rf"\begin{{tabular}}{{l{'r' * len(COLUMNS)}}}", r"\toprule", heads + r" \\", r"\midrule"]
        legend = self.legend.replace("±", r"$\pm$").replace("%", r"\%")
        foot = [r"\bottomrule", rf"\multicolumn{{{len(COLUMNS) + 1}}}{{l}}{{{legend}}} \\", r"\end{tabular}", ""]
        return "\n".join([*head, *rows, *foot])


def compare(
    data: str,
    methods: Sequence[str],
    out: Path,
    seeds: int = 3,
    protocol: str = "fair",
    settings: dict[str, Any] | None = None,
) -> Comparison:
    """Trains every method with seeds 0, 1, … and measures it; what ``out`` already holds is not done again.

    Args:
        data: what `nearkin train` takes.
        methods: their names; ``["all"]`` for all that nearkin has.
        out: a folder with one run for each method and seed, and the table as JSON, Markdown and LaTeX.
        settings: the same for all methods; one that only some of them know is for these. Batches are of each method's
            usual size unless ``batch_size`` is given.

    >>> compare("glyphs", ["rank", "triplet"], Path("runs/two"), settings={"epochs": 5})  # doctest: +SKIP
    """
    if protocol not in PROTOCOLS:
        raise unknown_name("protocol", protocol, PROTOCOLS)
    if seeds < 1:
        raise UserError(f"a comparison needs at least one seed, not {seeds}")
    names = _names(methods)
    for fixed in NOT_FREE:
        if fixed in (settings or {}):
            raise UserError(f"{fixed} is decided by the protocol and the number of seeds; leave it out")
    common = (settings or {}) | PROTOCOLS[protocol]
    wanted = {name: _settings_of(name, names, absolute(data), common) for name in names}
    _check_same_settings(out, protocol, wanted, seeds)
    _check_same_data(out, wanted, seeds)
    refused: dict[str, str] = {}
    for number, (seed, name) in enumerate((seed, name) for seed in range(seeds) for name in names):
        if name in refused:
            continue
        log.info("run %d of %d: %s, seed %d", number + 1, seeds * len(names), name, seed)
        try:
            _carry_out(wanted[name].changed(training={"seed": seed}), out / f"{name}-{seed}")
        except Interrupted:
            raise Interrupted("stopped; the same command goes on from here") from None
        except UserError as error:
            refused[name] = str(error)
            log.warning("%s is left out: %s", name, error)
    if len(refused) == len(names):
        raise UserError(next(iter(refused.values())))
    # A method that failed with one seed is not judged by the others: they would be its lucky ones.
    comparison = Comparison(protocol, _gathered(out, [name for name in names if name not in refused], seeds), refused)
    write_json(out / "comparison.json", vars(comparison))
    write_text(out / "comparison.md", comparison.markdown())
    write_text(out / "comparison.tex", comparison.latex())
    return comparison


def mean_in_words(values: Sequence[float]) -> str:
    """The mean, with half of its 95 % interval by Student's t where there are several values.

    >>> mean_in_words([0.5]), mean_in_words([0.4, 0.5, 0.6])
    ('0.5000', '0.5000 ± 0.2484')
    """
    mean = f"{np.mean(values):.4f}"
    if len(values) < 2:
        return mean
    from scipy.stats import t

    return f"{mean} ± {t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)):.4f}"


def _names(methods: Sequence[str]) -> list[str]:
    if list(methods) == ["all"]:
        return [method.name for method in known_methods() if method.name != "pml"]
    return [method_class(name).name for name in dict.fromkeys(name.strip() for name in methods)]


def _settings_of(name: str, names: Iterable[str], data: str, settings: dict[str, Any]) -> Settings:
    """The settings as far as this method knows them; each must be known to one of the methods at least."""
    own = {}
    for setting, value in settings.items():
        knowing = [each for each in names if _knows(each, setting)]
        if not knowing:
            by_section(name, {setting: value})  # says which settings there are
        if name in knowing:
            own[setting] = value
    return make_settings(data, name, own)


def _knows(method: str, setting: str) -> bool:
    try:
        by_section(method, {setting: None})
    except UserError:
        return False
    return True


def _check_same_settings(out: Path, protocol: str, wanted: dict[str, Settings], seeds: int) -> None:
    """Refuses to mix runs of different settings in one folder; more methods and more seeds are welcome."""
    file = out / "settings.json"
    now: dict[str, Any] = {name: {"protocol": protocol} | each.to_tables() for name, each in wanted.items()}
    before: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    for name in wanted:
        has_runs = any(Run(out / f"{name}-{seed}").config.is_file() for seed in range(seeds))
        if has_runs and before.get(name) != now[name]:
            raise UserError(f"{out} holds runs of {name} with other settings; repeat those, or choose another --out")
    write_json(file, before | now)


def _check_same_data(out: Path, wanted: dict[str, Settings], seeds: int) -> None:
    """Refuses data that have changed since a run that is there already, or that leave nothing to test on."""
    data = next(iter(wanted.values())).data
    for seed in range(seeds):
        splits = load_splits(data, seed)
        if splits.test is None:
            raise UserError(f"{data.source} has no test part here to compare on; use another split")
        for name in wanted:
            Run(out / f"{name}-{seed}").check_data(splits.digest())


def _carry_out(settings: Settings, folder: Path) -> None:
    run = Run(folder)
    if run.scores.is_file():
        return
    if run.checkpoint.is_file() or run.model.is_dir():
        resume(folder)
    else:
        train(settings, folder)


def _gathered(out: Path, names: Sequence[str], seeds: int) -> dict[str, dict[str, list[float]]]:
    found: dict[str, dict[str, list[float]]] = {}
    for name in names:
        runs = [Run(out / f"{name}-{seed}") for seed in range(seeds)]
        finished = [json.loads(run.scores.read_text(encoding="utf-8"))["after"] for run in runs if run.scores.is_file()]
        if finished:
            found[name] = {score: [after[score] for after in finished] for score in COLUMNS}
    return dict(sorted(found.items(), key=lambda item: -float(np.mean(item[1]["map@r"]))))
