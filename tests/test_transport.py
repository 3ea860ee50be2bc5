"""W1 by independent routes, its certificates, and what `compare` says and refuses."""

from __future__ import annotations

import dataclasses
import doctest
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import wasserstein_distance

from shiftbound import InputError, transport
from shiftbound.transport import certificates, critic, exact, samples

QUICK = settings(max_examples=60, deadline=None, derandomize=True)


@pytest.fixture
def rng():
    return np.random.default_rng(20260101)


def by_highs(cost, a, b):
    """W1 as a dense linear program, written down from the definition."""
    m, n = cost.shape
    rows = np.kron(np.eye(m), np.ones((1, n)))
    columns = np.kron(np.ones((1, m)), np.eye(n))
    solved = linprog(cost.ravel(), A_eq=np.vstack([rows, columns]), b_eq=np.concatenate([a / a.sum(), b / b.sum()]))
    assert solved.status == 0
    return solved.fun


def by_pot(cost, a, b):
    return float(exact.pot().emd2(a / a.sum(), b / b.sum(), np.ascontiguousarray(cost), numItermax=10**7))


@pytest.mark.parametrize("module", [exact, certificates, samples, critic])
def test_doctests(module):
    found = doctest.testmod(module)
    assert found.attempted > 0 and found.failed == 0


# Values -------------------------------------------------------------------------------------------------------------


def test_two_atoms():
    cost = np.array([[0.0, 1.0], [1.0, 0.0]])
    a, b = np.array([0.2, 0.8]), np.array([0.8, 0.2])
    assert transport.w1_exact(cost, a, b) == pytest.approx(0.6, abs=1e-15)
    assert transport.w1_line(np.array([0.0, 1.0]), np.array([0.0, 1.0]), a, b) == pytest.approx(0.6, abs=1e-15)
    assert transport.integer_certificate([[0, 1], [1, 0]], [2, 8], [8, 2]).value == Fraction(3, 5)


@pytest.mark.parametrize(("size", "dimension"), [(1, 1), (2, 3), (17, 1), (40, 2), (64, 64)])
def test_equal_uniform_weights_by_three_routes(rng, size, dimension):
    x, y = rng.normal(size=(size, dimension)), rng.normal(size=(size, dimension)) + 0.5
    cost = transport.euclidean(x, y)
    uniform = np.ones(size)
    value = transport.w1_exact(cost)
    assert value == pytest.approx(by_pot(cost, uniform, uniform), abs=1e-12)
    assert value == pytest.approx(by_highs(cost, uniform, uniform), abs=1e-9)
    if dimension == 1:
        assert value == pytest.approx(transport.w1_line(x[:, 0], y[:, 0]), abs=1e-12)


@pytest.mark.parametrize(("m", "n", "dimension"), [(1, 5, 2), (7, 13, 3), (30, 18, 1), (25, 25, 1)])
def test_unequal_weights_by_three_routes(rng, m, n, dimension):
    x, y = rng.normal(size=(m, dimension)), rng.normal(size=(n, dimension)) + 0.5
    a, b = rng.gamma(1, size=m), rng.gamma(1, size=n)
    a[: m // 3], b[: n // 4] = 0, 0
    cost = transport.cityblock(x, y)
    value = transport.w1_exact(cost, a, b)
    assert value == pytest.approx(by_pot(cost, a, b), abs=1e-12)
    assert value == pytest.approx(by_highs(cost, a, b), abs=1e-9)
    if dimension == 1:
        assert value == pytest.approx(transport.w1_line(x[:, 0], y[:, 0], a, b), abs=1e-12)
        assert value == pytest.approx(wasserstein_distance(x[:, 0], y[:, 0], a, b), abs=1e-12)


def test_the_fifteen_eighths_on_the_line():
    points = np.array([0.0, 1.0, 4.0, 6.0, 9.0])
    a, b = [4, 2, 0, 1, 1], [1, 1, 4, 1, 1]
    assert transport.w1_line(points, points, np.array(a), np.array(b)) == 15 / 8
    distances = [[int(abs(p - q)) for q in points] for p in points]
    assert transport.integer_certificate(distances, a, b).value == Fraction(15, 8)


def test_weights_equal_repeated_points(rng):
    x, y = rng.normal(size=(6, 2)), rng.normal(size=(9, 2))
    a, b = rng.integers(1, 5, size=6), rng.integers(1, 5, size=9)
    b[0] += 40 - b.sum() if b.sum() < 40 else 0
    a[0] += b.sum() - a.sum()
    copies = transport.euclidean(np.repeat(x, a, axis=0), np.repeat(y, b, axis=0))
    assert transport.w1_exact(transport.euclidean(x, y), a, b) == pytest.approx(transport.w1_exact(copies), abs=1e-12)


def test_permuting_atoms_with_their_weights_changes_nothing(rng):
    x, y = rng.normal(size=(12, 3)), rng.normal(size=(9, 3))
    a, b = rng.random(12), rng.random(9)
    p, q = rng.permutation(12), rng.permutation(9)
    cost = transport.euclidean(x, y)
    value = transport.w1_exact(cost, a, b)
    moved = transport.w1_exact(cost[np.ix_(p, q)], a[p], b[q])
    assert moved == pytest.approx(value, abs=1e-12)
    # Permuting the weights alone is another problem: the invariance above is not vacuous.
    assert abs(transport.w1_exact(cost, a[p], b) - value) > 1e-3
    assert transport.w1_line(x[p, 0], y[q, 0], a[p], b[q]) == pytest.approx(
        transport.w1_line(x[:, 0], y[:, 0], a, b), abs=1e-12
    )


def test_only_ratios_of_weights_matter(rng):
    cost, a, b = rng.random((5, 7)), rng.random(5), rng.random(7)
    assert transport.w1_exact(cost, 1000 * a, b / 3) == pytest.approx(transport.w1_exact(cost, a, b), abs=1e-12)


# Properties ---------------------------------------------------------------------------------------------------------

coordinate = st.integers(-50, 50).map(lambda i: i / 4)
weighted = st.lists(st.tuples(coordinate, coordinate, st.integers(1, 9)), min_size=1, max_size=6)


def atoms(sample):
    table = np.array(sample, dtype=float)
    return table[:, :2], table[:, 2]


def distance(one, other):
    (x, a), (y, b) = atoms(one), atoms(other)
    return transport.w1_exact(transport.cityblock(x, y), a, b)


@QUICK
@given(weighted, weighted)
def test_symmetric_and_zero_only_for_equal_laws(one, other):
    assert distance(one, other) == pytest.approx(distance(other, one), abs=1e-9)
    assert distance(one, one) == pytest.approx(0, abs=1e-12)

    def law(sample):
        total = sum(w for *_, w in sample)
        masses: dict = {}
        for x, y, w in sample:
            masses[x, y] = masses.get((x, y), 0) + Fraction(w, total)
        return masses

    if law(one) != law(other):  # the least transport: 1/4 away, one part in 54 * 54
        assert distance(one, other) > 0.25 / 54**2 / 2


@QUICK
@given(weighted, weighted, weighted)
def test_triangle_inequality(one, two, three):
    assert distance(one, three) <= distance(one, two) + distance(two, three) + 1e-9


@QUICK
@given(weighted, weighted, coordinate, st.integers(0, 8).map(lambda i: i / 2))
def test_translation_and_scale(one, other, shift, scale):
    (x, a), (y, b) = atoms(one), atoms(other)
    moved = transport.w1_exact(transport.cityblock(scale * x + shift, scale * y + shift), a, b)
    assert moved == pytest.approx(scale * distance(one, other), abs=1e-8)


@QUICK
@given(st.lists(st.tuples(coordinate, st.integers(1, 9)), min_size=1, max_size=8), weighted)
def test_the_line_is_the_linear_program(one, other):
    x, a = np.array(one, dtype=float).T
    y, b = np.array(other, dtype=float)[:, [0, 2]].T
    cost = transport.euclidean(x[:, None], y[:, None])
    assert transport.w1_line(x, y, a, b) == pytest.approx(transport.w1_exact(cost, a, b), abs=1e-9)


# Certificates -------------------------------------------------------------------------------------------------------


@QUICK
@given(st.integers(1, 7), st.integers(1, 7), st.integers(0, 10**6))
def test_certified_bounds_hold_in_exact_arithmetic(m, n, seed):
    rng = np.random.default_rng(seed)
    cost, a = rng.integers(0, 30, size=(m, n)), rng.integers(0, 9, size=m)
    b = rng.multinomial(a.sum(), rng.dirichlet(np.ones(n)))
    a[0], b[0] = a[0] + 1, b[0] + 1
    exact = transport.integer_certificate(cost.tolist(), a.tolist(), b.tolist()).value
    found = transport.w1_certified(cost, a, b)
    assert Fraction(found.lower) <= exact <= Fraction(found.upper)
    assert found.lower <= found.w1 <= found.upper
    assert found.upper - found.lower < 1e-12 * 30
    loose = transport.certify(cost, rng.random((m, n)), 10 * rng.normal(size=m), a, b)
    assert Fraction(loose.lower) <= exact <= Fraction(loose.upper)
    assert np.abs(loose.plan.sum(axis=1) - a / a.sum()).max() < 1e-12
    assert np.abs(loose.plan.sum(axis=0) - b / b.sum()).max() < 1e-12
    for potentials in (found, loose):  # feasible in rational arithmetic, not only in floating point
        for i in range(m):
            assert all(Fraction(potentials.phi[i]) + Fraction(potentials.psi[j]) <= int(cost[i, j]) for j in range(n))


@pytest.mark.parametrize(("m", "n"), [(60, 60), (60, 45)])
def test_certificate_closes_for_real_costs(rng, m, n):
    x, y = rng.normal(size=(m, 5)), rng.normal(size=(n, 5))
    found = transport.w1_certified(transport.euclidean(x, y))
    assert found.lower <= found.w1 <= found.upper
    assert found.upper - found.lower < 1e-12
    assert found.w1 == pytest.approx(transport.w1_exact(transport.euclidean(x, y)), abs=1e-12)


def test_certificate_of_the_optimum_is_complementary(rng):
    x, y = rng.normal(size=(20, 2)), rng.normal(size=(20, 2))
    cost = transport.euclidean(x, y)
    found = transport.w1_certified(cost)
    slack = cost - found.phi[:, None] - found.psi
    assert slack.min() >= 0
    assert slack[found.plan > 1e-9].max() < 1e-12
    assert slack.max() > 0.1


def test_min_transform_is_the_largest_lipschitz_function_below():
    rng = np.random.default_rng(3)
    points = rng.integers(0, 40, size=(25, 2))
    cost = np.abs(points[:, None] - points).sum(axis=-1)
    phi = rng.integers(-60, 60, size=25)
    f = transport.min_transform(phi, cost)
    assert f.dtype.kind == "i"
    assert (np.abs(f[:, None] - f) <= cost).all()
    assert (f <= phi).all() and (f < phi).any()
    assert (transport.min_transform(f, cost) == f).all()  # a Lipschitz function is left alone ...
    below = transport.min_transform(phi - rng.integers(0, 9, size=25), cost)
    assert (below <= f).all()  # ... and any other Lipschitz function below phi is below f


def test_round_plan_moves_no_more_than_the_marginals_lack(rng):
    a, b = rng.random(8), rng.random(5)
    a, b = a / a.sum(), b / b.sum()
    near = np.outer(a, b) * rng.uniform(0.8, 1.2, size=(8, 5))
    rounded = transport.round_plan(near, a, b)
    lack = np.abs(near.sum(axis=1) - a).sum() + np.abs(near.sum(axis=0) - b).sum()
    assert rounded.min() >= 0
    assert np.allclose(rounded.sum(axis=1), a, atol=1e-15) and np.allclose(rounded.sum(axis=0), b, atol=1e-15)
    assert 0 < np.abs(rounded - near).sum() <= 2 * lack
    assert np.allclose(transport.round_plan(rounded, a, b), rounded, atol=1e-15)


def test_sinkhorn_sandwich_closes(rng):
    x, y = rng.normal(size=(15, 2)), rng.normal(size=(12, 2))
    a, b = rng.random(15), rng.random(12)
    cost = transport.euclidean(x, y)
    value = transport.w1_exact(cost, a, b)
    gaps = []
    for epsilon in (1.0, 0.1, 0.02):
        found = transport.certify(cost, *transport.sinkhorn(cost, a, b, epsilon, 2000), a, b)
        assert found.lower <= value <= found.upper
        gaps.append(found.upper - found.lower)
    assert gaps[0] > 2 * gaps[1] > 4 * gaps[2]
    assert gaps[2] < 0.02 * value
    plan, _ = transport.sinkhorn(cost, a, b, 0.1, 2000)
    reference = exact.pot().sinkhorn(
        a / a.sum(), b / b.sum(), cost, 0.1, method="sinkhorn_log", numItermax=5000, stopThr=1e-12
    )
    assert np.abs(plan - reference).max() < 1e-8


def test_integer_certificate_detects_every_tampering():
    found = transport.integer_certificate([[0, 3, 5], [2, 0, 4]], [3, 4], [1, 4, 2])
    assert found.verify()
    cost, a, b = np.array([[0.0, 3, 5], [2, 0, 4]]), np.array([3.0, 4]), np.array([1.0, 4, 2])
    assert found.value == Fraction(10, 7) and by_highs(cost, a, b) == pytest.approx(10 / 7, abs=1e-9)
    plan = [row[:] for row in found.plan]
    plan[0][0], plan[0][1] = plan[0][0] + 1, plan[0][1] - 1
    for change in (
        {"plan": plan},
        {"phi": [found.phi[0] + 1, found.phi[1]]},
        {"phi": [found.phi[0] - 1, found.phi[1]]},
        {"psi": [found.psi[0], found.psi[1] + 1, found.psi[2]]},
        {"a": [4, 3]},
        {"b": [1, 3, 3]},
        {"cost": [[0, 3, 4], [2, 0, 4]]},
    ):
        assert not dataclasses.replace(found, **change).verify(), change
    swapped = [[0, 1, 2], [1, 3, 0]]  # right marginals, worse value
    assert not dataclasses.replace(found, plan=swapped).verify()
    negative = [[3, -2, 2], [-2, 6, 0]]
    assert not dataclasses.replace(found, plan=negative).verify()


def test_integer_certificate_refuses():
    for cost, a, b in (
        ([[0, 1]], [1, 1], [2]),
        ([[0, 1], [1]], [1, 1], [1, 1]),
        ([[0, 1], [1, 0]], [1, 1], [1, 2]),
        ([[0, 1], [1, 0]], [2, -1], [1, 0]),
        ([[0, 1], [1, 0]], [0, 0], [0, 0]),
    ):
        with pytest.raises(InputError, match="is not allowed; it must be"):
            transport.integer_certificate(cost, a, b)


# Refusals of the solvers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0])
def test_costs_must_be_finite_and_not_negative(bad):
    cost = np.array([[0.0, bad], [1.0, 0.0]])
    for solve in (transport.w1_exact, transport.w1_certified):
        with pytest.raises(InputError, match="cost holds a negative number, NaN or infinity"):
            solve(cost)


def test_empty_costs_and_bad_weights_are_refused():
    with pytest.raises(InputError, match="shape"):
        transport.w1_exact(np.zeros((0, 3)))
    for weights, message in (
        ([0.5, -0.5], "a weight must be finite"),
        ([math.nan, 1.0], "a weight must be finite"),
        ([0.0, 0.0], "positive total"),
    ):
        with pytest.raises(InputError, match=message):
            transport.w1_exact(np.ones((2, 2)), np.array(weights))
        with pytest.raises(InputError, match=message):
            transport.w1_line(np.arange(2), np.arange(2), np.array(weights))
    with pytest.raises(InputError, match="NaN or infinity"):
        transport.w1_line(np.array([0.0, math.nan]), np.arange(2))


def test_approximate_solutions_are_refused_when_they_are_none():
    cost, half = np.ones((2, 2)), np.array([0.5, 0.5])
    with pytest.raises(InputError, match="plan"):
        transport.certify(cost, -np.ones((2, 2)), half)
    with pytest.raises(InputError, match="phi"):
        transport.certify(cost, np.ones((2, 2)), np.array([0, math.nan]))
    for epsilon, steps, a in ((0.0, 5, half), (0.1, 0, half), (0.1, 5, np.array([1.0, 0.0]))):
        with pytest.raises(InputError, match="is not allowed"):
            transport.sinkhorn(cost, a, half, epsilon, steps)


# Samples ------------------------------------------------------------------------------------------------------------


def test_noise_floor_is_of_the_size_of_a_fresh_pair(rng):
    """Split halves of 256 points show, within 25 %, the W1 of two fresh samples of 128 points."""
    sample = rng.normal(size=(256, 3))
    floor = transport.noise_floor(sample, transport.euclidean, np.random.default_rng(1))
    fresh = [
        transport.w1_exact(transport.euclidean(rng.normal(size=(128, 3)), rng.normal(size=(128, 3)))) for _ in range(10)
    ]
    assert floor == pytest.approx(np.mean(fresh), rel=0.25)
    assert transport.noise_floor(sample, transport.euclidean, np.random.default_rng(1)) == floor
    with pytest.raises(InputError, match="at least 2 points"):
        transport.noise_floor(sample[:1], transport.euclidean, rng)


def test_noise_floor_on_the_line_takes_the_closed_form(rng):
    sample = rng.normal(size=(41, 1))
    line = transport.noise_floor(sample, transport.euclidean, np.random.default_rng(1))
    plane = transport.noise_floor(sample * [[1.0, 0.0]], transport.euclidean, np.random.default_rng(1))
    assert line == pytest.approx(plane, abs=1e-12)


def test_interval_is_its_formula(rng):
    x, y = rng.normal(size=(40, 2)), rng.normal(size=(40, 2)) + 1
    low, high = transport.interval(x, y, transport.euclidean, np.random.default_rng(5), draws=50)
    cost = transport.euclidean(x, y)
    assert (low, high) == transport.interval_from_cost(cost, np.random.default_rng(5), draws=50)
    again = np.random.default_rng(5)
    draws = []
    for _ in range(50):
        i, j = again.choice(40, 10, replace=False), again.choice(40, 10, replace=False)
        draws.append(by_pot(transport.euclidean(x[i], y[j]), np.ones(10), np.ones(10)))
    spread = by_pot(cost, np.ones(40), np.ones(40)) + math.sqrt(10 / 40) * (np.array(draws) - np.median(draws))
    assert low == pytest.approx(np.quantile(spread, 0.025), abs=1e-12)
    assert high == pytest.approx(np.quantile(spread, 0.975), abs=1e-12)
    for m in (0, 41):
        with pytest.raises(InputError, match="from 1 to the smaller sample's size 40"):
            transport.interval(x, y, transport.euclidean, rng, m=m)


def test_interval_narrows_like_the_root_of_the_size(rng):
    """On the line with a clear shift W1 is a difference of means, so four times the points halve the interval."""
    widths = []
    for size in (200, 3200):
        x, y = rng.normal(size=(size, 1)), rng.normal(size=(size, 1)) + 9
        low, high = transport.interval(x, y, transport.euclidean, np.random.default_rng(0))
        assert low < transport.w1_line(x[:, 0], y[:, 0]) < high
        widths.append(high - low)
    # W1 = 9 + mean difference, of standard deviation √(2/n); without replacement its draws have √(3/4) of it.
    assert widths[0] == pytest.approx(2 * 1.96 * math.sqrt(2 / 200 * 3 / 4), rel=0.3)
    assert widths[0] / widths[1] == pytest.approx(4, rel=0.3)


def test_compare_says_everything(rng):
    x, y = rng.normal(size=(30, 3)), rng.normal(size=(24, 3)) + 2
    found = transport.compare(x, y, seed=4)
    assert list(found) == ["w1", "lower", "upper", "floor", "interval", "n", "dimension", "metric", "method"]
    cost = transport.euclidean(x, y)
    assert found["w1"] == pytest.approx(by_highs(cost, np.ones(30), np.ones(24)), abs=1e-9)
    assert found["lower"] <= found["w1"] <= found["upper"] < found["lower"] + 1e-11
    assert found["n"] == [30, 24] and found["dimension"] == 3 and found["metric"] == "euclidean"
    assert len(found["floor"]) == 2 and max(found["floor"]) < found["w1"]
    assert found["interval"][0] <= found["w1"] <= found["interval"][1]
    assert "network simplex" in found["method"]
    assert transport.compare(x, y, seed=4) == found
    assert transport.compare(x, y, seed=5)["floor"] != found["floor"]
    assert "assignment" in transport.compare(x[:24], y)["method"]
    assert transport.compare(x, y, transport.cityblock)["metric"] == "cityblock"


def test_compare_on_the_line_equals_the_matrix_route(rng):
    x, y = rng.normal(size=50), rng.normal(size=35) + 0.3
    a, b = rng.random(50), rng.random(35)
    for weights in ({}, {"a": a, "b": b}, {"a": a}):
        line = transport.compare(x, y, **weights)
        plane = transport.compare(np.c_[x, 0 * x], np.c_[y, 0 * y], **weights)
        assert "closed form" in line["method"] and line["dimension"] == 1
        assert line["lower"] <= line["w1"] <= line["upper"] < line["lower"] + 1e-11
        assert line["w1"] == pytest.approx(plane["w1"], abs=1e-12)


def test_line_bounds_hold_in_exact_arithmetic():
    rng = np.random.default_rng(8)
    for _ in range(40):
        x, y = rng.integers(0, 9, size=6), rng.integers(0, 9, size=8)
        a, b = rng.integers(1, 9, size=6), rng.integers(1, 9, size=8)
        a[0] += max(0, b.sum() - a.sum())
        b[0] += max(0, a.sum() - b.sum())
        cost = np.abs(x[:, None] - y).tolist()
        exact = transport.integer_certificate(cost, a.tolist(), b.tolist()).value
        found = transport.compare(x, y, a=a, b=b)
        assert Fraction(found["lower"]) <= exact <= Fraction(found["upper"])


def test_compare_is_silent_about_spread_where_it_cannot_know():
    few = transport.compare([[0.0, 0], [1, 1], [2, 2]], [[0.0, 1]] * 4)
    assert few["floor"] is None and few["interval"] is None and "below 4 points" in few["method"]
    enough = transport.compare([[0.0, 0], [1, 1], [2, 2], [3, 1]], [[0.0, 1]] * 4)
    assert enough["floor"][1] == 0 and len(enough["interval"]) == 2
    weighted = transport.compare([0, 1] * 10, [0, 1] * 10, a=[2, 8] * 10, b=[8, 2] * 10)
    assert weighted["w1"] == pytest.approx(0.6) and weighted["floor"] is None and weighted["interval"] is None
    assert "weights divided by their sums" in weighted["method"]


@pytest.mark.parametrize(
    ("x", "y", "weights", "message"),
    [
        ([0.0, math.nan], [1.0], {}, r"x holds NaN or infinity in row 2; every entry must be a finite number"),
        ([0.0], [1.0, 2.0, math.inf], {}, r"y holds NaN or infinity in row 3"),
        ([], [1.0], {}, r"x has the shape \(0, 1\); it must be a table with at least one row"),
        ([[]], [1.0], {}, r"x has the shape \(1, 0\)"),
        ([[[1.0]]], [1.0], {}, r"x has the shape \(1, 1, 1\)"),
        ([[1.0, 2.0]], [[1.0]], {}, "x has points of dimension 2 and y of dimension 1; both must have the same"),
        ([[1.0], [1.0, 2.0]], [1.0], {}, "x is not a table of numbers"),
        ([1.0], ["one"], {}, "y is not a table of numbers"),
        ([1.0, 2.0], [1.0], {"a": [1.0]}, r"weights of x has the shape \(1,\); it must be one weight a point, 2"),
        ([1.0, 2.0], [1.0], {"a": [2.0, -1.0]}, r"weights of x holds -1.0; a weight must be finite and >= 0"),
        ([1.0], [1.0, 2.0], {"b": [math.inf, 1.0]}, r"weights of y holds inf; a weight must be finite and >= 0"),
        ([1.0], [1.0, 2.0], {"b": [0.0, 0.0]}, "weights of y sum to 0.0; they must have a positive total"),
    ],
)
def test_compare_refuses_in_one_sentence(x, y, weights, message):
    with pytest.raises(InputError, match=message) as refusal:
        transport.compare(x, y, **weights)
    assert "\n" not in str(refusal.value) and str(refusal.value).count(". ") == 0


def test_compare_uses_the_names_it_is_given():
    with pytest.raises(InputError, match=r"a.csv holds NaN or infinity in row 1"):
        transport.compare([math.nan], [1.0], names=("a.csv", "b.csv"))


def test_compare_refuses_more_pairs_than_fit():
    many = np.zeros((20_000, 2))
    with pytest.raises(InputError, match="20000 x 20000 pairs"):
        transport.compare(many, many)


# The trained critic -------------------------------------------------------------------------------------------------


def test_critic_gradient_is_the_derivative_of_its_objective(rng):
    points = rng.normal(size=(6, 2))
    cost, phi, signed = transport.cityblock(points, points), 4 * rng.normal(size=6), rng.normal(size=6)
    apart = ~np.eye(6, dtype=bool)

    def objective(phi):
        slopes = abs(phi[:, None] - phi)[apart] / cost[apart]
        return -phi @ signed + 3.0 * np.mean(np.maximum(slopes - 1, 0) ** 2)

    numeric = [(objective(phi + h) - objective(phi - h)) / 2e-6 for h in 1e-6 * np.eye(6)]
    assert critic.gradient(phi, signed, cost, 3.0) == pytest.approx(np.array(numeric), rel=1e-5)


def test_critic_overshoots_and_its_certificate_does_not(rng):
    points = rng.normal(size=(30, 2))
    cost, mu, nu = transport.euclidean(points, points), rng.dirichlet(np.ones(30)), rng.dirichlet(np.ones(30))
    value = transport.w1_exact(cost, mu, nu)
    at, phi = critic.train_critic(points, mu - nu, cost, width=24, steps=205, every=50, penalty=2.0)
    assert at == [0, 50, 100, 150, 200, 205] and phi.shape == (6, 30)
    certified = [transport.min_transform(each, cost) @ (mu - nu) for each in phi]
    assert max(certified) <= value < phi[-1] @ (mu - nu)
    assert certified[-1] > max(0.5 * value, certified[0])
    again = critic.train_critic(points, mu - nu, cost, width=24, steps=205, every=50, penalty=2.0)
    assert (again[1] == phi).all()
    for bad in ({"width": 0}, {"steps": 0}, {"every": 0}):
        with pytest.raises(InputError, match="at least 1"):
            critic.train_critic(points, mu - nu, cost, **bad)
