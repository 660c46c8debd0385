"""`nearkin demo`: the whole path, from fonts to a measured model, two pictures and a report, on the embedded glyphs."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from rich.console import Console

from nearkin.data import Dataset, ImageArray
from nearkin.errors import UserError
from nearkin.evaluation import evaluate
from nearkin.evaluation.result import score_table
from nearkin.experiments.run_report import gather
from nearkin.reports.map import draw_map
from nearkin.reports.neighbours import draw_neighbours
from nearkin.reports.run_report import write_run_report
from nearkin.space import Space
from nearkin.training import Run
from nearkin.training.loop import make_trainer
from nearkin.training.prepare import load_splits
from nearkin.training.settings import make_settings

MARK = "made-by-nearkin-demo"  # only a folder with this file in it is ever replaced


def run_demo(out: Path, data: str = "glyphs", epochs: int = 20, seed: int = 0) -> None:
    """Trains, measures before and after on classes never seen in training, and draws what was learned."""
    if data.partition(":")[0] != "glyphs":
        raise UserError(f"the demo draws glyphs and cannot use '{data}'; for other data use: nearkin train {data}")
    _clear(out)
    # From scratch on small pictures the last epoch is the best one: no classes are held out to choose.
    how = {"epochs": epochs, "seed": seed, "evaluate_every": max(1, epochs // 4), "keep": "last"}
    settings = make_settings(data, "rank", how)
    trainer = make_trainer(settings, Run(out))
    (out / MARK).touch()  # at once, so that an interrupted demo can be replaced too
    run = trainer.train()
    report, test = gather(run.folder), load_splits(settings.data, seed).test
    assert test is not None and report.split is not None and report.split.result is not None
    draw_neighbours(out / "neighbours.png", report.split)
    draw_map(out / "map.png", report.split)
    write_run_report(report, out / "report.html")
    pixels = evaluate(pixel_space(test)).scores
    columns = {"raw pixels": pixels, "untrained": report.before, "trained": report.split.result.scores}
    title = f"{len(test.present_classes)} classes never seen in training, {len(test):,} images"
    Console().print(score_table(columns, title))
    Console().print(
        f"{report.verdict}\n"
        f"pictures: {out / 'neighbours.png'}, {out / 'map.png'}\nreport:   {out / 'report.html'}\n"
        f"model:    {run.model_folder}\n"
        f"use it:   nearkin.load({str(run.folder)!r}).encode(images)",
        highlight=False,
        soft_wrap=True,
    )


def pixel_space(dataset: Dataset) -> Space:
    """The baseline that has learned nothing: every picture is its own pixels."""
    assert isinstance(dataset.items, ImageArray)
    pixels = torch.from_numpy(dataset.items.pixels).flatten(1).float() / 255
    return Space.of(pixels, torch.from_numpy(dataset.labels))


def _clear(out: Path) -> None:
    """Removes an earlier demo, and nothing that is not one."""
    if out.exists() and any(out.iterdir()):
        if not (out / MARK).is_file():
            raise UserError(f"{out} holds something that is not a demo; choose another out")
        shutil.rmtree(out)
