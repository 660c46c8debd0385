"""The medoid solver finds the same facilities as brute force, in every mode, even if distances tie."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference.batches import golden_files
from reference.facility_location import Problem, agreement, assign
from torch import Tensor

from nearkin.clustering import class_medoids, facility_location
from nearkin.clustering._margin import nmi_with_moved_points, nmi_with_new_cluster
from nearkin.clustering.agreement import margin_tables
from nearkin.clustering.facilities import Problem as SolverProblem
from nearkin.clustering.facilities import solve_facilities, solve_medoids
from nearkin.errors import UserError


def distances_of(points: np.ndarray) -> np.ndarray:
    d = np.linalg.norm(points[:, None] - points[None], axis=2)
    return (d + d.T) / 2


def float32_distances(points: Tensor) -> Tensor:
    """As the loss has them: computed in float64, rounded to float32."""
    return torch.from_numpy(distances_of(points.double().cpu().numpy())).float().to(points.device)


@st.composite
def problems(draw: st.DrawFn, most: int = 16) -> tuple[np.ndarray, np.ndarray, float]:
    """Distances, labels and γ; every second case has integer distances with many ties."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    m, dim = draw(st.integers(1, most)), draw(st.integers(2, 3))
    points = rng.normal(size=(m, dim))
    labels = rng.integers(0, draw(st.integers(1, m)), m)
    gamma = draw(st.sampled_from([0.0, 0.3, 1.0, 10.0, 100.0]))
    if draw(st.booleans()):
        whole = np.round(1.5 * points)
        return np.abs(whole[:, None] - whole[None]).sum(axis=2), labels, gamma
    return distances_of(points), labels, gamma


@pytest.mark.parametrize("margin", ["nmi", "ami", "ari"])
@pytest.mark.parametrize("exchange", [None, "objective", "algorithm-2", "all"])
@given(problems())
@settings(max_examples=12, deadline=None)
def test_it_chooses_what_brute_force_chooses(
    exchange: str | None, margin: str, problem: tuple[np.ndarray, np.ndarray, float]
) -> None:
    d, y, gamma = problem
    slow = Problem(d, y, gamma, margin)
    chosen = slow.greedy(len(set(y.tolist())))
    if exchange:
        chosen = slow.exchange(chosen, exchange)
    found = facility_location(
        torch.from_numpy(d), torch.from_numpy(y), len(chosen), gamma, exchange=exchange, margin=margin
    )
    exact = gamma == 0 and (d == d.round()).all()  # then ties are exact, and the lowest index must win them
    if exact or not slow.doubtful:
        assert found.facilities.tolist() == chosen
    assert found.assignment.tolist() == assign(d, found.facilities.tolist()).tolist()
    assert found.objective == pytest.approx(slow.objective(found.facilities.tolist()), abs=1e-8 * max(1, gamma))


@pytest.mark.parametrize("seed", range(3))
def test_it_chooses_what_brute_force_chooses_in_larger_batches_too(seed: int) -> None:
    """In these batches, bounds rule out nearly all candidates."""
    rng = np.random.default_rng(seed)
    d, y = distances_of(rng.normal(size=(48, 3))), rng.integers(0, 6, 48)
    slow = Problem(d, y, gamma=4.0)
    greedy = slow.greedy(6)
    for exchange in ("objective", "algorithm-2"):
        found = facility_location(torch.from_numpy(d), torch.from_numpy(y), 6, 4.0, exchange=exchange)
        assert found.facilities.tolist() == slow.exchange(greedy, exchange)
    assert not slow.doubtful


@given(st.integers(0, 10_000), st.integers(2, 60), st.integers(1, 12), st.integers(1, 12), st.floats(0.01, 1))
@settings(max_examples=200, deadline=None)
def test_nmi_never_falls_below_its_bounds(seed: int, m: int, classes: int, clusters: int, share: float) -> None:
    rng = np.random.default_rng(seed)
    y, before = (np.unique(rng.integers(0, most, m), return_inverse=True)[1] for most in (classes, clusters))
    if rng.random() < 0.5:
        before = y.copy()  # the highest NMI has the farthest to fall
    clusters = before.max() + 1
    moved = rng.random(m) < share
    taken = np.where(moved, clusters, before)
    shuffled = np.where(moved, rng.integers(0, clusters, m), before)
    margin = margin_tables("nmi", np.bincount(y))
    table = np.zeros((clusters, y.max() + 1), np.int64)
    np.add.at(table, (before, y), 1)
    sums = margin.counts[table].sum(), margin.counts[table.sum(axis=1)].sum()
    count = int(moved.sum())
    if count:
        bound = nmi_with_new_cluster(margin, *sums, clusters, count)
        assert agreement("nmi", y, taken) >= bound - 1e-9
    if clusters > 1:
        bound = nmi_with_moved_points(margin, *sums, clusters, int((shuffled != before).sum()))
        assert agreement("nmi", y, shuffled) >= bound - 1e-9


def test_distances_of_cdist_are_accepted() -> None:
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
    for points in (x, x.double()):
        found = facility_location(torch.cdist(points, points), torch.arange(40) % 8, 8)
        assert len(set(found.facilities.tolist())) == 8


@pytest.mark.parametrize("scale", [1e-310, 1e-300, 1e300])
def test_distances_at_the_limits_of_float64_are_accepted(scale: float) -> None:
    d, y = large(20, 4)
    found = facility_location(d.double() * scale, y, 4, gamma=0.0)
    assert len(set(found.facilities.tolist())) == 4


@pytest.mark.parametrize("exchange", ["objective", "all"])
@given(problems(most=40))
@settings(max_examples=40, deadline=None)
def test_exchange_never_lowers_the_objective(exchange: str, problem: tuple[np.ndarray, np.ndarray, float]) -> None:
    """Lemma 1: round after round."""
    d, y, gamma = problem
    objectives = [
        facility_location(
            torch.from_numpy(d), torch.from_numpy(y), len(set(y)), gamma, exchange=exchange, exchange_steps=steps
        ).objective
        for steps in range(5)
    ]
    assert all(later >= earlier - 1e-9 * max(1, gamma) for earlier, later in itertools.pairwise(objectives))


@given(problems(most=14))
@settings(max_examples=30, deadline=None)
def test_exchange_with_all_points_ends_where_no_swap_helps(problem: tuple[np.ndarray, np.ndarray, float]) -> None:
    """Lemma 2: a local optimum."""
    d, y, gamma = problem
    found = facility_location(
        torch.from_numpy(d), torch.from_numpy(y), len(set(y)), gamma, exchange="all", exchange_steps=1000
    )
    chosen, slow = found.facilities.tolist(), Problem(d, y, gamma)
    for k in range(len(chosen)):
        for j in set(range(len(d))) - set(chosen):
            swapped = [*chosen[:k], j, *chosen[k + 1 :]]
            assert slow.objective(swapped) <= found.objective + 1e-8 * max(1, gamma)


@pytest.mark.parametrize("file", golden_files("p*.npz"), ids=lambda file: file.stem)
@pytest.mark.parametrize(
    ("exchange", "key"), [(None, "greedy"), ("algorithm-2", "pam_alg2"), ("objective", "pam_fullA")]
)
def test_objectives_and_facilities_equal_the_golden_ones(file, exchange: str | None, key: str) -> None:
    stored = np.load(file)
    x, y = torch.from_numpy(stored["x"]).double(), torch.from_numpy(stored["labels"])
    prefix = "fl_oracle64_geometric"
    facilities = stored[f"{prefix}/S_{key}"]
    found = facility_location(
        torch.from_numpy(distances_of(x.numpy())), y, len(facilities), float(stored["gamma"]), exchange=exchange
    )
    assert found.objective == pytest.approx(float(stored[f"{prefix}/A_{key}"]), rel=1e-9)
    if stored[f"{prefix}/gap_{key}"] > 1e-4 and stored[f"{prefix}/gap_greedy"] > 1e-4:
        assert found.facilities.tolist() == facilities.tolist()


def large(items: int = 200, classes: int = 40, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(items, 8, generator=torch.Generator().manual_seed(seed))
    return float32_distances(x), torch.arange(items) % classes


def test_stochastic_greedy_is_nearly_as_good_and_follows_its_seed() -> None:
    d, y = large()
    full = facility_location(d, y, 40, exchange=None).objective
    drawn = [facility_location(d, y, 40, exchange=None, stochastic=0.1, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(drawn[0].facilities, drawn[1].facilities)
    assert not torch.equal(drawn[0].facilities, drawn[2].facilities)
    for found in drawn:
        assert len(set(found.facilities.tolist())) == 40
        assert 1.25 * full < found.objective < full  # both are negative


def test_stochastic_greedy_that_draws_only_facilities_considers_all_points() -> None:
    d, y = large(items=12, classes=12)
    found = facility_location(d, y, 12, stochastic=0.99)  # one candidate a step
    assert sorted(found.facilities.tolist()) == list(range(12))


def test_integers_of_any_kind_are_labels() -> None:
    d, y = large()
    assert torch.equal(facility_location(d, 10**12 - 7 * y, 40).facilities, facility_location(d, y, 40).facilities)


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_the_scale_of_distances_matters_only_against_gamma(scale: float) -> None:
    d, y = large(60, 12)
    found = facility_location(d.double(), y, 12)
    scaled = facility_location(d.double() * scale, y, 12, gamma=scale)
    assert scaled.objective == pytest.approx(found.objective * scale)


def test_medoids_have_the_least_sum_of_distances() -> None:
    d, y = large(60, 7)
    medoids = class_medoids(d, y)
    for i in range(60):
        members = (y == y[i]).nonzero()[:, 0]
        sums = d[members][:, members].double().sum(dim=0)
        assert medoids[i] == members[sums.argmin()]


def test_coincident_points_can_all_be_facilities() -> None:
    found = facility_location(torch.zeros(5, 5), torch.tensor([0, 0, 1, 1, 2]), 5)
    assert found.facilities.tolist() == [0, 1, 2, 3, 4]
    assert found.assignment.tolist() == [0, 1, 2, 3, 4]


D, Y = large(6, 2)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"distances": D[:, :5]}, r"shape \(m, m\)"),
        ({"labels": Y[:5]}, r"shape \(m, m\)"),
        ({"distances": torch.zeros(0, 0), "labels": Y[:0]}, "m >= 1"),
        ({"labels": Y.float()}, "must be integers"),
        ({"distances": -D}, "not negative"),
        ({"distances": D * float("nan")}, "finite"),
        ({"distances": D + torch.rand(6, 6)}, "symmetric"),
        ({"distances": D + 1}, "zero diagonal"),
        ({"n_facilities": 0}, "n_facilities must be an integer from 1 to 6"),
        ({"n_facilities": 7}, "n_facilities must be an integer from 1 to 6"),
        ({"n_facilities": 2.5}, "n_facilities must be an integer from 1 to 6"),
        ({"exchange_steps": 1.5}, "exchange_steps must be an integer >= 0"),
        ({"labels": [0, 0, 0, 1, 1, 1]}, "labels must be a tensor, got list"),
        ({"labels": Y.bool()}, "must be integers"),
        ({"gamma": -1.0}, "gamma"),
        ({"gamma": float("nan")}, "gamma"),
        ({"exchange": "objectiv"}, "did you mean 'objective'"),
        ({"margin": "nmj"}, "did you mean 'nmi'"),
        ({"exchange_steps": -1}, "exchange_steps"),
        ({"stochastic": 1.5}, "stochastic must be > 0 and < 1, got 1.5"),
    ],
)
def test_wrong_input_is_refused(arguments: dict[str, object], expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        facility_location(**{"distances": D, "labels": Y, "n_facilities": 2, **arguments})


@pytest.mark.parametrize("exchange", [None, "objective", "algorithm-2", "all"])
@pytest.mark.parametrize("seed", [0, 4, 13])
def test_float32_distances_are_solved_like_float64_ones(exchange: str | None, seed: int) -> None:
    """The loss passes float32, which takes half the memory."""
    d, y = large(seed=seed)
    found = [
        solve_facilities(SolverProblem.of(d.to(dtype, copy=True), y.numpy()), 40, 1.0, exchange, 5, "nmi", None, 0)
        for dtype in (torch.float32, torch.float64)
    ]
    assert found[0][0].tolist() == found[1][0].tolist()
    assert found[0][3] == found[1][3]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
@pytest.mark.parametrize("points", [1, 2, 31, 64, 100, 300])
@pytest.mark.parametrize("classes", [1, 4, None])
@pytest.mark.parametrize("ties", [False, True])
def test_the_gpu_finds_the_same_facilities_in_the_same_order(points: int, classes: int | None, ties: bool) -> None:
    from nearkin.clustering._medoid_kernel import solve

    rng = np.random.default_rng(points)
    x, y = rng.normal(size=(points, 3)), rng.integers(0, classes or points, points) * 7 - 3
    x = np.round(1.5 * x) if ties else x  # many equal distances, and coincident points
    d, y = torch.from_numpy(distances_of(x)).float(), torch.from_numpy(y)
    problem = SolverProblem.of(d.clone(), y.numpy())
    for gamma, rounds in ((0.0, 5), (1.0, 0), (1.0, 5), (30.0, 5)):
        chosen, assignment, agreement, objective = solve_facilities(
            problem, len(problem.class_sizes), gamma, "objective" if rounds else None, rounds, "nmi", None, 0
        )
        found = solve(d.cuda(), y.cuda(), torch.tensor([gamma], dtype=torch.float64).cuda(), rounds)
        _, to_facilities, unit, its_agreement, _ = found.sums.tolist()
        assert found.facilities[: len(chosen)].tolist() == chosen.tolist()
        assert found.assignment.tolist() == assignment.tolist()
        assert found.nearest.tolist() == chosen[assignment].tolist()
        assert found.medoids.tolist() == solve_medoids(problem).tolist()
        assert its_agreement == agreement
        assert gamma * (1 - its_agreement) - to_facilities * unit == objective
