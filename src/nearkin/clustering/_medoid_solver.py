"""The compiled part of `facility_location`: greedy choice and exchange of medoids under a clustering margin.

Three observations make it fast without changing the result:

- The cost of adding each candidate is stored and updated. It changes only if a point changes its facility, and each
  such point needs one pass over a row of the distance matrix.
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
FAR = 2.0**60  # larger than any distance on the grid: for points that have no facility yet
ROUNDING = 1e-9  # larger than the rounding error of a bound, as a share of γ


class State(NamedTuple):
    """A set of facilities and all_points that is derived from it."""

    distances: Floats  # (m, m), in units of `unit`, exactly symmetric
    classes: Integers  # (m,)
    facilities: Integers  # (K,), −1 if not chosen yet
    owner: Integers  # (m,) position of each point's facility in `facilities`; −1 before the first choice
    near: Floats  # (m,) distance to the owner; FAR before the first choice
    cost: Floats  # (m,) sum of distances if the point became a facility too
    reach: Integers  # (m,) the largest number of points that it would then take
    table: Integers  # (K, C) contingency table
    sizes: Integers  # (K,)
    sums: Floats  # (2,) the margin's table entries, summed over `table` and over `sizes`


@compiled
def solve(distances, unit, classes, n_classes, n_facilities, gamma, margin, exchange, exchange_steps, drawn):
    """Chooses facilities greedily, then exchanges them in rounds.

    `distances` are integer multiples of `unit`; `exchange` is one of the constants above; `drawn` (K, r) are the
    candidates of each greedy step, with no rows if all points are candidates.
    Returns facilities (K,), assignment (m,), agreement and objective.
    """
    m = len(classes)
    state = State(
        distances,
        classes,
        np.full(n_facilities, -1),
        np.full(m, -1),
        np.full(m, FAR),
        np.zeros(m),
        np.full(m, m),
        np.zeros((n_facilities, n_classes), np.int64),
        np.zeros(n_facilities, np.int64),
        np.zeros(2),
    )
    for i in range(m):
        for j in range(m):
            state.cost[j] += distances[i, j]
    all_points = np.arange(m)
    is_facility = np.zeros(m, np.bool_)
    for k in range(n_facilities):
        best = _best(state, k, k, drawn[k] if len(drawn) else all_points, is_facility, unit, gamma, margin)
        if best < 0:  # all drawn candidates are facilities already
            best = _best(state, k, k, all_points, is_facility, unit, gamma, margin)
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
            if exchange == OBJECTIVE and _settled(state, k, members, unit, gamma, margin):
                continue
            old = state.facilities[k]
            is_facility[old] = False
            _detach(state, k, margin)
            if exchange == ALGORITHM_2:
                best = _best_by_stale_cost(state, k, members, unit, gamma, margin)
            else:
                candidates = all_points if exchange == ALL else members
                best = _best(state, k, n_facilities - 1, candidates, is_facility, unit, gamma, margin)
            _attach(state, k, best, margin)
            is_facility[best] = True
            changed |= best != old
    found = agreement_of(margin, state.sums[0], state.sums[1], state.sizes)
    return state.facilities, state.owner, found, -state.near.sum() * unit + gamma * (1 - found)


@compiled
def _best(state, k, clusters, candidates, is_facility, unit, gamma, margin):
    """The candidate with the highest objective as the k-th facility besides `clusters` others; −1 if there is none."""
    most = 0
    for j in candidates:
        most = max(most, state.reach[j])
    bounds = _bounds(state, clusters, most, gamma, margin)
    promise = np.full(len(candidates), -np.inf)
    favourite = -1  # the most promising candidate comes first, because its score rules out most others
    for p, j in enumerate(candidates):
        if not is_facility[j]:
            promise[p] = bounds[state.reach[j]] - state.cost[j] * unit
            if favourite < 0 or promise[p] > promise[favourite]:
                favourite = p
    best, best_score = -1, -np.inf
    for turn in range(-1, len(candidates) if favourite >= 0 else -1):
        p = turn if turn >= 0 else favourite
        j = candidates[p]
        if is_facility[j] or turn == favourite or promise[p] < best_score:
            continue
        score = -state.cost[j] * unit + gamma * (1 - _agreement_with(state, k, j, margin))
        if score > best_score or (score == best_score and j < best):
            best, best_score = j, score
    return best


@compiled
def _best_by_stale_cost(state, k, members, unit, gamma, margin):
    """Follows the paper's Algorithm 2: uses the members that the cluster had at the start of the round."""
    best, best_score = -1, -np.inf
    for j in members:
        cost = 0.0
        for i in members:
            cost += state.distances[j, i]
        score = -cost * unit + gamma * (1 - _agreement_with(state, k, j, margin))
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
def _settled(state, k, members, unit, gamma, margin):
    """Whether cost and bound prove that no other member can replace the k-th facility; False if undecided."""
    if margin.kind != NMI or len(state.facilities) == 1:
        return False
    distances, facilities, near, old = state.distances, state.facilities, state.near, state.facilities[k]
    leaving = _members(state.owner, k)
    elsewhere = np.full(len(leaving), FAR)
    for p, i in enumerate(leaving):
        for other, facility in enumerate(facilities):
            if other != k:
                elsewhere[p] = min(elsewhere[p], distances[i, facility])
    score = -state.cost[old] * unit - gamma * agreement_of(margin, state.sums[0], state.sums[1], state.sizes)
    for j in members:
        cost = state.cost[j]
        for p, i in enumerate(leaving):
            cost += min(elsewhere[p], distances[j, i]) - min(near[i], distances[j, i])
        moved = state.reach[j] + len(leaving)
        lowest = nmi_with_moved_points(margin, state.sums[0], state.sums[1], len(facilities), moved)
        if j != old and -cost * unit - gamma * (lowest - ROUNDING) >= score:
            return False
    return True


@inlined
def _taken(state, k, j):
    """The points that j takes as the k-th facility. The first facility wins ties; a facility always keeps itself."""
    # Fields are unpacked before the loops here and below, because numba counts references at each access.
    row, near, owner, facilities = state.distances[j], state.near, state.owner, state.facilities
    taken = np.empty(state.reach[j], np.int64)
    count = 0
    for i in range(len(row)):
        if row[i] > near[i]:
            continue
        tie_lost = row[i] == near[i] and owner[i] >= 0 and (k > owner[i] or facilities[owner[i]] == i)
        if i == j or not tie_lost:
            taken[count] = i
            count += 1
    return taken[:count]


@inlined
def _agreement_with(state, k, j, margin):
    """The agreement if j became the k-th facility. Moves points in the table, and moves them back."""
    table, sizes, owner, classes, steps = state.table, state.sizes, state.owner, state.classes, margin.steps
    in_cells, in_sizes = state.sums
    taken = _taken(state, k, j)
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
def _attach(state, k, j, margin):
    """Makes j the k-th facility."""
    taken = _taken(state, k, j)
    state.facilities[k] = j
    near = np.empty(len(taken))
    for p, i in enumerate(taken):
        near[p] = state.distances[j, i]
    _hand_over(state, taken, np.full(len(taken), k), near, margin)


@compiled
def _detach(state, k, margin):
    """Removes the k-th facility; its points go to their nearest other facility, the first one on a tie."""
    distances, facilities = state.distances, state.facilities
    facilities[k] = -1
    points = _members(state.owner, k)
    owner, near = np.full(len(points), -1), np.full(len(points), FAR)
    for p, i in enumerate(points):
        for other, facility in enumerate(facilities):
            if facility >= 0 and distances[i, facility] < near[p]:
                owner[p], near[p] = other, distances[i, facility]
    _hand_over(state, points, owner, near, margin)


@compiled
def _members(owner, k):
    members = np.empty(len(owner), np.int64)
    count = 0
    for i in range(len(owner)):
        if owner[i] == k:
            members[count] = i
            count += 1
    return members[:count]


@inlined
def _hand_over(state, points, owners, nears, margin):
    """Assigns points to other facilities and updates cost and reach of all candidates."""
    distances, owner, near, cost, reach = state.distances, state.owner, state.near, state.cost, state.reach
    table, sizes, classes, steps = state.table, state.sizes, state.classes, margin.steps
    in_cells, in_sizes = state.sums
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
        _shift(cost, reach, distances[i], near[i], nears[p])
        owner[i], near[i] = target, nears[p]
    state.sums[0], state.sums[1] = in_cells, in_sizes


@njit(fastmath=True)  # all sums are exact on the grid, so their order does not matter
def _shift(cost, reach, row, old, new):
    for j in range(len(row)):
        cost[j] += min(row[j], new) - min(row[j], old)
        reach[j] += np.int64(row[j] <= new) - np.int64(row[j] <= old)
