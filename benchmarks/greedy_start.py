"""Does the greedy start of facility location's local search beat a random one, as its paper says?

    python benchmarks/greedy_start.py                                # a minute on one core

Batches of 128 random glyphs (unit-length pixels) and of 128 points in blobs, each of 32 classes. The facilities start
greedily or at random points; then both are exchanged in at most 5 rounds, as the loss does, or until nothing changes.
The table shows the mean objective of the start and of the result, relative to the greedy result of 5 rounds, how often
the random start ends higher, and the rounds until nothing changes.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

import nearkin
from nearkin.clustering.facilities import facility_location
from nearkin.sampling import GroupSampler

BATCHES, CLASSES, PER_CLASS, ROUNDS, MANY = 100, 32, 4, 5, 100
STARTS = {"greedy": None, "random": 1 - 1e-9}  # each step of the stochastic greedy algorithm then draws one point


def glyphs() -> tuple[Tensor, Tensor]:
    data = nearkin.load_dataset("glyphs")
    return torch.from_numpy(data.items.pixels).flatten(1).float(), torch.from_numpy(data.labels)


def blobs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(200).repeat_interleave(20)
    return torch.randn(200, 64, generator=generator)[labels] + torch.randn(4000, 64, generator=generator), labels


def objective(distances: Tensor, labels: Tensor, gamma: float, start: str, rounds: int, seed: int) -> float:
    exchange = "objective" if rounds else None
    found = facility_location(
        distances.clone(), labels, CLASSES, gamma, exchange, rounds or 1, stochastic=STARTS[start], seed=seed
    )
    return found.objective


def rounds_needed(distances: Tensor, labels: Tensor, gamma: float, start: str, seed: int) -> int:
    """Rounds until nothing changes."""
    end = objective(distances, labels, gamma, start, MANY, seed)
    return next(n for n in range(MANY + 1) if objective(distances, labels, gamma, start, n, seed) == end)


def main() -> None:
    print("| data | γ | start | at the start | after 5 rounds | at the end | higher than greedy | rounds |")
    print("|---|--:|---|--:|--:|--:|--:|--:|")
    for name, (points, labels) in {"glyphs": glyphs(), "blobs": blobs()}.items():
        points = F.normalize(points)
        sampler = iter(GroupSampler(labels, CLASSES * PER_CLASS, per_class=PER_CLASS, seed=0))
        batches = [(torch.cdist(points[b], points[b]), labels[b]) for b in (next(sampler) for _ in range(20))]
        for gamma in (1.0, 10.0):
            values = {
                start: np.array(
                    [
                        [objective(*batch, gamma, start, rounds, seed) for rounds in (0, ROUNDS, MANY)]
                        for seed in range(BATCHES // len(batches))
                        for batch in batches
                    ]
                )
                for start in STARTS
            }
            reference = values["greedy"][:, 1:2]
            for start, found in values.items():
                means = (found - reference).mean(0)
                higher = (found[:, 1] > reference[:, 0]).mean()
                rounds = np.mean([rounds_needed(*batch, gamma, start, 0) for batch in batches])
                cells = [
                    name,
                    f"{gamma:g}",
                    start,
                    *(f"{mean:+.2f}" for mean in means),
                    f"{higher:.0%}",
                    f"{rounds:.1f}",
                ]
                print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
