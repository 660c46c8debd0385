"""`nearkin demo`: trains on the built-in glyphs, evaluates, draws two figures and writes a report."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from nearkin.data import Dataset, ImageArray
from nearkin.errors import UserError
from nearkin.evaluation import evaluate
from nearkin.evaluation.result import plain_text, score_table
from nearkin.experiments.run_report import gather
from nearkin.reports.map import draw_map
from nearkin.reports.neighbours import draw_neighbours
from nearkin.reports.run_report import write_run_report
from nearkin.space import Space
from nearkin.training import Run
from nearkin.training.loop import make_trainer
from nearkin.training.prepare import load_splits
from nearkin.training.settings import make_settings

if TYPE_CHECKING:
    from rich.table import Table

MARK = "made-by-nearkin-demo"  # only folders with this file are ever replaced


@dataclass(frozen=True, repr=False)
class DemoResult:
    """The result of the demo; prints as a table, and where to find the files.

    Attributes:
        run: the run, with its model, two figures and a report.
        scores: test scores by "raw pixels", "untrained" and "trained".
        tested_on: the test split, in words.
        verdict: one sentence on what training added.
    """

    run: Run
    scores: dict[str, dict[str, float]]
    tested_on: str
    verdict: str

    @property
    def table(self) -> Table:
        return score_table(self.scores, self.tested_on)

    @property
    def summary(self) -> str:
        out = self.run.folder
        return (
            f"{self.verdict}\n"
            f"figures:  {out / 'neighbours.png'}, {out / 'map.png'}\nreport:   {out / 'report.html'}\n"
            f"model:    {self.run.model_folder}\n"
            f"use it:   nearkin.load({str(out)!r}).encode(images)"
        )

    def __str__(self) -> str:
        return f"{plain_text(self.table)}\n{self.summary}"

    __repr__ = __str__


def run_demo(out: Path, data: str = "glyphs", epochs: int = 20, seed: int = 0) -> DemoResult:
    """Trains, evaluates before and after on classes never seen in training, and draws figures."""
    if data.partition(":")[0] != "glyphs":
        raise UserError(f"the demo works only with glyphs, not '{data}'; for other data use: nearkin train {data}")
    _clear(out)
    # From scratch on small images the last epoch is the best, so no classes are held out to choose one.
    how = {"epochs": epochs, "seed": seed, "evaluate_every": max(1, epochs // 4), "keep": "last"}
    settings = make_settings(data, "rank", how)
    trainer = make_trainer(settings, Run(out))
    (out / MARK).touch()  # now, so that an interrupted demo can be replaced too
    run = trainer.train()
    report, test = gather(run.folder), load_splits(settings.data, seed).test
    assert test is not None and report.split is not None and report.split.result is not None
    draw_neighbours(out / "neighbours.png", report.split)
    draw_map(out / "map.png", report.split)
    write_run_report(report, out / "report.html")
    pixels = evaluate(pixel_space(test)).scores
    scores = {"raw pixels": pixels, "untrained": report.before, "trained": report.split.result.scores}
    tested_on = f"{len(test.present_classes)} classes never seen in training, {len(test):,} images"
    return DemoResult(run, scores, tested_on, report.verdict)


def pixel_space(dataset: Dataset) -> Space:
    """A baseline without learning: the embedding of an image is its pixels."""
    assert isinstance(dataset.items, ImageArray)
    pixels = torch.from_numpy(dataset.items.pixels).flatten(1).float() / 255
    return Space.of(pixels, torch.from_numpy(dataset.labels))


def _clear(out: Path) -> None:
    """Deletes an earlier demo, and nothing else."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).is_file():
            raise UserError(f"{out} is not an earlier demo; choose another folder: out=...")
        shutil.rmtree(out)
