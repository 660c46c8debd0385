"""The compiled part of `facility_location`: greedy choice and exchange of medoids under a clustering margin.

Four observations make it fast without changing the result:

- The gain of adding each candidate is stored and updated. If a point changes its facility, this changes only the gain
  of candidates that are closer to the point than its old or its new facility. While facilities are added, these become
  fewer and fewer; each point keeps a list of them.
- Each point knows its second facility. So the exchange of a facility is evaluated among its own points, without
  removing it first; few exchanges are made.
- The number of points that change their cluster bounds how far NMI can fall (`_margin.py`). Candidates that cannot win,
  given their cost and this bound, are skipped; of hundreds, a few remain.
- A candidate's agreement with the labels follows from the cells of the contingency table that change (lookups of
  n log n).

Distances and tables are rounded to a grid on which all sums are exact in float64. The order of summation then does not
matter: if sums of the given distances are equal, the lowest index wins on every machine.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from nearkin.clustering._compiled import compiled, inlined
from nearkin.clustering._margin import (
    AMI,
    ARI,
    NMI,
    Floats,
    Integers,
    agreement_of,
    nmi_with_moved_points,
    nmi_with_new_cluster,
)

NO_EXCHANGE, OBJECTIVE, ALGORITHM_2, ALL = range(4)
UNKNOWN = -2  # the second facility of a point must be found again
BLOCK = 64  # points that are compared at once
FEW = 8  # rivals are listed if they are at most one of eight candidates
ROUNDING = 1e-9  # larger than the rounding error of a bound, as a share of γ


class State(NamedTuple):
    """A set of facilities and all that is derived from it."""

    distances: Floats  # (m, m), in units of `unit`, exactly symmetric
    classes: Integers  # (m,)
    facilities: Integers  # (K,), −1 if not chosen yet
    owner: Integers  # (m,) position of each point's facility in `facilities`; −1 before the first choice
    near: Floats  # (m,) distance to the owner; `far` before the first choice
    gain: Floats  # (m,) how much shorter the sum of `near` would be if the point became a facility too
    reach: Integers  # (m,) how many points it could then take
    second: Integers  # (m,) position of the nearest facility besides the owner; −1 if there is none
    second_near: Floats  # (m,) distance to it; `far` if there is none
    rivals: Integers  # (m, m) for each point, first the candidates that are not farther away than its owner
    n_rivals: Integers  # (m,) how many they are; 0 if they are not listed yet
    table: Integers  # (K, C) contingency table
    sizes: Integers  # (K,)
    far: float  # larger than any distance
    sums: Floats  # (3,) the margin's table entries, summed over `table` and over `sizes`, and the sum of `near`


@compiled
def solve(distances, unit, classes, n_classes, n_facilities, gamma, margin, exchange, exchange_steps, drawn):
    """Chooses facilities greedily, then exchanges them in rounds.

    `distances` are integer multiples of `unit`; `exchange` is one of the constants above; `drawn` (K, r) are the
    candidates of each greedy step, with no rows if all points are candidates.
    Returns facilities (K,), assignment (m,), agreement and objective.
    """
    m = len(classes)
    far = 2.0 ** (53 - np.ceil(np.log2(m)))  # m distances, and m times this, have exact sums
    state = State(
        distances,
        classes,
        np.full(n_facilities, -1),
        np.full(m, -1),
        np.full(m, far),
        np.full(m, m * far),
        np.full(m, m),
        np.full(m, -1),
        np.full(m, far),
        np.empty((m, m), np.int32),
        np.zeros(m, np.int64),
        np.zeros((n_facilities, n_classes), np.int64),
        np.zeros(n_facilities, np.int64),
        far,
        np.array([0.0, 0.0, m * far]),
    )
    for i in range(m):
        for j in range(m):
            state.gain[j] -= distances[i, j]
    all_points = np.arange(m)
    is_facility = np.zeros(m, np.bool_)
    for k in range(n_facilities):
        cost, best = state.sums[2] - state.gain, -1
        if len(drawn):
            some = drawn[k]
            best = _best(state, k, k, some, cost[some], state.reach[some], is_facility, unit, gamma, margin)
        if best < 0:  # all points are candidates, or all drawn candidates are facilities already
            best = _best(state, k, k, all_points, cost, state.reach, is_facility, unit, gamma, margin)
        _attach(state, k, best, margin)
        is_facility[best] = True
    changed = exchange != NO_EXCHANGE
    for _ in range(exchange_steps):
        if not changed:
            break
        changed = False
        stale_owner = state.owner.copy()
        for k in range(n_facilities):
            members = _members(stale_owner, k)
            if len(members) == 1 and exchange != ALL:
                continue
            candidates = all_points if exchange == ALL else members
            leaving = _members(state.owner, k)
            cost, reach = _without(state, leaving, candidates)
            if exchange == OBJECTIVE and _settled(state, k, members, cost, len(leaving), unit, gamma, margin):
                continue
            old, near = state.facilities[k], state.near[leaving]
            state.facilities[k] = -1
            is_facility[old] = False
            _move(state, leaving, state.second[leaving], state.second_near[leaving], margin)
            if exchange == ALGORITHM_2:
                best = _best_by_stale_cost(state, k, members, reach, unit, gamma, margin)
            else:
                best = _best(state, k, n_facilities - 1, candidates, cost, reach, is_facility, unit, gamma, margin)
            is_facility[best] = True
            if best == old:
                state.facilities[k] = old
                _move(state, leaving, np.full(len(leaving), k), near, margin)
            else:
                _replace(state, k, best, leaving, near, margin)
                changed = True
    found = agreement_of(margin, state.sums[0], state.sums[1], state.sizes)
    return state.facilities, state.owner, found, -state.sums[2] * unit + gamma * (1 - found)


@compiled
def _best(state, k, clusters, candidates, cost, reach, is_facility, unit, gamma, margin):
    """The candidate with the highest objective as the k-th facility besides `clusters` others; −1 if there is none.

    `cost` and `reach` are those of the candidates.
    """
    bounds = _bounds(state, clusters, reach.max(), gamma, margin)
    promise = np.full(len(candidates), -np.inf)
    favourite = -1  # the most promising candidate comes first, because its score rules out most others
    highest = -np.inf
    for p, j in enumerate(candidates):
        if not is_facility[j]:
            promise[p] = bounds[reach[p]] - cost[p] * unit
            if promise[p] > highest:
                favourite, highest = p, promise[p]
    best, best_score = -1, -np.inf
    for turn in range(-1, len(candidates) if favourite >= 0 else -1):
        p = turn if turn >= 0 else favourite
        if promise[p] < best_score or turn == favourite or promise[p] == -np.inf:
            continue
        j = candidates[p]
        score = -cost[p] * unit + gamma * (1 - _agreement_with(state, k, j, reach[p], margin))
        if score > best_score or (score == best_score and j < best):
            best, best_score = j, score
    return best


@compiled
def _best_by_stale_cost(state, k, members, reach, unit, gamma, margin):
    """Follows the paper's Algorithm 2: uses the members that the cluster had at the start of the round."""
    best, best_score = -1, -np.inf
    for p, j in enumerate(members):
        cost = 0.0
        for i in members:
            cost += state.distances[j, i]
        score = -cost * unit + gamma * (1 - _agreement_with(state, k, j, reach[p], margin))
        if score > best_score:
            best, best_score = j, score
    return best


@compiled
def _bounds(state, clusters, most, gamma, margin):
    """(most + 1,) upper bounds of γ·(1 − agreement), by the number of points 0…most that a new cluster takes."""
    if margin.kind == AMI:
        return np.full(most + 1, np.inf)
    if margin.kind == ARI:
        return np.full(most + 1, 1.5 * gamma + ROUNDING * gamma)  # ARI ≥ −½
    bounds = np.full(most + 1, gamma + ROUNDING * gamma)
    for taken in range(1, most + 1):
        lowest = nmi_with_new_cluster(margin, state.sums[0], state.sums[1], clusters, taken)
        if lowest <= 0:
            break
        bounds[taken] -= gamma * lowest
    return bounds


@compiled
def _without(state, leaving, candidates):
    """Cost and reach of candidates if these points had left their facility for their second one."""
    cost, reach = state.sums[2] - state.gain[candidates], state.reach[candidates]
    for i in leaving:
        row, near, second_near = state.distances[i], state.near[i], state.second_near[i]
        for p, j in enumerate(candidates):
            cost[p] += min(row[j], second_near) - min(row[j], near)
            reach[p] += np.int64(row[j] <= second_near) - np.int64(row[j] <= near)
    return cost, reach


@compiled
def _settled(state, k, members, cost, n_leaving, unit, gamma, margin):
    """Whether cost and bound prove that no other member can replace the k-th facility; False if undecided.

    `cost` is that of the members without the k-th facility.
    """
    if margin.kind != NMI or len(state.facilities) == 1:
        return False
    old = state.facilities[k]
    score = -state.sums[2] * unit - gamma * agreement_of(margin, state.sums[0], state.sums[1], state.sizes)
    for p, j in enumerate(members):
        moved = state.reach[j] + n_leaving
        lowest = nmi_with_moved_points(margin, state.sums[0], state.sums[1], len(state.facilities), moved)
        if j != old and -cost[p] * unit - gamma * (lowest - ROUNDING) >= score:
            return False
    return True


@inlined
def _taken(state, k, j, most):
    """The points that j takes as the k-th facility, at most `most`. The first facility wins ties.

    A facility always keeps itself.
    """
    # Fields are unpacked before the loops here and below, because numba counts references at each access.
    row, near, owner, facilities = state.distances[j], state.near, state.owner, state.facilities
    taken = np.empty(most, np.int64)
    count = 0
    for start in range(0, len(row), BLOCK):
        end = min(start + BLOCK, len(row))
        if not _any_closer(row[start:end], near[start:end]):
            continue
        for i in range(start, end):
            if row[i] > near[i]:
                continue
            tie_lost = row[i] == near[i] and owner[i] >= 0 and (k > owner[i] or facilities[owner[i]] == i)
            if i == j or not tie_lost:
                taken[count] = i
                count += 1
    return taken[:count]


@njit
def _any_closer(row, near):
    closer = 0
    for i in range(len(row)):  # without a branch, so that it runs in vector instructions
        closer += row[i] <= near[i]
    return closer > 0


@inlined
def _agreement_with(state, k, j, most, margin):
    """The agreement if j became the k-th facility. Moves points in the table, and moves them back."""
    table, sizes, owner, classes, steps = state.table, state.sizes, state.owner, state.classes, margin.steps
    in_cells, in_sizes, _ = state.sums
    taken = _taken(state, k, j, most)
    for i in taken:
        a, b = owner[i], classes[i]
        if a >= 0:
            in_cells -= steps[table[a, b]]
            in_sizes -= steps[sizes[a]]
            table[a, b] -= 1
            sizes[a] -= 1
        table[k, b] += 1
        in_cells += steps[table[k, b]]
    sizes[k] = len(taken)
    found = agreement_of(margin, in_cells, in_sizes + margin.counts[len(taken)], sizes)
    for i in taken:
        a, b = owner[i], classes[i]
        table[k, b] -= 1
        if a >= 0:
            table[a, b] += 1
            sizes[a] += 1
    sizes[k] = 0
    return found


@compiled
def _replace(state, k, j, left, near, margin):
    """Makes j the k-th facility instead of the one that these points have left; they were `near` to it."""
    for p, i in enumerate(left):
        _tell_candidates(state, i, near[p], state.near[i])
    second = state.second
    second[left] = UNKNOWN
    for i in range(len(second)):
        if second[i] == k:
            second[i] = UNKNOWN
    _attach(state, k, j, margin)
    for i in range(len(second)):
        if second[i] == UNKNOWN:
            _find_second(state, i)


@compiled
def _attach(state, k, j, margin):
    """Makes j the k-th facility."""
    row, second, second_near = state.distances[j], state.second, state.second_near
    taken = _taken(state, k, j, state.reach[j])
    state.facilities[k] = j
    for i in range(len(row)):
        if row[i] <= second_near[i] and second[i] != UNKNOWN and (row[i] < second_near[i] or k < second[i]):
            second[i], second_near[i] = k, row[i]
    for i in taken:
        second[i], second_near[i] = state.owner[i], state.near[i]
        _tell_candidates(state, i, state.near[i], np.float64(row[i]))  # differences of float32 would be rounded
    _move(state, taken, np.full(len(taken), k), row[taken], margin)


@compiled
def _find_second(state, i):
    """The nearest facility but the owner, the first on a tie."""
    row, owner, second, near = state.distances[i], state.owner[i], -1, state.far
    for other, facility in enumerate(state.facilities):
        if other != owner and row[facility] < near:
            second, near = other, row[facility]
    state.second[i], state.second_near[i] = second, near


@compiled
def _members(owner, k):
    members = np.empty(len(owner), np.int64)
    count = 0
    for start in range(0, len(owner), BLOCK):
        end = min(start + BLOCK, len(owner))
        if _any_equal(owner[start:end], k):
            for i in range(start, end):
                if owner[i] == k:
                    members[count] = i
                    count += 1
    return members[:count]


@njit
def _any_equal(owner, k):
    equal = 0
    for i in range(len(owner)):
        equal += owner[i] == k
    return equal > 0


@inlined
def _move(state, points, owners, nears, margin):
    """Gives points to other facilities."""
    owner, near, classes, steps = state.owner, state.near, state.classes, margin.steps
    table, sizes = state.table, state.sizes
    in_cells, in_sizes, total = state.sums
    for p, i in enumerate(points):
        b, source, target = classes[i], owner[i], owners[p]
        if source >= 0:
            in_cells -= steps[table[source, b]]
            in_sizes -= steps[sizes[source]]
            table[source, b] -= 1
            sizes[source] -= 1
        if target >= 0:
            table[target, b] += 1
            sizes[target] += 1
            in_cells += steps[table[target, b]]
            in_sizes += steps[sizes[target]]
        total += nears[p] - near[i]
        owner[i], near[i] = target, nears[p]
    state.sums[:] = in_cells, in_sizes, total


@inlined
def _tell_candidates(state, i, old, new):
    """Updates gain and reach of the candidates if the distance of point i to its facility changes."""
    row, rivals, count = state.distances[i], state.rivals[i], state.n_rivals[i]
    if count == 0 or new > old:
        state.n_rivals[i] = _tell_all(state.gain, state.reach, row, rivals, old, new)
    else:
        state.n_rivals[i] = _tell_rivals(state.gain, state.reach, row, rivals[:count], old, new)


@njit(fastmath=True)  # all sums are exact on the grid, so their order does not matter
def _tell_all(gain, reach, row, rivals, old, new):
    for j in range(len(row)):
        gain[j] += max(new - row[j], 0.0) - max(old - row[j], 0.0)
        reach[j] += np.int64(row[j] <= new) - np.int64(row[j] <= old)
    count = 0
    for j in range(len(row)):
        count += row[j] <= new
    if count * FEW > len(row):
        return 0
    count = 0
    for j in range(len(row)):
        rivals[count] = j
        count += row[j] <= new
    return count


@njit(fastmath=True)
def _tell_rivals(gain, reach, row, rivals, old, new):
    """For a facility that is closer than the old one; candidates that are farther away are rivals no longer."""
    count = 0
    for j in rivals:
        gain[j] += max(row[j], new) - old
        reach[j] -= row[j] > new
        rivals[count] = j
        count += row[j] <= new
    return count
