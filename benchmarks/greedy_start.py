"""Does the greedy start of facility location's local search beat a random one, as its paper says?

    python benchmarks/greedy_start.py                                # a minute on one core
    python benchmarks/greedy_start.py --out docs/results/greedy-start.json

Batches of 128 random glyphs (unit-length pixels) and of 128 points in blobs, each of 32 classes. The facilities start
greedily, or at random points five times per batch; then they are exchanged in at most 5 rounds, as the loss does, or
until nothing changes. The table shows the mean objective of the start and of the results, relative to the greedy result
of 5 rounds, how often the result of 5 rounds is higher and lower than that, and the rounds until nothing changes.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from provenance import made
from torch import Tensor
from torch.nn import functional as F

import nearkin
from nearkin.clustering.facilities import facility_location
from nearkin.files import write_json
from nearkin.sampling import GroupSampler

BATCHES, STARTS_EACH, CLASSES, PER_CLASS, ROUNDS, MANY = 20, 5, 32, 4, 5, 100
STARTS = {"greedy": None, "random": 1 - 1e-9}  # each step of the stochastic greedy algorithm then draws one point


def glyphs() -> tuple[Tensor, Tensor]:
    data = nearkin.load_dataset("glyphs")
    return torch.from_numpy(data.items.pixels).flatten(1).float(), torch.from_numpy(data.labels)


def blobs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200).repeat_interleave(20)
    return torch.randn(200, 64, generator=generator)[labels] + torch.randn(4000, 64, generator=generator), labels


def objective(distances: Tensor, labels: Tensor, gamma: float, start: str, rounds: int, seed: int) -> float:
    settings = {"exchange_steps": rounds, "stochastic": STARTS[start], "seed": seed}
    return facility_location(distances.clone(), labels, CLASSES, gamma, **settings).objective


def rounds_needed(distances: Tensor, labels: Tensor, gamma: float, start: str, seed: int) -> int:
    """Rounds until nothing changes."""
    end = objective(distances, labels, gamma, start, MANY, seed)
    return next(n for n in range(MANY + 1) if objective(distances, labels, gamma, start, n, seed) == end)


def measured(data: str, batches: Sequence[tuple[Tensor, Tensor]], gamma: float) -> Iterator[dict[str, Any]]:
    """A row per start: means over all batches and starts, relative to the greedy start after 5 rounds."""
    seeds = range(STARTS_EACH)
    values = {
        start: np.array(
            [
                [objective(*batch, gamma, start, rounds, seed) for rounds in (0, ROUNDS, MANY)]
                for seed in seeds
                for batch in batches
            ]
        )
        for start in STARTS
    }
    reference = values["greedy"][:, 1]
    for start, found in values.items():
        yield {
            "data": data,
            "gamma": gamma,
            "start": start,
            "objective": (found - reference[:, None]).mean(0).tolist(),
            "higher": float((found[:, 1] > reference).mean()),
            "lower": float((found[:, 1] < reference).mean()),
            "rounds": float(np.mean([rounds_needed(*batch, gamma, start, 0) for batch in batches])),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="also write the rows as JSON")
    out, rows = parser.parse_args().out, []
    print("| data | γ | start | at the start | after 5 rounds | at the end | higher | lower | rounds |")
    print("|---|--:|---|--:|--:|--:|--:|--:|--:|")
    for data, (points, labels) in {"glyphs": glyphs(), "blobs": blobs()}.items():
        points = F.normalize(points)
        sampler = iter(GroupSampler(labels, CLASSES * PER_CLASS, per_class=PER_CLASS, seed=0))
        batches = [(torch.cdist(points[b], points[b]), labels[b]) for b in (next(sampler) for _ in range(BATCHES))]
        for gamma in (1.0, 10.0):
            for row in measured(data, batches, gamma):
                rows.append(row)
                means = [f"{mean:+.2f}" for mean in row["objective"]]
                shares = [f"{row[share]:.0%}" for share in ("higher", "lower")]
                print("|", " | ".join([data, f"{gamma:g}", row["start"], *means, *shares, f"{row['rounds']:.1f}"]), "|")
    if out:
        write_json(out, {"made": made("cpu"), "rows": rows})


if __name__ == "__main__":
    main()
