"""What `_facility_gradient.py` computes, in Triton kernels for a batch on a GPU, with the same formulas in float64."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nearkin.clustering._medoid_kernel import Solution

TILE = 32


def unit_points(vectors: Tensor, normalize: bool) -> tuple[Tensor, Tensor]:
    """The vectors (m, dim) in float64, divided by their lengths if asked, (dim, m), and these lengths (m,)."""
    m, dim = vectors.shape
    points = torch.empty(dim, m, dtype=torch.float64, device=vectors.device)
    lengths = torch.empty(m, dtype=torch.float64, device=vectors.device)
    _unit_points[(m,)](vectors, points, lengths, *vectors.stride(), m, dim, triton.next_power_of_2(dim), normalize)
    return points, lengths


def distances_of(points: Tensor) -> Tensor:
    """The distances (m, m) of points (dim, m), in float32; exactly symmetric, because (a − b)² is."""
    dim, m = points.shape
    distances = torch.empty(m, m, dtype=torch.float32, device=points.device)
    tiles = triton.cdiv(m, TILE)
    _distances[tiles, tiles](points, distances, m, dim, TILE)
    return distances


def loss_and_gradient(
    solution: Solution, gamma: Tensor, points: Tensor, lengths: Tensor, normalize: bool
) -> tuple[Tensor, Tensor]:
    """The loss and its gradient (m, dim) with respect to the vectors, in float32; both NaN if a distance is not finite.

    Every row of the gradient sums its terms in the same order each time, so results are reproducible.
    """
    dim, m = points.shape
    loss = torch.empty((), dtype=torch.float32, device=points.device)
    gradient = torch.empty(m, dim, dtype=torch.float32, device=points.device)
    width = triton.next_power_of_2(dim)
    _gradient[(m,)](
        points,
        lengths,
        solution.medoids,
        solution.nearest,
        solution.sums,
        gamma,
        loss,
        gradient,
        m,
        dim,
        width,
        max(16, 2048 // width),
        normalize,
    )
    return loss, gradient


@triton.jit
def _unit_points(vectors, points, lengths, stride, step, m, dim, width: tl.constexpr, normalize: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, width)
    point = tl.load(vectors + row * stride + c * step, mask=c < dim, other=0.0).to(tl.float64)
    if normalize:
        length = tl.sqrt(tl.sum(point * point, 0))
        length = tl.where(length > 0, length, float("inf"))  # a zero vector stays zero and gets no gradient
        point /= length
        tl.store(lengths + row, length)
    tl.store(points + c * m + row, point, mask=c < dim)


@triton.jit
def _distances(points, distances, m, dim, tile: tl.constexpr):
    i = tl.program_id(0) * tile + tl.arange(0, tile)
    j = tl.program_id(1) * tile + tl.arange(0, tile)
    squared = tl.zeros((tile, tile), tl.float64)
    for c in range(dim):
        a = tl.load(points + c * m + i, mask=i < m, other=0.0)
        b = tl.load(points + c * m + j, mask=j < m, other=0.0)
        difference = a[:, None] - b[None, :]
        squared += difference * difference
    inside = (i < m)[:, None] & (j < m)[None, :]
    tl.store(distances + i[:, None] * m + j[None, :], tl.sqrt(squared).to(tl.float32), mask=inside)


@triton.jit
def _gradient(
    points,
    lengths,
    medoids,
    nearest,
    sums,
    gamma,
    loss,
    gradient,
    m,
    dim,
    width: tl.constexpr,
    block: tl.constexpr,
    normalize: tl.constexpr,
):
    i, c = tl.program_id(0), tl.arange(0, width)
    to_medoids, to_facilities, unit, agreement = tl.load(sums), tl.load(sums + 1), tl.load(sums + 2), tl.load(sums + 3)
    value = unit * (to_medoids - to_facilities) + tl.load(gamma) * (1 - agreement)
    finite = value == value
    point = tl.load(points + c * m + i, mask=c < dim, other=0.0)
    medoid, facility = tl.load(medoids + i), tl.load(nearest + i)
    found = tl.zeros((width,), tl.float64)
    for start in range(0, tl.where(value > 0, m, 0), block):
        j = start + tl.arange(0, block)
        # Pairs of points and their targets: j is a target of i, or i of j.
        weight = (j == medoid).to(tl.int32) - (j == facility).to(tl.int32)
        weight += (tl.load(medoids + j, mask=j < m, other=-1) == i).to(tl.int32)
        weight -= (tl.load(nearest + j, mask=j < m, other=-1) == i).to(tl.int32)
        if tl.max(tl.abs(weight), 0) > 0:
            inside = (weight != 0)[:, None] & (c < dim)[None, :]
            direction = point[None, :] - tl.load(points + c[None, :] * m + j[:, None], mask=inside, other=0.0)
            direction = tl.where(inside, direction, 0.0)
            distance = tl.sqrt(tl.sum(direction * direction, 1))
            scale = tl.where(distance > 0, weight / tl.where(distance > 0, distance, 1.0), 0.0)
            found += tl.sum(scale[:, None] * direction, 0)
    if normalize:
        found = (found - tl.sum(found * point, 0) * point) / tl.load(lengths + i)
    found = tl.where(finite, found, float("nan"))
    tl.store(gradient + i * dim + c, found.to(tl.float32), mask=c < dim)
    if i == 0:
        tl.store(loss, tl.where(finite, tl.maximum(value, 0.0), value).to(tl.float32))
