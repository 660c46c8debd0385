"""Facility location by brute force, straight from Eq. 4–10 and Algorithms 1 and 2, in float64."""

from __future__ import annotations

import numpy as np
from sklearn.metrics import adjusted_mutual_info_score, adjusted_rand_score, normalized_mutual_info_score


def agreement(name: str, y: np.ndarray, assignment: np.ndarray) -> float:
    if name == "ami":
        return float(adjusted_mutual_info_score(y, assignment))
    if name == "ari":
        return float(adjusted_rand_score(y, assignment))
    return float(normalized_mutual_info_score(y, assignment, average_method="geometric"))


def assign(d: np.ndarray, chosen: list[int]) -> np.ndarray:
    nearest = np.array([min(range(len(chosen)), key=lambda k: (d[i, chosen[k]], k)) for i in range(len(d))])
    nearest[chosen] = np.arange(len(chosen))  # a facility belongs to itself, even if it has a duplicate
    return nearest


class Problem:
    def __init__(self, d: np.ndarray, y: np.ndarray, gamma: float, margin: str = "nmi") -> None:
        self.d, self.y, self.gamma, self.margin = d, y, gamma, margin
        self.doubtful = False  # whether rounding decided a choice

    def margin_of(self, chosen: list[int]) -> float:
        return self.gamma * (1 - agreement(self.margin, self.y, assign(self.d, chosen)))

    def objective(self, chosen: list[int]) -> float:
        return -float(self.d[:, chosen].min(axis=1).sum()) + self.margin_of(chosen)

    def greedy(self, n_facilities: int) -> list[int]:
        chosen: list[int] = []
        while len(chosen) < n_facilities:
            rest = [i for i in range(len(self.d)) if i not in chosen]
            chosen.append(self.first_best(rest, [self.objective([*chosen, i]) for i in rest]))
        return chosen

    def exchange(self, chosen: list[int], how: str, steps: int = 5) -> list[int]:
        chosen = list(chosen)
        for _ in range(steps):
            stale = assign(self.d, chosen)
            for k in range(len(chosen)):
                members = [int(i) for i in np.flatnonzero(stale == k)]
                others = chosen[:k] + chosen[k + 1 :]
                candidates = [j for j in range(len(self.d)) if j not in others] if how == "all" else members
                swapped = [[*chosen[:k], j, *chosen[k + 1 :]] for j in candidates]
                if how == "algorithm-2":
                    pairs = zip(candidates, swapped, strict=True)
                    scores = [-self.d[j, members].sum() + self.margin_of(s) for j, s in pairs]
                else:
                    scores = [self.objective(s) for s in swapped]
                chosen[k] = self.first_best(candidates, scores)
        return chosen

    def first_best(self, candidates: list[int], scores: list[float]) -> int:
        best = max(scores)
        near = [j for j, score in zip(candidates, scores, strict=True) if score >= best - 1e-9 * max(1.0, abs(best))]
        self.doubtful |= len(near) > 1
        return near[0]


def facility_location_loss(x: np.ndarray, y: np.ndarray, gamma: float = 1.0, how: str | None = "objective") -> float:
    d = np.linalg.norm(x[:, None] - x[None], axis=2)
    problem = Problem(d, y, gamma)
    chosen = problem.greedy(len(set(y.tolist())))
    if how:
        chosen = problem.exchange(chosen, how)
    oracle = sum(d[np.ix_(y == c, y == c)].sum(axis=0).min() for c in set(y.tolist()))
    return max(0.0, problem.objective(chosen) + float(oracle))
