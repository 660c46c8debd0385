"""Facility location with a clustering margin: finds the clustering that most violates the margin of a labelled batch.

Song, Jegelka, Rathod, Murphy: Deep Metric Learning via Facility Location, 2017, section 3.4, Algorithms 1 and 2.
"""

from __future__ import annotations

import importlib.util
import math
import os
import shutil
from dataclasses import dataclass
from functools import cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from nearkin.errors import UserError, unknown_name

Exchange = Literal["objective", "algorithm-2", "all"]
AgreementName = Literal["nmi", "ami", "ari"]
Matrix = npt.NDArray[np.floating]
Indices = npt.NDArray[np.int64]
LARGEST_ON_GPU = 4096  # points


@dataclass(frozen=True)
class FacilityLocation:
    """K facilities among m points.

    Attributes:
        facilities: (K,) the chosen points, in the order of choice; an exchange keeps the position.
        assignment: (m,) the position of each point's facility in ``facilities``.
        agreement: NMI (or AMI, ARI) of the assignment with the labels.
        objective: A(S) = −(sum of the points' distances to their facilities) + γ (1 − agreement).
    """

    facilities: Tensor
    assignment: Tensor
    agreement: float
    objective: float


def facility_location(
    distances: Tensor,
    labels: Tensor,
    n_facilities: int,
    gamma: float = 1.0,
    exchange: Exchange | None = "objective",
    exchange_steps: int = 5,
    margin: AgreementName = "nmi",
    stochastic: float | None = None,
    seed: int = 0,
) -> FacilityLocation:
    """Chooses facilities that are close to all points but cluster them differently from their labels (Eq. 6).

    The search first adds facilities greedily, then exchanges them. The lowest index wins every tie. It runs on one CPU
    core, for distances on any device, and returns the same facilities on every machine.

    Args:
        distances: (m, m), symmetric with a zero diagonal.
        labels: (m,) integers.
        n_facilities: K, the number of points to choose; the number of classes in the paper.
        gamma: γ, the weight of the margin.
        exchange: which point replaces a facility. ``"objective"``: the point of its cluster with the highest objective;
            the objective then never decreases (Lemma 1). ``"algorithm-2"``: the paper's algorithm, which uses the
            members that the cluster had at the start of the round. ``"all"``: any point (with enough steps, a local
            optimum, Lemma 2). None: no exchange.
        exchange_steps: T, the maximum number of rounds; the search stops early if a round changes nothing.
        margin: the agreement with the labels, ``"nmi"`` as in the paper, ``"ami"`` or ``"ari"``.
        stochastic: ε of the stochastic greedy algorithm (Mirzasoleiman et al. 2015): each choice considers
            m/K · ln(1/ε) random points. None considers all points.
        seed: random seed of the stochastic greedy algorithm.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0], [12.0]])
    >>> found = facility_location(torch.cdist(points, points), torch.tensor([0, 0, 1, 1, 1]), n_facilities=2, gamma=0.0)
    >>> found.facilities.tolist(), found.assignment.tolist(), found.objective
    ([3, 0], [1, 1, 0, 0, 0], -3.0)
    """
    check_settings(gamma, exchange, exchange_steps, margin, stochastic)
    problem = Problem.of(_checked(distances, labels), labels.cpu().numpy())
    if n_facilities != int(n_facilities) or not 1 <= n_facilities <= len(labels):
        raise UserError(
            f"n_facilities must be an integer from 1 to {len(labels)}, the number of points, got {n_facilities}"
        )
    chosen, assignment, agreement, objective = solve_facilities(
        problem, int(n_facilities), gamma, exchange, int(exchange_steps), margin, stochastic, seed
    )
    device = distances.device
    return FacilityLocation(
        torch.from_numpy(chosen).to(device), torch.from_numpy(assignment).to(device), agreement, objective
    )


def class_medoids(distances: Tensor, labels: Tensor) -> Tensor:
    """(m,) the medoid of each point's class: the member with the smallest sum of distances to the others.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0], [12.0]])
    >>> class_medoids(torch.cdist(points, points), torch.tensor([0, 0, 1, 1, 1])).tolist()
    [0, 0, 3, 3, 3]
    """
    medoids = solve_medoids(Problem.of(_checked(distances, labels), labels.cpu().numpy()))
    return torch.from_numpy(medoids).to(distances.device)


@dataclass(frozen=True)
class Problem:
    """The input of the solvers. Distances are integer multiples of ``unit``, so sums of rows are exact in float64."""

    distances: Matrix  # (m, m), float32 or float64
    unit: float  # a power of two
    classes: Indices  # (m,) in 0…C−1
    class_sizes: Indices  # (C,)

    @classmethod
    def of(cls, distances: Tensor, labels: npt.NDArray[np.integer]) -> Problem:
        """Builds the problem from distances on the CPU; changes them in place. Rounding keeps float32 exact."""
        largest = float(distances.max())
        refuse_overflow(largest)
        exponent = max(-1000, math.frexp(largest)[1] + math.ceil(math.log2(len(labels))) - 52)  # below, all counts as 0
        half = exponent // 2  # in two steps, because 1 / unit may be too large for float32
        distances.mul_(2.0**-half).mul_(2.0 ** (half - exponent)).round_()
        _, classes, class_sizes = np.unique(labels, return_inverse=True, return_counts=True)
        return cls(distances.numpy(), 2.0**exponent, classes, class_sizes)


def solve_facilities(
    problem: Problem,
    n_facilities: int,
    gamma: float,
    exchange: Exchange | None,
    exchange_steps: int,
    margin: AgreementName,
    stochastic: float | None,
    seed: int,
) -> tuple[Indices, Indices, float, float]:
    """`facility_location` without its checks: facilities, assignment, agreement and objective."""
    from nearkin.clustering import _medoid_solver as solver
    from nearkin.clustering.agreement import margin_tables

    exchanges = {
        None: solver.NO_EXCHANGE,
        "objective": solver.OBJECTIVE,
        "algorithm-2": solver.ALGORITHM_2,
        "all": solver.ALL,
    }
    chosen, assignment, agreement, objective = solver.solve(
        problem.distances,
        problem.unit,
        problem.classes,
        len(problem.class_sizes),
        n_facilities,
        float(gamma),
        margin_tables(margin, problem.class_sizes),
        exchanges[exchange],
        exchange_steps,
        _drawn(len(problem.classes), n_facilities, stochastic, seed),
    )
    return chosen, assignment, agreement, objective


def solve_medoids(problem: Problem) -> Indices:
    """`class_medoids` without its checks."""
    from nearkin.clustering._class_medoids import medoids

    by_class = np.argsort(problem.classes, kind="stable")
    found: Indices = medoids(problem.distances, by_class, np.append(0, np.cumsum(problem.class_sizes)))
    return found[problem.classes]


def solves_on_gpu(embeddings: Tensor, exchange: str | None, margin: str, stochastic: float | None) -> bool:
    """Whether `_medoid_kernel.py` can solve this batch on the GPU; otherwise the host solves it.

    >>> solves_on_gpu(torch.zeros(4, 2), "objective", "nmi", None)
    False
    """
    covered = margin == "nmi" and exchange in (None, "objective") and stochastic is None
    suits = embeddings.is_cuda and embeddings.dtype == torch.float32 and len(embeddings) <= LARGEST_ON_GPU
    return covered and suits and _has_triton()


@cache
def _has_triton() -> bool:
    """Triton comes with torch for CUDA, except on Windows, and needs a C compiler."""
    compiler = os.environ.get("CC") or any(map(shutil.which, ("gcc", "clang", "cc")))
    return bool(torch.version.cuda and importlib.util.find_spec("triton") and compiler)


def refuse_overflow(largest: float) -> None:
    """Raises an error if distances of finite points are infinite."""
    if not math.isfinite(largest):
        raise UserError("the distances are too large to compute; scale the points down")


def check_settings(
    gamma: float | Tensor, exchange: str | None, exchange_steps: int, margin: str, stochastic: float | None
) -> None:
    if not isinstance(gamma, Tensor) and not (gamma >= 0 and math.isfinite(gamma)):
        raise UserError(f"gamma must be a finite number >= 0, got {gamma}")
    if exchange is not None and exchange not in get_args(Exchange):
        raise unknown_name("exchange", str(exchange), [*get_args(Exchange), "None (no exchange)"])
    if exchange_steps < 0 or exchange_steps != int(exchange_steps):
        raise UserError(f"exchange_steps must be an integer >= 0, got {exchange_steps}")
    if margin not in get_args(AgreementName):
        raise unknown_name("margin", str(margin), get_args(AgreementName))
    if stochastic is not None and not 0 < stochastic < 1:
        raise UserError(f"stochastic must be > 0 and < 1, got {stochastic}")


def _drawn(points: int, n_facilities: int, stochastic: float | None, seed: int) -> Indices:
    """The candidates of each greedy step, (K, r) in ascending order; no rows if all points are candidates."""
    if stochastic is None:
        return np.empty((0, 0), np.int64)
    candidates = min(points, math.ceil(points / n_facilities * math.log(1 / stochastic)))
    rng = np.random.default_rng(seed)
    return np.stack([np.sort(rng.choice(points, candidates, replace=False)) for _ in range(n_facilities)])


def _checked(distances: Tensor, labels: Tensor) -> Tensor:
    """Checks the input; returns a float64 copy of the distances, exactly symmetric with a zero diagonal."""
    for name, value in (("distances", distances), ("labels", labels)):
        if not isinstance(value, Tensor):
            raise UserError(f"{name} must be a tensor, got {type(value).__name__}; use torch.as_tensor({name})")
    m = len(labels)
    if distances.shape != (m, m) or not m:
        raise UserError(f"distances must have shape (m, m) for m >= 1 labels, got {tuple(distances.shape)} for {m}")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool or labels.ndim != 1:
        raise UserError(f"labels must be integers of shape (m,), got {labels.dtype} of shape {tuple(labels.shape)}")
    matrix = distances.detach().to("cpu", torch.float64, copy=True)
    if not (matrix.isfinite().all() and (matrix >= 0).all()):
        raise UserError("distances must be finite and not negative")
    # The result of torch.cdist, for example, is not exactly symmetric, and its diagonal is not exactly 0.
    rounding = 4 * torch.finfo(distances.dtype).eps ** 0.5 * matrix.max()
    if (matrix - matrix.T).abs().max() > rounding or matrix.diagonal().max() > rounding:
        raise UserError("distances must be symmetric with a zero diagonal")
    return ((matrix + matrix.T) / 2).fill_diagonal_(0.0)
