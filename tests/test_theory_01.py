"""Chapter 1, statement by statement, at other values than the chapter's and by other routes."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog

from shiftbound import transport, words


def random_metric(rng, size):
    """A whole-number metric: shortest paths in a complete graph with random lengths."""
    metric = rng.integers(1, 40, size=(size, size))
    metric = np.minimum(metric, metric.T)
    np.fill_diagonal(metric, 0)
    for via in range(size):
        metric = np.minimum(metric, metric[:, [via]] + metric[[via], :])
    return metric


def exact(metric, mu, nu):
    found = transport.integer_certificate(np.asarray(metric).tolist(), mu.tolist(), nu.tolist())
    assert found.verify()
    return found


@pytest.fixture
def rng():
    return np.random.default_rng(11)


def test_prop_metric(rng):
    for size in (2, 5, 8):
        metric = random_metric(rng, size)
        mu, nu, rho = rng.multinomial(35, np.full(size, 1 / size), size=3)
        one, two, three = (exact(metric, *laws).value for laws in ((mu, nu), (nu, rho), (mu, rho)))
        assert three <= one + two and one <= three + two and two <= one + three
        assert one == exact(metric, nu, mu).value and (one == 0) == (mu == nu).all()
        # The gluing in the proof is a plan of the cost that the proof says.
        first, second = (np.array(exact(metric, *laws).plan) for laws in ((mu, nu), (nu, rho)))
        glued = np.einsum("xy,yz->xz", first / np.maximum(nu, 1), second)
        assert np.allclose(glued.sum(axis=1), mu) and np.allclose(glued.sum(axis=0), rho)
        assert (glued * metric).sum() / 35 <= float(one + two) + 1e-12


def test_thm_duality_by_the_dual_program(rng):
    """The right side of eq-duality is solved as a program over functions, without any plan."""
    for size in (3, 6, 9):
        metric = random_metric(rng, size)
        mu, nu = rng.multinomial(50, np.full(size, 1 / size), size=2)
        steep = [np.eye(size)[i] - np.eye(size)[j] for i, j in itertools.permutations(range(size), 2)]
        limits = [metric[i, j] for i, j in itertools.permutations(range(size), 2)]
        best = linprog(-(mu - nu), A_ub=np.array(steep), b_ub=limits, bounds=[(0, 0)] + [(None, None)] * (size - 1))
        assert -best.fun / 50 == pytest.approx(float(exact(metric, mu, nu).value), abs=1e-9)


def test_thm_duality_by_the_chains_of_its_proof(rng):
    """f from eq-chain by Bellman and Ford over the pairs of an optimal plan: integer-valued, Lipschitz, tight."""
    for size in (4, 7):
        metric = random_metric(rng, size)
        mu, nu = rng.multinomial(50, np.full(size, 1 / size), size=2)
        found = exact(metric, mu, nu)
        pairs = [(i, j) for i, j in itertools.product(range(size), repeat=2) if found.plan[i][j] > 0]
        x0, y0 = pairs[0]
        f = metric[:, y0] - metric[x0, y0]
        for _ in pairs:
            for x, y in pairs:
                f = np.minimum(f, f[x] - metric[x, y] + metric[:, y])
        assert f.dtype.kind == "i" and (abs(f[:, None] - f) <= metric).all()
        assert all(f[x] - f[y] == metric[x, y] for x, y in pairs)
        assert Fraction(int(f @ (mu - nu)), 50) == found.value


def test_thm_duality_needs_the_triangle_inequality():
    cost = (np.arange(3)[:, None] - np.arange(3)) ** 2
    mu, nu = np.array([1, 0, 0]), np.array([0, 0, 1])
    best = max(
        f[0] - f[2]
        for f in itertools.product(range(-4, 5), repeat=3)
        if all(abs(f[i] - f[j]) <= cost[i, j] for i in range(3) for j in range(3))
    )
    assert best == 2 < exact(cost, mu, nu).value == 4


def test_prop_c_transform(rng):
    metric = random_metric(rng, 7)
    for _ in range(20):
        phi, psi = rng.integers(-40, 40, size=(2, 7))
        psi = np.minimum(psi, (metric - phi[:, None]).min(axis=0))
        f = (metric - psi).min(axis=1)
        assert (abs(f[:, None] - f) <= metric).all() and (phi <= f).all() and (psi <= -f).all()


def test_lem_sandwich_and_thm_integer(rng):
    for m, n in ((3, 5), (6, 4)):
        cost = rng.integers(0, 20, size=(m, n))
        mu = rng.multinomial(30, np.full(m, 1 / m))
        nu = rng.multinomial(30, np.full(n, 1 / n))
        found = exact(cost, mu, nu)
        assert all(isinstance(p, int) for row in found.plan for p in row)
        assert 30 % found.value.denominator == 0
        phi = rng.integers(-20, 20, size=m)
        psi = (cost - phi[:, None]).min(axis=0)
        product = Fraction(int((np.outer(mu, nu) * cost).sum()), 900)
        assert Fraction(int(phi @ mu + psi @ nu), 30) <= found.value <= product


def test_thm_integer_by_trying_all_plans():
    """Four grains each way: all whole-number plans, by brute force."""
    cost = [[0, 5, 3], [4, 0, 7], [2, 6, 1]]
    mu, nu = [2, 1, 1], [1, 1, 2]
    grains = [[i for i, mass in enumerate(masses) for _ in range(mass)] for masses in (mu, nu)]
    least = min(
        sum(cost[i][j] for i, j in zip(grains[0], order, strict=True)) for order in itertools.permutations(grains[1])
    )
    assert transport.integer_certificate(cost, mu, nu).value == Fraction(least, 4)


def test_thm_line(rng):
    for size in (2, 6, 10):
        places = np.sort(rng.permutation(60)[:size])
        mu, nu = rng.multinomial(24, np.full(size, 1 / size), size=2)
        quantiles = np.repeat(places, mu), np.repeat(places, nu)
        area = Fraction(int(abs(quantiles[0] - quantiles[1]).sum()), 24)
        assert exact(abs(places[:, None] - places), mu, nu).value == area
        slope = -np.sign(np.cumsum(mu - nu)[:-1])
        f = np.append(0, np.cumsum(slope * np.diff(places)))
        assert Fraction(int(f @ (mu - nu)), 24) == area
        assert transport.w1_line(places, places, mu, nu) == pytest.approx(float(area), abs=1e-13)


def test_prop_dirac():
    language = words.all_words(1, 6)
    heights = words.heights(language, k=1)
    area = words.l1_heights(language, language, k=1)
    for i, j in itertools.combinations(range(len(language)), 2):
        assert transport.w1_exact(area[[i]][:, [j]]) == area[i, j]
        line = transport.w1_line(heights[i], heights[j])
        assert line <= area[i, j] / 7 + 1e-12
        assert (line < 1e-12) == (Counter(heights[i].tolist()) == Counter(heights[j].tolist()))


def test_ex_pair():
    deep, flat = words.parse("((()))", k=1), words.parse("()()()", k=1)
    found = [
        words.hamming(deep, flat),
        words.levenshtein(deep, flat),
        words.sup_heights(deep, flat, k=1),
        words.l1_heights(deep, flat, k=1),
    ]
    assert found == [2, 2, 2, 6]
    occupation = transport.w1_line(words.heights(deep, k=1), words.heights(flat, k=1))
    assert occupation == pytest.approx(6 / 7, abs=1e-13)


def test_ex_01_edit():
    for n in (2, 4, 6, 8, 10):
        language = words.all_words(1, n)
        sup, edit = words.sup_heights(language, language, k=1), words.levenshtein(language, language)
        assert (sup <= edit).all()
        assert n < 6 or (sup < edit).any()


def test_thm_swap():
    """Against the package's breadth-first search, which knows no heights: all pairs of words of up to 4 brackets."""
    for n in (2, 4, 6, 8):
        language = words.all_words(1, n)
        for x, y in itertools.combinations(language, 2):
            assert 2 * words.swap_distance_bfs(x, y) == words.l1_heights(x, y, k=1)


def masses(weights_a, weights_b):
    total = np.lcm(weights_a.sum(), weights_b.sum())
    return weights_a * (total // weights_a.sum()), weights_b * (total // weights_b.sum())


def four_values(language, mu, nu):
    metrics = (
        words.l1_heights(language, language, k=1),
        words.hamming(language, language),
        words.levenshtein(language, language),
        words.sup_heights(language, language, k=1),
    )
    return [exact(metric, mu, nu).value for metric in metrics]


def test_the_fractions_of_the_two_examples():
    language = words.all_words(1, 8)
    depth = words.heights(language, k=1).max(axis=1)
    values = four_values(language, *masses(2 ** (4 - depth), 2 ** (depth - 1)))
    assert values == [Fraction(6000, 2021)] + [Fraction(1728, 2021)] * 3
    language = words.all_words(1, 10)
    peaks = ((language[:, :-1] == 0) & (language[:, 1:] == 1)).sum(axis=1)
    values = four_values(language, *masses(np.ones(len(peaks), dtype=int), np.where(peaks % 2, 4, 1)))
    assert values == [Fraction(271, 378)] + [Fraction(110, 189)] * 3


@pytest.mark.parametrize(("pairs", "tilt"), [(3, 2), (3, 5), (4, 3)])
def test_prop_area(pairs, tilt):
    language = words.all_words(1, 2 * pairs)
    heights = words.heights(language, k=1)
    depth = heights.max(axis=1)
    mu, nu = masses(tilt ** (pairs - depth), tilt ** (depth - 1))
    metric = words.l1_heights(language, language, k=1)
    critic = Fraction(int(heights.sum(axis=1) @ (nu - mu)), int(mu.sum()))
    value = exact(metric, mu, nu).value
    # A coupling with h <= h' exists if and only if no mass is lost when other pairs cost 1 and these cost 0.
    above = (heights[:, None, :] <= heights).all(axis=2)
    stranded = exact(1 - above.astype(int), mu, nu).value
    assert (stranded == 0) == (critic == value)
    assert critic <= value
    reverse = Fraction(int(heights.sum(axis=1) @ (mu - nu)), int(mu.sum()))
    assert reverse < value and exact(1 - above.astype(int), nu, mu).value > 0


def test_prop_critic(rng):
    metric = random_metric(rng, 9)
    mu, nu = rng.multinomial(40, np.full(9, 1 / 9), size=2)
    value = exact(metric, mu, nu).value
    for size in (1, 10, 1000):
        phi = rng.integers(-size, size + 1, size=9)
        f = transport.min_transform(phi, metric)
        assert (abs(f[:, None] - f) <= metric).all() and (f <= phi).all()
        assert Fraction(int(f @ (mu - nu)), 40) <= value
    g = transport.min_transform(rng.integers(-20, 20, size=9), metric)
    assert (transport.min_transform(g, metric) == g).all()
    assert (transport.min_transform(g + rng.integers(0, 9, size=9), metric) >= g).all()  # the largest one below
    steep = np.array(exact(metric, mu, nu).phi) * 3
    assert Fraction(int(steep @ (mu - nu)), 40) > value  # without the transform a critic bounds nothing


def test_lem_round(rng):
    for _ in range(50):
        m, n = rng.integers(1, 7, size=2)
        mu, nu = rng.dirichlet(np.ones(m)), rng.dirichlet(np.ones(n))
        Q = rng.exponential(size=(m, n)) / (m * n) * rng.choice([0.3, 1.0, 3.0])
        plan = transport.round_plan(Q, mu, nu)
        assert plan.min() >= 0
        assert np.allclose(plan.sum(axis=1), mu, atol=1e-14) and np.allclose(plan.sum(axis=0), nu, atol=1e-14)
        rows, columns = abs(Q.sum(axis=1) - mu).sum(), abs(Q.sum(axis=0) - nu).sum()
        assert abs(plan - Q).sum() <= rows + 2 * columns + 1e-13


def test_prop_quotient(rng):
    language = words.all_words(1, 6)
    metric, copies = words.l1_heights(language, language, k=1), 4
    quotient = np.tile(metric, (copies, copies))
    place = np.repeat(np.arange(copies), len(language))
    mu, nu = rng.multinomial(60, np.full(len(place), 1 / len(place)), size=2)
    marginals = [law.reshape(copies, -1).sum(axis=0) for law in (mu, nu)]
    assert exact(quotient, mu, nu).value == exact(metric, *marginals).value
    shifted = np.roll(mu.reshape(copies, -1), 1, axis=0).ravel()
    assert exact(quotient, mu, shifted).value == 0
    ordinary = quotient + abs(place[:, None] - place)
    assert exact(ordinary, mu, shifted).value > 0


def test_share_of_opens_has_hamming_constant_one_over_n():
    for n in (1, 3, 6):
        strings = np.array(list(itertools.product((0, 1), repeat=n)))
        hamming = words.hamming(strings, strings)
        jump = abs(strings.sum(axis=1)[:, None] - strings.sum(axis=1))
        assert max(
            Fraction(int(j), int(n * d)) for j, d in zip(jump[hamming > 0], hamming[hamming > 0], strict=True)
        ) == Fraction(1, n)


def test_answers_of_the_exercises():
    metric = words.l1_heights(*(np.array([words.parse(w, k=1) for w in ("()()()", "(())()", "((()))")]),) * 2, k=1)
    assert exact(metric, np.array([2, 0, 0]), np.array([0, 1, 1])).value == 4
    assert exact(1 - np.eye(4, dtype=int), np.array([4, 2, 2, 0]), np.array([1, 1, 2, 4])).value == Fraction(1, 2)
    places = np.array([0, 2, 5])
    assert exact(abs(places[:, None] - places), np.array([3, 2, 1]), np.array([1, 2, 3])).value == Fraction(5, 3)
    paths = Counter(tuple(sorted(h)) for h in words.heights(words.all_words(1, 8), k=1).tolist())
    assert sum(many * (many - 1) // 2 for many in paths.values()) == 8


def test_ex_01_translate(rng):
    x, a, t = rng.normal(size=(9, 3)), rng.random(9), np.array([0.4, -0.1, 0.2])
    for metric, norm in ((transport.euclidean, np.linalg.norm(t)), (transport.cityblock, abs(t).sum())):
        assert transport.w1_exact(metric(x, x + t), a, a) == pytest.approx(norm, abs=1e-12)
