"""Facility-location loss: the clustering by labels must beat the best other clustering by a margin.

Song, Jegelka, Rathod, Murphy: Deep Metric Learning via Facility Location, 2017, Eq. 4–13. Distances are not squared,
and the loss is a sum over the batch. `nearkin.clustering.facility_location` finds the other clustering. The gradient is
Eq. 11, which keeps the facilities fixed. By default, an exchange is scored by the whole objective, as in the proof of
Lemma 1. The paper's Algorithm 2 (``exchange="algorithm-2"``) scores outdated clusters and finds worse facilities.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from nearkin.clustering.facilities import (
    AgreementName,
    Exchange,
    Problem,
    check_settings,
    refuse_overflow,
    solve_facilities,
    solve_medoids,
    solves_on_gpu,
)
from nearkin.errors import UserError
from nearkin.losses.base import Loss
from nearkin.losses.batch import Labels, check_finite, checked, reads_data
from nearkin.losses.closed_form import closed_form
from nearkin.losses.registry import register_loss


def facility_location_loss(
    embeddings: Tensor,
    labels: Labels,
    gamma: float | Tensor = 1.0,
    exchange: Exchange | None = "objective",
    exchange_steps: int = 5,
    margin: AgreementName = "nmi",
    normalize: bool = True,
    stochastic: float | None = None,
) -> Tensor:
    """Distances to the class medoids, minus distances to the best other facilities, plus the margin (Eq. 6).

    Args:
        embeddings: (batch, dim).
        labels: (batch,) integers.
        gamma: γ, the weight of the margin 1 − NMI. A tensor gets no gradient.
        exchange: which point replaces a facility in the local search: "objective", "algorithm-2" (the paper's listing),
            "all", or None for no local search; see `nearkin.clustering.facility_location`.
        exchange_steps: maximum number of rounds of the local search.
        margin: agreement with the labels, "nmi" as in the paper, "ami" or "ari".
        stochastic: ε of the stochastic greedy search, which draws from torch's global generator; None: not stochastic.
        normalize: scale embeddings to unit length first, as the paper does.

    Returns:
        A scalar; 0 if no clustering violates the margin.

    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> together = facility_location_loss(points, torch.tensor([0, 0, 1, 1]), normalize=False)
    >>> apart = facility_location_loss(points, torch.tensor([0, 1, 0, 1]), normalize=False)
    >>> together.item(), apart.item()
    (0.0, 19.0)
    """
    if isinstance(gamma, Tensor) and reads_data():
        gamma = gamma.item()
    check_settings(gamma, exchange, exchange_steps, margin, stochastic)
    embeddings, labels = checked(embeddings, labels)
    weight = gamma.detach().double() if isinstance(gamma, Tensor) else torch.tensor(gamma, dtype=torch.float64)
    return _facility_location(embeddings, labels, weight, exchange, exchange_steps, margin, normalize, stochastic)


@register_loss("facility-location")
class FacilityLocationLoss(Loss):
    """Facility-location loss (Song et al. 2017): scores the clustering of the whole batch, not pairs or triplets.

    Needs several classes in a batch, with several items each. In the paper the number of classes is a quarter, a half
    or three quarters of the batch size. The paper also lets γ decay exponentially: call ``decay()``, for example once
    per epoch. γ is part of the state_dict.

    >>> loss = FacilityLocationLoss(gamma=2.0)
    >>> loss(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).shape
    torch.Size([])
    >>> loss.decay(0.94)
    >>> loss.gamma
    1.88
    """

    def __init__(
        self,
        gamma: float = 1.0,
        exchange: Exchange | None = "objective",
        exchange_steps: int = 5,
        margin: AgreementName = "nmi",
        normalize: bool = True,
        stochastic: float | None = None,
    ) -> None:
        super().__init__()
        check_settings(gamma, exchange, exchange_steps, margin, stochastic)
        self.gamma = gamma
        self.exchange = exchange
        self.exchange_steps = exchange_steps
        self.margin = margin
        self.normalize = normalize
        self.stochastic = stochastic

    without_pairs = "it compares clusterings of the whole batch"
    changing = ("gamma",)

    def compute(self, embeddings: Tensor, labels: Labels) -> Tensor:
        return facility_location_loss(
            embeddings,
            labels,
            self.gamma,
            self.exchange,
            self.exchange_steps,
            self.margin,
            self.normalize,
            self.stochastic,
        )

    def decay(self, rate: float = 0.94) -> None:
        """Multiplies γ by ``rate``."""
        if not 0 < rate <= 1:
            raise UserError(f"rate must be > 0 and <= 1, got {rate}")
        self.gamma *= rate

    def get_extra_state(self) -> Tensor:
        return torch.as_tensor(self.gamma, dtype=torch.float64).clone()  # safetensors store nothing else

    def set_extra_state(self, state: Tensor) -> None:
        self.gamma = state.item()

    def extra_repr(self) -> str:
        settings = ("gamma", "exchange", "exchange_steps", "margin", "normalize", "stochastic")
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in settings)


@closed_form
def _facility_location(
    embeddings: Tensor,
    labels: Tensor,
    weight: Tensor,
    exchange: str | None,
    exchange_steps: int,
    margin: str,
    normalize: bool,
    stochastic: float | None,
) -> tuple[Tensor, Tensor]:
    """Value and gradient. What the kernels do not cover is copied from a GPU to the host, and its gradient back."""
    if solves_on_gpu(embeddings, exchange, margin, stochastic):
        return _on_gpu(embeddings, labels, weight, exchange_steps if exchange else 0, normalize)
    from nearkin.losses._facility_gradient import fill_distances, point_gradient, unit_points, vector_gradient

    on_host = embeddings.cpu()
    check_finite(on_host)  # the step was not checked if it runs on a GPU (see `unchecked`)
    points = vectors = on_host.numpy().astype(np.float64)
    if normalize:
        points, lengths = unit_points(vectors)
    # Distances in single precision do not depend on the order of summation.
    distances = torch.empty(len(points), len(points), dtype=embeddings.dtype)
    fill_distances(points, distances.numpy())
    problem, gamma = Problem.of(distances, labels.cpu().numpy()), weight.item()
    medoids = solve_medoids(problem)
    facilities, assignment, agreement, _ = solve_facilities(
        problem,
        len(problem.class_sizes),
        gamma=gamma,
        exchange=cast("Exchange | None", exchange),
        exchange_steps=exchange_steps,
        margin=cast("AgreementName", margin),
        stochastic=stochastic,
        seed=0 if stochastic is None else int(torch.randint(2**31, ())),
    )
    nearest = facilities[assignment]
    rows = np.arange(len(points))
    to_medoids, to_nearest = (problem.distances[rows, each].sum(dtype=np.float64) for each in (medoids, nearest))
    loss = problem.unit * (to_medoids - to_nearest) + gamma * (1 - agreement)
    if loss <= 0:
        return embeddings.new_zeros(()), torch.zeros_like(embeddings)
    gradient = point_gradient(points, medoids, nearest)
    if normalize:
        gradient = vector_gradient(gradient, points, lengths)
    return embeddings.new_tensor(loss), torch.from_numpy(gradient).to(embeddings)


def _on_gpu(embeddings: Tensor, labels: Tensor, weight: Tensor, rounds: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """Finds the same facilities as the host does. A batch with NaN has the loss NaN, because the host does not look."""
    from nearkin.clustering._medoid_kernel import solve
    from nearkin.losses._facility_kernels import distances_of, loss_and_gradient, unit_points

    with torch.cuda.device_of(embeddings):
        if not weight.is_cuda:  # filling does not wait for the GPU, copying may
            weight = torch.full((1,), weight.item(), dtype=torch.float64, device=embeddings.device)
        points, lengths = unit_points(embeddings, normalize)
        solution = solve(distances_of(points), labels.contiguous(), weight, rounds)
        loss, gradient = loss_and_gradient(solution, weight, points, lengths, normalize)
    if reads_data() and not normalize:  # distances of unit vectors are at most 2
        refuse_overflow(loss.item())
    return loss, gradient
