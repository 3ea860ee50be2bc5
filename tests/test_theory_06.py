"""The theorems of chapter 6, by routes other than the chapter's own."""

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import integrate, optimize, special, stats

from shiftbound.approximation import (
    balanced_knots,
    hinges,
    interpolant,
    pieces_of,
    relu_network,
    value,
    variation,
    zigzag,
    zigzag_network,
)

GRID = (np.arange(20_000) + 0.5) / 20_000


def saw(N: int, x: np.ndarray) -> np.ndarray:
    """The zigzag of N ramps by a formula that knows nothing of corners."""
    return np.arccos(np.cos(N * np.pi * x)) / np.pi


def test_composition_multiplies_ramps() -> None:
    for M, N in itertools.product(range(1, 6), repeat=2):
        for t in range(61):
            x = Fraction(t, 60)
            assert value(zigzag(M), value(zigzag(N), x)) == value(zigzag(M * N), x)
        assert pieces_of(zigzag(M * N)) == M * N
    for L in range(1, 7):
        tent = GRID
        for _ in range(L):
            tent = np.minimum(2 * tent, 2 - 2 * tent)
        assert abs(tent - saw(2**L, GRID)).max() < 1e-9


def test_pieces_of_a_relu_network() -> None:
    """Random float networks: slope changes counted on a fine grid never exceed the product, skips included."""
    rng = np.random.default_rng(0)
    x = np.linspace(-20, 20, 40_001)
    for sizes in [(2,), (3, 3), (2, 3, 4), (4, 2)]:
        for _ in range(10):
            h, skip = x[:, None], x[:, None]
            for m in sizes:
                h = np.maximum(
                    h @ rng.normal(size=(h.shape[1], m)) + skip @ rng.normal(size=(1, m)) + rng.normal(size=m), 0
                )
            y = h @ rng.normal(size=h.shape[1])
            kinks = abs(np.diff(y, 2)) > 1e-8 * max(1, abs(y).max())
            runs = (kinks & ~np.concatenate([[False], kinks[:-1]])).sum()  # a kink touches two neighbouring differences
            assert runs + 1 <= math.prod(m + 1 for m in sizes)
    for m, depth in [(2, 4), (3, 3), (5, 2)]:
        assert m**depth <= pieces_of(relu_network(zigzag_network(m, depth), -1, 2)) <= (m + 1) ** depth


def test_floor_under_the_sawtooth() -> None:
    """The best piecewise affine functions on random partitions, each piece fitted by linear programming."""
    rng = np.random.default_rng(1)
    x = (np.arange(1200) + 0.5) / 1200

    def least_absolute(x: np.ndarray, y: np.ndarray) -> float:
        n = len(x)
        A = np.block([[np.c_[x, np.ones(n)], -np.eye(n)], [-np.c_[x, np.ones(n)], -np.eye(n)]])
        bounds = [(None, None)] * 2 + [(0, None)] * n
        return optimize.linprog(np.r_[0, 0, np.ones(n)], A, np.r_[y, -y], bounds=bounds).fun

    for N, P in [(4, 1), (4, 2), (4, 3), (8, 4), (8, 6)]:
        for _ in range(3):
            cuts = np.sort(rng.choice(np.arange(1, 1200), P - 1, replace=False))
            error = sum(least_absolute(part, saw(2 * N, part)) for part in np.split(x, cuts)) / 1200
            assert error >= 0.25 * (1 - (P - 1) / N) - 2 * N / 1200  # the sum differs from the integral by less
    assert abs(least_absolute(x, saw(8, x)) / 1200 - 0.25) < 1e-3


@pytest.mark.parametrize("N", [2, 4, 6])
def test_one_hidden_layer_to_the_unit(N: int) -> None:
    x = np.linspace(0, 1, 12 * N + 1)
    knots = np.arange(1, N) / N
    exact = np.column_stack([np.maximum(x - t, 0) for t in (0, *knots)])
    mix = np.linalg.lstsq(exact, saw(N, x), rcond=None)[0]
    assert np.allclose(exact @ mix, saw(N, x)) and np.allclose(mix, [N] + [(-1) ** j * 2 * N for j in range(1, N)])
    for facing in itertools.product((1, -1), repeat=N - 1):  # N - 1 units, each facing left or right, and a constant
        design = np.column_stack(
            [np.ones_like(x), *[np.maximum(s * (x - t), 0) for s, t in zip(facing, knots, strict=True)]]
        )
        assert np.linalg.lstsq(design, saw(N, x), rcond=None)[1].sum() > 1e-3
        skip = np.column_stack([design, x])
        mix = np.linalg.lstsq(skip, saw(N, x), rcond=None)[0]
        assert np.allclose(skip @ mix, saw(N, x), atol=1e-9)


def test_norms_of_the_sawtooth() -> None:
    rng = np.random.default_rng(2)
    for L in range(1, 6):
        N = 2**L
        second = np.diff(saw(N, np.arange(64 * N + 1) / (64 * N)), 2) * 64 * N
        assert abs(abs(second).sum() - 2 * N * (N - 1)) < 1e-6
    for _ in range(20):  # the path norm of any network is at least the variation of its slope
        a, w, b = rng.integers(-4, 5, size=(3, 6))
        graph = relu_network([([[int(v)] for v in w], [int(v) for v in b]), ([[int(v) for v in a]], [0])])
        assert variation(graph) <= (abs(a) * abs(w)).sum()
    b = 0.5  # the spectral norm of a triangle up to a frequency, by quadrature
    density = lambda xi: xi * b / 2 * (math.sin(b * xi / 4) / (b * xi / 4)) ** 2 / math.pi  # noqa: E731
    for top in (50.0, 400.0):
        by_quadrature = integrate.quad(density, 1e-9, top, limit=2000)[0]
        formula = 4 / (math.pi * b) * (np.euler_gamma + math.log(b * top / 2) - special.sici(b * top / 2)[1])
        assert abs(by_quadrature - formula) < 1e-6


def test_maurey_identity_by_sampling() -> None:
    rng = np.random.default_rng(3)
    support, weights = rng.normal(size=(5, 3)), np.array([0.1, 0.2, 0.3, 0.25, 0.15])
    mean = weights @ support
    spread = weights @ (support**2).sum(1) - mean @ mean
    for m in (1, 4, 9):
        chosen = support[rng.choice(5, size=(20_000, m), p=weights)].mean(1)
        errors = ((chosen - mean) ** 2).sum(1)
        assert abs(errors.mean() - spread / m) < 5 * stats.sem(errors)


@pytest.mark.parametrize(("d", "printed"), [(1, 0.1463), (4, 0.4089), (10, 0.4960)])
def test_gaussian_bump(d: int, printed: float) -> None:
    """m MSE of cosine sampling, inputs and frequencies both drawn."""
    rng = np.random.default_rng(d)
    exact = (1 + 5 ** (-d / 2)) / 2 - 3 ** (-d / 2)
    assert round(exact, 4) == printed
    m, x = 6, rng.normal(size=(4000, d))
    w = rng.normal(size=(4000, m, d))
    errors = m * (np.exp(-(x**2).sum(1) / 2) - np.cos(np.einsum("bmd,bd->bm", w, x)).mean(1)) ** 2
    assert abs(errors.mean() - exact) < 5 * stats.sem(errors)


def test_sharp_rate_on_the_line() -> None:
    """Upper half: densities instead of atoms, in floats. Lower half: the sawtooth against fitted networks."""
    rng = np.random.default_rng(4)
    for m in (1, 3, 6):
        for _ in range(5):
            c = rng.normal(size=400)
            t = (np.arange(400) + 0.5) / 400
            atoms = [(Fraction(i * 2 + 1, 800), Fraction(float(v))) for i, v in enumerate(c)]
            knots = np.array([0.0, *map(float, balanced_knots(atoms, m)), 1.0])
            f = lambda x, c=c, t=t: np.maximum(x[:, None] - t, 0) @ c  # noqa: E731
            x = np.linspace(0, 1, 4001)
            assert abs(f(x) - np.interp(x, knots, f(knots))).max() <= abs(c).sum() / (4 * (m + 1) ** 2) + 1e-9
        for _ in range(40):
            knots = np.sort(rng.random(m))
            design = np.column_stack([np.ones_like(GRID), GRID, *[np.maximum(GRID - s, 0) for s in knots]])
            y = saw(4 * m, GRID)
            mix = np.linalg.lstsq(design, y, rcond=None)[0]
            assert abs(y - design @ mix).mean() >= 1 / 8 - 1e-3
        assert variation(zigzag(4 * m)) == 8 * m * (4 * m - 1)


def test_one_atom_a_cell_attains_the_upper_half() -> None:
    for m in range(6):
        atoms = [(Fraction(2 * i + 1, 2 * (m + 1)), 1) for i in range(m + 1)]
        f = hinges(atoms)
        g = interpolant(f, balanced_knots(atoms, m))
        gap = max(abs(value(f, t) - value(g, t)) for t, _ in atoms)
        assert gap == Fraction(m + 1, 4 * (m + 1) ** 2)


def test_parabola() -> None:
    rng = np.random.default_rng(5)
    for P in (1, 2, 5):
        for _ in range(20):
            edges = np.concatenate([[0], np.sort(rng.random(P - 1)), [1]])
            error = 0.0
            for a, b in itertools.pairwise(edges):
                nodes, weights = np.polynomial.legendre.leggauss(6)
                x, w = a + (b - a) * (nodes + 1) / 2, weights * (b - a) / 2
                fit = np.polyfit(x, x**2 / 2, 1, w=np.sqrt(w))
                error += (w * (x**2 / 2 - np.polyval(fit, x)) ** 2).sum()
            assert math.sqrt(error) >= 1 / (math.sqrt(720) * P**2) - 1e-12
        even = np.linspace(0, 1, P + 1)
        gap = GRID**2 / 2 - np.interp(GRID, even, even**2 / 2)
        assert abs(math.sqrt((gap**2).mean()) * math.sqrt(120) * P**2 - 1) < 1e-3


def test_depth_on_a_smooth_function() -> None:
    x = np.linspace(0, 1, 2**12 + 1)
    tooth, approximation = x, x
    for L in range(1, 8):
        tooth = np.minimum(2 * tooth, 2 - 2 * tooth)
        approximation = approximation - tooth / 4**L
        assert abs(abs(x**2 - approximation).max() - 4.0 ** (-L - 1)) < 1e-12


def test_the_optimum_returns_its_inputs() -> None:
    """A general solver on the continuous problem finds the constraints, whatever exponent they contain."""
    for n, alpha in [(100, 0.0), (100, 0.3), (1000, 0.7)]:
        least = np.array([2 * math.log(n), 1.5 * n**alpha])
        found = optimize.minimize(
            lambda v: math.log(v[0]) + 2 * math.log(v[1]),
            3 * least,
            bounds=[(c, None) for c in least],
            method="L-BFGS-B",
        )
        assert np.allclose(found.x, least, rtol=1e-6)
