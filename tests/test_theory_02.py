"""Chapter 2, statement by statement, by other routes than the chapter's own checks."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.optimize import linprog
from test_mutations import code_cells

from shiftbound import InputError
from shiftbound.statistics import spearman
from shiftbound.transport import euclidean, integer_certificate, min_transform, w1_certified, w1_exact, w1_line
from shiftbound.words import is_dyck


def laws(rng, m=6, n=7, dim=3):
    x, y = rng.normal(size=(m, dim)), rng.normal(0.4, 1.2, size=(n, dim))
    return x, y, rng.dirichlet(np.ones(m)), rng.dirichlet(np.ones(n))


def steepest_loss(cost, a, b, ceiling=math.inf):
    """max R_Q - R_P over losses that are 1-Lipschitz for ``cost`` (all atoms x all atoms) and in [0, ceiling]."""
    size, pairs = len(cost), list(itertools.permutations(range(len(cost)), 2))
    rows = np.zeros((len(pairs), size))
    for row, (i, j) in zip(rows, pairs, strict=True):
        row[i], row[j] = 1, -1
    bounds = (0, None if math.isinf(ceiling) else ceiling)
    solved = linprog(np.concatenate([a, -b]), A_ub=rows, b_ub=[cost[i, j] for i, j in pairs], bounds=bounds)
    return -solved.fun


@pytest.mark.parametrize("seed", range(5))
def test_thm_ood_joint_and_tight(seed: int) -> None:
    """The largest change of risk over all Lipschitz losses, as a linear program over losses, is Lambda W1."""
    x, y, a, b = laws(np.random.default_rng(seed))
    atoms = np.concatenate([x, y])
    w1 = w1_exact(euclidean(x, y), a, b)
    for slope in (0.5, 3.0):
        assert steepest_loss(slope * euclidean(atoms, atoms), a, b) == pytest.approx(slope * w1, rel=1e-7)


def test_thm_ood_tight_loss_is_lipschitz_off_the_atoms() -> None:
    """The potential extended to new points stays 1-Lipschitz and nonnegative, and attains W1."""
    rng = np.random.default_rng(0)
    x, y, a, b = laws(rng)
    found = w1_certified(euclidean(x, y), a, b)
    everywhere = np.concatenate([x, y, rng.normal(size=(40, 3))])
    potential = min_transform(-found.psi, euclidean(everywhere, y))
    loss = potential[:13].max() - potential
    assert loss[6:13] @ b - loss[:6] @ a == pytest.approx(found.w1, abs=1e-9)
    slopes = np.abs(loss[:, None] - loss) - euclidean(everywhere, everywhere)
    assert slopes.max() <= 1e-9


@pytest.mark.parametrize(("constant", "multiple", "gap"), [(0, 1, 1), (0, 100, 2), (3, 1, 1), (2, 7, 5)])
def test_prop_network_constant(constant: int, multiple: int, gap: int) -> None:
    task = constant + multiple * constant + 1
    rise = abs(constant * gap - task * gap)
    assert rise > multiple * constant * w1_line(np.array([0.0]), np.array([float(gap)]))
    if constant == 0 and gap == 1:
        assert (rise, multiple * constant) == (1, 0)  # the bound would say 1 <= 0


@pytest.mark.parametrize("seed", range(20))
def test_cor_ood_marginal(seed: int) -> None:
    """Random piecewise linear predictors and labellings on the line, W1 in closed form."""
    rng = np.random.default_rng(seed)
    x, a, b = np.sort(rng.uniform(-2, 2, 8)), rng.dirichlet(np.ones(8)), rng.dirichlet(np.ones(8))
    f, f_p, f_q = rng.normal(size=(3, 8))
    constant = [np.max(np.abs(np.diff(g) / np.diff(x))) for g in (f, f_p)]
    w1 = w1_line(x, x, a, b)
    bound = np.abs(f - f_p) @ a + sum(constant) * w1 + np.abs(f_p - f_q) @ b
    assert np.abs(f - f_q) @ b <= bound + 1e-12


def test_cor_ood_marginal_is_attained() -> None:
    """f(x) = 1 + x, f_P = 1, f_Q = 0 on a stochastically larger law: every term counts."""
    x, a, b = np.arange(3.0), np.array([3, 2, 1]) / 6, np.array([1, 2, 3]) / 6
    left = np.abs(1 + x) @ b
    right = np.abs(x) @ a + (1 + 0) * w1_line(x, x, a, b) + 1
    assert left == pytest.approx(right, abs=1e-12)


@pytest.mark.parametrize("k", [1, 2])
def test_prop_sum_loose_for_more_bracket_types(k: int) -> None:
    words = list(itertools.product(range(2 * k), repeat=4))
    member = {word: is_dyck(word, k) for word in words}
    jumps = {
        Fraction(abs(member[u] - member[v]), sum(s != t for s, t in zip(u, v, strict=True)))
        for u, v in itertools.combinations(words, 2)
    }
    assert max(jumps) == 1


@pytest.mark.parametrize("seed", range(5))
def test_thm_ood_truncated(seed: int) -> None:
    """The best bounded Lipschitz loss, found as a linear program over losses, attains the truncated transport cost."""
    x, y, a, b = laws(np.random.default_rng(seed))
    atoms = np.concatenate([x, y])
    slope, ceiling = 0.8, 1.0
    truncated = w1_exact(np.minimum(slope * euclidean(x, y), ceiling), a, b)
    assert steepest_loss(slope * euclidean(atoms, atoms), a, b, ceiling) == pytest.approx(truncated, rel=1e-7)
    assert truncated <= min(slope * w1_exact(euclidean(x, y), a, b), ceiling) + 1e-9


def test_thm_ood_truncated_beats_both_simple_bounds() -> None:
    """The chapter's last exercise, at eta = 1/10 and T = 5: 1.1 eta against 5.1 eta and 2 eta."""
    cost = [[0, 50, 1]]  # to 0, to T, to 1/10, in tenths
    w1, tv, best = (
        integer_certificate(c, [10], [8, 1, 1]).value for c in (cost, [[0, 10, 10]], [[min(v, 10) for v in cost[0]]])
    )
    assert (best, tv, w1) == (Fraction(11, 10), 2, Fraction(51, 10))


@pytest.mark.parametrize("seed", range(5))
def test_thm_ood_local(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, y, a, b = laws(rng)
    cost, found = euclidean(x, y), w1_certified(euclidean(x, y), a, b)
    before, after = np.sin(x).sum(1), np.sin(y).sum(1)  # sqrt(3)-Lipschitz
    rate = np.abs(after - before[:, None]) / cost
    chain = [
        abs(after @ b - before @ a),
        (found.plan * rate * cost).sum(),
        rate[found.plan > 1e-12].max() * found.w1,
        rate.max() * found.w1,
        math.sqrt(3) * found.w1,
    ]
    assert all(small <= large + 1e-9 for small, large in itertools.pairwise(chain))


@pytest.mark.parametrize("depth", [2, 10, 40])
def test_prop_layer_product(depth: int) -> None:
    """The Jacobian of the network is the identity on the positive quadrant, while norms multiply to 2^depth."""
    layers = [np.diag([2.0, 0.5]), np.diag([0.5, 2.0])] * (depth // 2)
    assert np.allclose(np.linalg.multi_dot(layers), np.eye(2))
    assert math.prod(np.linalg.norm(layer, 2) for layer in layers) == 2.0**depth
    point = np.array([0.3, -0.7])
    for layer in layers:
        point = np.maximum(layer @ point, 0)
    assert point.tolist() == [0.3, 0.0]


def test_prop_no_sign() -> None:
    lengths, trained, decay = np.arange(1.0, 32.0), 32, 50
    risk = 1 - np.exp(-lengths / decay)
    distance = np.array([w1_line(np.array([float(trained)]), np.array([m])) for m in lengths])
    assert spearman(risk.tolist(), distance.tolist()) == pytest.approx(-1)
    assert spearman((1 - risk).tolist(), distance.tolist()) == pytest.approx(1)
    assert (np.abs(risk - (1 - math.exp(-trained / decay))) <= distance / decay).all()


def test_prop_scale_gives_any_rank_correlation() -> None:
    rng = np.random.default_rng(0)
    clouds = [(rng.normal(size=(20, 3)), rng.normal(size=(20, 3))) for _ in range(6)]
    risk = rng.uniform(size=6)
    raw = np.array([w1_exact(euclidean(x, y)) for x, y in clouds])
    for target, sign in ((risk + 1, 1), (2 - risk, -1)):
        units = target / raw
        scaled = [w1_exact(euclidean(c * x, c * y)) for c, (x, y) in zip(units, clouds, strict=True)]
        assert np.allclose(scaled, target)
        assert spearman(risk.tolist(), scaled) == pytest.approx(sign)


def test_prop_monitor_fails_under_collapse_and_concept_shift() -> None:
    inputs, collapsed = np.array([[0.0], [1.0]]), np.zeros((2, 1))
    assert w1_exact(euclidean(inputs[:1], inputs[1:])) == 1 and w1_exact(euclidean(collapsed[:1], collapsed[1:])) == 0
    answer = 0  # all that a head can say of one embedding
    assert abs(answer - 1) - abs(answer - 0) == 1


def test_prop_grid() -> None:
    assert math.prod([4, 5, 4]) == 80 and 54 % 4 and 54 % 5
    threes = {tuple(sorted(t)) for t in itertools.product(range(2, 28), repeat=3) if math.prod(t) == 54}
    assert threes == {(2, 3, 9), (3, 3, 6)}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("n", 7, "even word length"),
        ("slope", 0, "Lipschitz constant"),
        ("depth", 3, "even number of layers"),
        ("shorter", 40, "below the training length"),
        ("axes", [54], "product is not 54"),
        ("constant", -1, "Lipschitz constant"),
    ],
)
def test_bad_parameters_are_refused_in_one_sentence(name: str, value: object, words: str) -> None:
    parameters, setup = code_cells("02_ood_bound")[:2]
    namespace: dict[str, object] = {}
    exec(parameters.source, namespace)
    namespace[name] = value
    with pytest.raises(InputError, match=f"{name} = .*{words}"):
        exec(setup.source, namespace)
