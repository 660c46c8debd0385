"""The medoid solver for batches on a GPU: what `_medoid_solver.py` does, in Triton kernels; the host need not wait.

`prepare` has one program per point; it rounds distances to the grid and sums them. `search` is a single program,
because every choice depends on the one before. Its vectors have one entry per point.

It finds the same facilities in the same order as the solver on the host, because

- sums of distances and of n log n are exact on the same grid, so their order does not matter;
- the lowest index wins ties, in whatever order candidates are evaluated;
- candidates are skipped by the same kind of bounds (`_margin.py`), which never exclude the best one;
- the few rounded operations, those of the agreement and of the score, are those of the host, one by one: fused
  multiply-adds are switched off, and float64 roots and quotients are correctly rounded on every device.

Three things differ. Adding a facility and exchanging one are the same step: the points of a facility leave for their
second facilities, and the best candidate takes its place; when facilities are added, none leave. The state without the
old facility is computed beside the current one, so an exchange that is not made needs no undoing. And several
candidates are evaluated at once, each with its own counters: how many points it takes from each cell of the contingency
table, from each cluster and from each class. The table itself is never stored: the cell of a point is found from the
other points of its class, which are linked in a ring.

Threads read what others have written, so there is a barrier after writes, and before memory is used again.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nearkin.clustering.agreement import n_log_n

ROUNDING = tl.constexpr(1e-9)  # larger than the rounding error of a bound, as a share of γ
UNKNOWN = tl.constexpr(-2)  # the second facility of a point must be found again
AT_ONCE = tl.constexpr(4)  # rows of distances that are loaded together
FACILITIES = tl.constexpr(256)  # that are compared at once
ROUND = tl.constexpr(1.5 * 2.0**52)  # adding and subtracting this rounds a float64 below 2⁵¹ to an integer


class Solution(NamedTuple):
    """All on the device of the distances."""

    facilities: Tensor  # (m,) int32, the first K are the facilities in the order of choice
    assignment: Tensor  # (m,) int32, position of each point's facility in `facilities`
    medoids: Tensor  # (m,) int32, the medoid of each point's class
    nearest: Tensor  # (m,) int32, the facility of each point
    # (5,) float64: sums of distances to medoids and to facilities in units, the unit, the agreement, and K. All are NaN
    # if a distance is NaN or infinite, and the indices above are then meaningless.
    sums: Tensor


def solve(distances: Tensor, labels: Tensor, gamma: Tensor, rounds: int) -> Solution:
    """Class medoids, and as many facilities as classes, for NMI and ``exchange="objective"``.

    ``distances`` (m, m), float32, exactly symmetric with a zero diagonal, are rounded in place. ``labels`` are (m,),
    ``gamma`` is one float64 number. ``rounds`` is the maximum number of rounds of exchanges.
    """
    m, device = len(labels), distances.device
    block = max(32, triton.next_power_of_2(m))
    warps, candidates = launch_shape(block)
    indices = torch.empty(13 + 3 * candidates, block, dtype=torch.int32, device=device)
    values = torch.empty(7, block, dtype=torch.float64, device=device)
    sums = torch.empty(5, dtype=torch.float64, device=device)
    grid_bits = math.ceil(math.log2(m)) - 52
    largest = distances.max()
    few = max(1, min(8, block // 256))
    prepare[(m,)](distances, labels, largest, indices, values, m, grid_bits, block, num_warps=few)
    search[(1,)](
        distances,
        largest,
        _tables(m, device),
        gamma,
        indices,
        values,
        sums,
        m,
        rounds,
        grid_bits,
        block,
        candidates,
        num_warps=warps,
        num_stages=1,
        enable_fp_fusion=False,
    )
    return Solution(indices[5, :m], indices[3, :m], indices[7, :m], indices[6, :m], sums)


def launch_shape(block: int) -> tuple[int, int]:
    """Warps, and candidates that are evaluated at once: 8 of their points per thread."""
    warps = min(16, block // 32)
    return warps, max(1, 256 * warps // block)


@cache  # for ever, because a CUDA graph may read them
def _tables(points: int, device: torch.device) -> Tensor:
    """(3, points + 1): n log n on a grid, its differences, and log n (0 for n = 0)."""
    counts, steps = n_log_n(points)
    logs = torch.arange(points + 1, dtype=torch.float64).clamp_(min=1).log_()
    return torch.stack([torch.from_numpy(counts), torch.from_numpy(steps), logs]).to(device)


@triton.jit
def unit_exponent(largest, grid_bits):
    """log2 of the unit; that of `Problem.of`."""
    exponent = ((largest.to(tl.float64).to(tl.int64, bitcast=True) >> 52) & 2047).to(tl.int32) - 1022
    return tl.maximum(exponent + grid_bits, -1000)


@triton.jit
def power_of_two(exponent):
    return ((exponent + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def is_finite(value):
    return (value - value) == 0


@triton.jit(do_not_specialize=["m", "grid_bits"])
def prepare(distances, labels, largest_distance, indices, values, m, grid_bits, block: tl.constexpr):
    """Rounds the distances of a point to the grid; sums them over all points and over its class; links its class."""
    point = tl.program_id(0)
    i = tl.arange(0, block)
    inside = i < m
    largest = tl.load(largest_distance)
    scale = power_of_two(-unit_exponent(largest, grid_bits))
    row = tl.load(distances + point * m + i, mask=inside, other=0.0).to(tl.float64)
    row = (row * scale + ROUND) - ROUND
    tl.store(distances + point * m + i, row.to(tl.float32), mask=inside)
    same = inside & (tl.load(labels + i, mask=inside, other=0) == tl.load(labels + point))
    first = tl.min(tl.where(same, i, block), 0)
    following = tl.min(tl.where(same & (i > point), i, block), 0)
    tl.store(indices + point, first)
    tl.store(indices + block + point, tl.where(following < block, following, first))  # a ring
    tl.store(indices + 2 * block + point, tl.sum(same.to(tl.int32), 0))
    tl.store(values + point, tl.sum(row, 0))
    tl.store(values + block + point, tl.sum(tl.where(same, row, 0.0), 0))


@triton.jit(do_not_specialize=["m", "rounds", "grid_bits"])
def search(
    distances,  # (m, m) float32, in units
    largest_distance,
    tables,  # (3, m + 1), see `_tables`
    gamma_value,
    indices,
    values,
    sums,
    m,
    rounds,
    grid_bits,
    block: tl.constexpr,
    at_once: tl.constexpr,
):
    # Indices: class (its first point), next point of the class, size of the class; position of each point's facility,
    # or −1; position of its second facility; facilities; at the end, each point's facility and its class's medoid.
    classes, following, class_sizes = indices, indices + block, indices + 2 * block
    owners, seconds, facilities = indices + 3 * block, indices + 4 * block, indices + 5 * block
    nearest, medoids = indices + 6 * block, indices + 7 * block
    is_facility, reaches = indices + 8 * block, indices + 9 * block
    # Owners at the start of a round; owners without the facility that is to be exchanged, and their numbers of points.
    stale, others, sizes = indices + 10 * block, indices + 11 * block, indices + 12 * block
    listed, counters = indices + 6 * block, indices + 13 * block  # `listed` shares the space of `nearest`
    # Values: sum of distances to all points and to those of the class; distance to the owner and to the second
    # facility; how much a candidate would shorten the sum of distances, and the sum that would remain.
    totals, class_costs, nears, second_nears = values, values + block, values + 2 * block, values + 3 * block
    gains, costs, new_nears = values + 4 * block, values + 5 * block, values + 6 * block
    counts, steps, logs = tables, tables + m + 1, tables + 2 * (m + 1)

    i = tl.arange(0, block)
    inside = i < m
    largest = tl.load(largest_distance)
    finite = is_finite(largest)
    unit = power_of_two(unit_exponent(largest, grid_bits))
    gamma = tl.load(gamma_value)
    own_class = tl.load(classes + i, mask=inside, other=0)
    class_size = tl.load(class_sizes + i, mask=inside, other=0)
    is_first = inside & (own_class == i)
    n_classes = tl.sum(is_first.to(tl.int32), 0)
    largest_class = tl.max(class_size, 0)
    whole = tl.load(counts + m)
    label_sum = tl.sum(tl.load(counts + class_size, mask=is_first, other=0.0), 0)

    # The medoid of each class.
    least = tl.load(class_costs + i, mask=inside, other=0.0)
    medoid, other = i, i
    for _ in range(1, largest_class):
        other = tl.load(following + other, mask=inside, other=0)
        cost_there = tl.load(class_costs + other, mask=inside, other=0.0)
        better = (cost_there < least) | ((cost_there == least) & (other < medoid))
        least, medoid = tl.where(better, cost_there, least), tl.where(better, other, medoid)
    tl.store(medoids + i, medoid)
    to_medoids = tl.sum(tl.where(is_first, least, 0.0), 0)

    far = power_of_two(1 - grid_bits)  # larger than any distance; m distances, and m times this, have exact sums
    total = far * m
    tl.store(owners + i, tl.full((block,), -1, tl.int32))
    tl.store(seconds + i, tl.full((block,), -1, tl.int32))
    tl.store(facilities + i, tl.full((block,), -1, tl.int32))
    tl.store(is_facility + i, tl.full((block,), 0, tl.int32))
    tl.store(reaches + i, tl.zeros((block,), tl.int32) + m)
    tl.store(nears + i, tl.zeros((block,), tl.float64) + far)
    tl.store(second_nears + i, tl.zeros((block,), tl.float64) + far)
    tl.store(gains + i, total - tl.load(totals + i, mask=inside, other=0.0))
    for counter in range(3 * at_once):
        tl.store(counters + counter * block + i, tl.full((block,), 0, tl.int32))
    tl.debug_barrier()

    agreement = tl.full((), 0.0, tl.float64)
    in_cells = tl.full((), 0.0, tl.float64)
    in_sizes = tl.full((), 0.0, tl.float64)
    turn = tl.full((), 0, tl.int32)  # 0: facilities are added; later: exchanged
    changed = finite
    while changed & (turn <= rounds):
        changed = turn == 0
        tl.store(stale + i, tl.load(owners + i))
        tl.debug_barrier()
        for k in range(n_classes):
            old = tl.load(facilities + k)
            owner = tl.load(owners + i, mask=inside, other=-1)
            near = tl.load(nears + i)
            second_near = tl.load(second_nears + i)
            keeps = tl.load(is_facility + i) != 0  # a facility always keeps itself
            leaving = owner == k
            candidate = inside & ~keeps & ((turn == 0) | (tl.load(stale + i) == k))
            n_leaving = _list(leaving, i, listed)
            tl.debug_barrier()

            # Cost and reach of candidates without the old facility.
            known_reach = tl.load(reaches + i)
            cost, reach = total - tl.load(gains + i), known_reach
            for start in range(0, n_leaving, AT_ONCE):
                for p in tl.static_range(AT_ONCE):
                    there = start + p < n_leaving
                    point = tl.load(listed + start + p, mask=there, other=0)
                    nearer = tl.load(nears + point, mask=there, other=0.0)
                    farther = tl.load(second_nears + point, mask=there, other=0.0)
                    row = tl.load(distances + point * m + i, mask=candidate, other=0.0).to(tl.float64)
                    cost += tl.minimum(row, farther) - tl.minimum(row, nearer)
                    reach += (row <= farther).to(tl.int32) - (row <= nearer).to(tl.int32)

            # No candidate can score higher than its promise.
            moved = tl.where(turn == 0, reach, known_reach + n_leaving)
            half = tl.minimum(moved, m // 2)
            binary_entropy = (
                whole
                - tl.load(counts + half, mask=inside, other=0.0)
                - tl.load(counts + m - half, mask=inside, other=0.0)
            )
            sources = tl.where(turn == 0, tl.minimum(moved, k), n_classes - 1)
            unknown = moved * tl.load(logs + sources, mask=inside, other=0.0)
            lost = tl.where(turn == 0, unknown, unknown + binary_entropy)
            gained = tl.where(turn == 0, binary_entropy, unknown + binary_entropy)
            mutual = in_cells - in_sizes - label_sum + whole
            product = (whole - in_sizes + gained) * (whole - label_sum)
            lowest = tl.where((product > 0) & (mutual > lost), (mutual - lost) / tl.sqrt(product), 0.0)
            lowest = tl.where((turn == 0) & (k == 0), 0.0, lowest)
            promise = tl.where(candidate, gamma + ROUNDING * gamma - gamma * lowest - cost * unit, -float("inf"))

            best, best_cost, best_cells, best_sizes, best_agreement = old, total, in_cells, in_sizes, agreement
            best_score = tl.where(turn == 0, -float("inf"), -total * unit + gamma * (1 - agreement))
            highest, favourite = tl.max(promise, 0, return_indices=True)
            if (highest >= best_score) & (highest > -float("inf")):
                # The state without the old facility.
                owner = tl.where(leaving, tl.load(seconds + i), owner)
                near = tl.where(leaving, second_near, near)
                keeps = keeps & (i != old)
                tl.store(costs + i, cost)
                tl.store(others + i, owner)
                tl.store(sizes + i, tl.full((block,), 0, tl.int32))
                tl.debug_barrier()
                owned = owner >= 0
                tl.atomic_add(sizes + owner, 1, mask=owned, sem="relaxed", scope="cta")
                cell, cell_size, other = i, tl.full((block,), 1, tl.int32), i
                for passed in range(1, largest_class):  # the rings of smaller classes are passed several times
                    other = tl.load(following + other, mask=inside, other=0)
                    together = (passed < class_size) & (tl.load(others + other, mask=inside, other=-1) == owner)
                    cell = tl.minimum(cell, tl.where(together, other, block))
                    cell_size += together.to(tl.int32)
                tl.debug_barrier()
                cluster_size = tl.load(sizes + owner, mask=owned, other=0)
                base_cells = tl.sum(tl.load(counts + cell_size, mask=owned & (cell == i), other=0.0), 0)
                base_sizes = tl.sum(tl.load(counts + tl.load(sizes + i)), 0)

                for phase in range(tl.where(turn == 0, 0, 1), 2):
                    # The most promising candidate comes first, because its score rules out most others.
                    chosen = candidate & (promise >= best_score) & ((turn > 0) | ((i == favourite) == (phase == 0)))
                    n_chosen = _list(chosen, i, listed)
                    tl.debug_barrier()
                    for start in range(0, n_chosen, at_once):
                        slot = tl.arange(0, at_once)
                        there = start + slot < n_chosen
                        j = tl.load(listed + start + slot, mask=there, other=0)
                        rows = tl.load(
                            distances + j[:, None] * m + i[None, :], mask=there[:, None] & inside[None, :], other=0.0
                        )
                        limit = near.to(tl.float32)  # distances are float32, so nothing is lost
                        taken = _takes(rows, j[:, None], k, i[None, :], limit[None, :], owner[None, :], keeps[None, :])
                        taken = taken & there[:, None] & inside[None, :]
                        left = taken & owned[None, :]
                        from_cell = counters + 3 * block * slot[:, None] + cell[None, :]
                        from_owner = counters + 3 * block * slot[:, None] + block + owner[None, :]
                        of_class = counters + 3 * block * slot[:, None] + 2 * block + own_class[None, :]
                        nth_of_cell = tl.atomic_add(from_cell, 1, mask=left, sem="relaxed", scope="cta")
                        nth_of_owner = tl.atomic_add(from_owner, 1, mask=left, sem="relaxed", scope="cta")
                        nth_of_class = tl.atomic_add(of_class, 1, mask=taken, sem="relaxed", scope="cta")
                        # Threads get the numbers of a counter in any order, but their steps have the same sum.
                        new = tl.load(steps + nth_of_class + 1, mask=taken, other=0.0)
                        new -= tl.load(steps + cell_size[None, :] - nth_of_cell, mask=left, other=0.0)
                        less = tl.load(steps + cluster_size[None, :] - nth_of_owner, mask=left, other=0.0)
                        n_taken = tl.sum(taken.to(tl.int32), 1)
                        cells = base_cells + tl.sum(new, 1)
                        cluster_sum = base_sizes - tl.sum(less, 1) + tl.load(counts + n_taken)
                        tl.debug_barrier()
                        for kind in tl.static_range(3):
                            tl.store(counters + (3 * slot[:, None] + kind) * block + i[None, :], 0)
                        found = _nmi(cells, cluster_sum, label_sum, whole)
                        cost_of = tl.load(costs + j, mask=there, other=0.0)
                        score = tl.where(there, -cost_of * unit + gamma * (1 - found), -float("inf"))
                        top = tl.max(score, 0)
                        lowest_index = tl.min(tl.where(score == top, j, block), 0)
                        if (top > best_score) | ((top == best_score) & (lowest_index < best)):
                            best, best_score = lowest_index, top
                            winner = there & (j == lowest_index)
                            best_cost = tl.sum(tl.where(winner, cost_of, 0.0), 0)
                            best_cells = tl.sum(tl.where(winner, cells, 0.0), 0)
                            best_sizes = tl.sum(tl.where(winner, cluster_sum, 0.0), 0)
                            best_agreement = tl.sum(tl.where(winner, found, 0.0), 0)
                        tl.debug_barrier()

                if best != old:
                    changed = turn >= 0
                    total, in_cells, in_sizes, agreement = best_cost, best_cells, best_sizes, best_agreement
                    row = tl.load(distances + best * m + i, mask=inside, other=0.0).to(tl.float64)
                    taken = inside & _takes(row, best, k, i, near, owner, keeps)
                    second = tl.load(seconds + i)
                    second = tl.where(leaving | (second == k), UNKNOWN, second)
                    closer = (row < second_near) | ((row == second_near) & (k < second))
                    closer = closer & (second != UNKNOWN)
                    second, second_near = tl.where(closer, k, second), tl.where(closer, row, second_near)
                    second, second_near = tl.where(taken, owner, second), tl.where(taken, near, second_near)
                    owner, new_near = tl.where(taken, k, owner), tl.where(taken, row, near)
                    tl.store(owners + i, owner)
                    tl.store(new_nears + i, new_near)
                    tl.store(seconds + i, second)
                    tl.store(second_nears + i, second_near)
                    tl.store(facilities + k, best)
                    if old >= 0:
                        tl.store(is_facility + old, 0)
                    tl.store(is_facility + best, 1)
                    n_changed = _list(inside & (new_near != tl.load(nears + i)), i, listed)
                    tl.debug_barrier()

                    # Gain and reach of the candidates.
                    gain, reach = tl.load(gains + i), tl.load(reaches + i)
                    for start in range(0, n_changed, AT_ONCE):
                        for p in tl.static_range(AT_ONCE):
                            there = start + p < n_changed
                            point = tl.load(listed + start + p, mask=there, other=0)
                            before = tl.load(nears + point, mask=there, other=0.0)
                            now = tl.load(new_nears + point, mask=there, other=0.0)
                            row = tl.load(distances + point * m + i, mask=inside, other=0.0).to(tl.float64)
                            gain += tl.maximum(now - row, 0.0) - tl.maximum(before - row, 0.0)
                            reach += (row <= now).to(tl.int32) - (row <= before).to(tl.int32)
                    tl.debug_barrier()
                    tl.store(nears + i, new_near)
                    tl.store(gains + i, gain)
                    tl.store(reaches + i, reach)

                    # Second facilities that are not known: the nearest but the owner, the first on a tie.
                    n_unknown = _list(inside & (second == UNKNOWN), i, listed)
                    tl.debug_barrier()
                    for start in range(0, n_unknown, AT_ONCE):
                        slot = tl.arange(0, AT_ONCE)
                        there = start + slot < n_unknown
                        point = tl.load(listed + start + slot, mask=there, other=0)
                        its_owner = tl.load(owners + point, mask=there, other=0)
                        its_near = tl.zeros((AT_ONCE,), tl.float64) + far
                        its_second = tl.full((AT_ONCE,), -1, tl.int32)
                        for first in range(0, n_classes, FACILITIES):
                            position = first + tl.arange(0, FACILITIES)
                            facility = tl.load(facilities + position, mask=position < n_classes, other=0)
                            eligible = (position < n_classes)[None, :] & (position[None, :] != its_owner[:, None])
                            away = tl.load(
                                distances + point[:, None] * m + facility[None, :],
                                mask=eligible & there[:, None],
                                other=0.0,
                            ).to(tl.float64)
                            away = tl.where(eligible, away, far)
                            shortest, place = tl.min(away, 1, return_indices=True)
                            its_second = tl.where(shortest < its_near, first + place, its_second)
                            its_near = tl.minimum(its_near, shortest)
                        tl.store(seconds + point, its_second, mask=there)
                        tl.store(second_nears + point, its_near, mask=there)
            tl.debug_barrier()
        turn += 1

    owner = tl.load(owners + i)
    to_facilities = tl.sum(tl.where(inside, tl.load(nears + i), 0.0), 0)
    tl.debug_barrier()
    tl.store(nearest + i, tl.load(facilities + tl.maximum(owner, 0)))
    invalid = tl.where(finite, 0.0, float("nan"))
    tl.store(sums, to_medoids + invalid)
    tl.store(sums + 1, to_facilities + invalid)
    tl.store(sums + 2, unit + invalid)
    tl.store(sums + 3, agreement + invalid)
    tl.store(sums + 4, n_classes + invalid)


@triton.jit
def _list(chosen, i, into):
    """Writes the chosen indices in ascending order; returns their number."""
    count = chosen.to(tl.int32)
    tl.store(into + tl.cumsum(count, 0) - 1, i, mask=chosen)
    return tl.sum(count, 0)


@triton.jit
def _takes(row, j, k, i, near, owner, keeps):
    """Whether j takes points as the k-th facility. The first facility wins ties; a facility always keeps itself."""
    return (row < near) | (i == j) | ((row == near) & (k < owner) & ~keeps)


@triton.jit
def _nmi(in_cells, in_sizes, label_sum, whole):
    """`agreement_of` for NMI."""
    mutual = in_cells - in_sizes - label_sum + whole
    clusters, labels = whole - in_sizes, whole - label_sum
    without = tl.where((clusters <= 0) & (labels <= 0), 1.0, 0.0)
    valid = (clusters > 0) & (labels > 0)
    product = tl.where(valid, clusters * labels, 1.0)
    return tl.where(valid, tl.maximum(mutual, 0.0) / tl.sqrt(product), without)
