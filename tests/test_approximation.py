"""Exact piecewise affine functions: each operation against floats, sampling or brute force."""

import doctest
import itertools
from fractions import Fraction

import numpy as np
import pytest

from shiftbound import InputError, approximation
from shiftbound.approximation import (
    balanced_knots,
    best_on_grid,
    best_with_jumps,
    corners,
    difference,
    hinges,
    interpolant,
    l1_norm,
    pieces_of,
    relu_network,
    sup_norm,
    value,
    variation,
    zigzag,
    zigzag_network,
)


def random_network(rng: np.random.Generator, sizes: list[int]) -> list:
    def draw(*shape: int) -> list:
        return [[Fraction(int(v)) for v in row] for row in rng.integers(-3, 4, shape)]

    return [(draw(b, a), draw(1, b)[0]) for a, b in itertools.pairwise(sizes)]


def in_floats(layers: list, x: np.ndarray) -> np.ndarray:
    h = x[:, None]
    for weights, shifts in layers[:-1]:
        h = np.maximum(h @ np.array(weights, dtype=float).T + np.array(shifts, dtype=float), 0)
    weights, shifts = layers[-1]
    return (h @ np.array(weights, dtype=float).T + np.array(shifts, dtype=float))[:, 0]


def test_doctests() -> None:
    assert doctest.testmod(approximation).failed == 0


@pytest.mark.parametrize("sizes", [[1, 3, 1], [1, 4, 3, 1], [1, 2, 3, 2, 1]])
def test_the_graph_of_a_network_agrees_with_the_network_in_floats(sizes: list[int]) -> None:
    rng = np.random.default_rng(0)
    x = np.linspace(-4, 4, 801)
    for _ in range(20):
        layers = random_network(rng, sizes)
        graph = relu_network(layers, -4, 4)
        y = np.interp(x, [float(a) for a, _ in graph], [float(b) for _, b in graph])
        assert np.allclose(y, in_floats(layers, x), atol=1e-9 * max(1, abs(y).max()))
        assert corners(graph) == graph


def test_norms_and_values_against_a_fine_sum() -> None:
    rng = np.random.default_rng(1)
    x = (np.arange(40_000) + 0.5) / 40_000
    for _ in range(10):
        f, g = ([(Fraction(i, 7), Fraction(int(v), 3)) for i, v in enumerate(rng.integers(-5, 6, 8))] for _ in range(2))
        e = difference(f, g)
        y = np.interp(x, [float(a) for a, _ in e], [float(b) for _, b in e])
        assert abs(float(l1_norm(e)) - abs(y).mean()) < 1e-6
        assert float(sup_norm(e)) >= abs(y).max() - 1e-12
        assert (
            abs(float(value(f, Fraction(1, 3))) - np.interp(1 / 3, [float(a) for a, _ in f], [float(b) for _, b in f]))
            < 1e-12
        )


def test_the_dynamic_programme_against_all_functions_on_a_tiny_grid() -> None:
    target = zigzag(4)
    levels = [Fraction(j, 2) - Fraction(1, 2) for j in range(5)]
    found = best_on_grid(target, cells=4, levels=2, most=2)
    for pieces, best in enumerate(found, 1):
        errors = [
            l1_norm(difference(list(zip(map(Fraction, knots), heights, strict=True)), target))
            for inner in itertools.combinations([Fraction(1, 4), Fraction(1, 2), Fraction(3, 4)], pieces - 1)
            for knots in [(Fraction(0), *inner, Fraction(1))]
            for heights in itertools.product(levels, repeat=pieces + 1)
        ]
        assert pieces_of(best) <= pieces
        assert l1_norm(difference(best, target)) == min(errors)
    assert best_with_jumps(target, 4, 2, 4)[-1] == 0
    jumping = best_with_jumps(target, 4, 2, 2)
    assert all(a <= float(l1_norm(difference(g, target))) + 1e-12 for a, g in zip(jumping, found, strict=True))


def test_balanced_knots_share_out_length_and_variation() -> None:
    rng = np.random.default_rng(2)
    for units in range(8):
        for _ in range(20):
            spots = rng.choice(np.arange(1, 50), size=int(rng.integers(1, 9)), replace=False).tolist()
            atoms = [
                (Fraction(t, 50), Fraction(int(c)))
                for t, c in zip(spots, rng.choice([-4, -1, 2, 7], len(spots)), strict=True)
            ]
            mass, knots = sum(abs(c) for _, c in atoms), balanced_knots(atoms, units)
            assert len(knots) <= units
            for a, b in itertools.pairwise([Fraction(0), *knots, Fraction(1)]):
                share = Fraction(sum(abs(c) for t, c in atoms if a < t < b), mass)
                assert b - a + share <= Fraction(2, units + 1)


def test_an_interpolant_meets_the_function_at_its_knots() -> None:
    f = zigzag(6)
    g = interpolant(f, [Fraction(1, 5), Fraction(1, 2)])
    assert all(value(f, x) == y for x, y in g) and pieces_of(g) <= 3


def test_variation_of_hinges_is_the_mass_of_their_coefficients() -> None:
    atoms = [(Fraction(1, 3), 2), (Fraction(1, 2), -5), (Fraction(6, 7), 1)]
    assert variation(hinges(atoms)) == 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zigzag(0), "pieces = 0"),
        (lambda: zigzag_network(1), "pieces = 1"),
        (lambda: zigzag_network(2, depth=0), "depth = 0"),
        (lambda: relu_network(zigzag_network(2), 1, 1), "lo = 1"),
        (lambda: value(zigzag(2), 2), "x = 2"),
        (lambda: balanced_knots([(Fraction(1, 2), 0)], 1), "atoms"),
        (lambda: balanced_knots([(Fraction(1, 2), 1)], -1), "units = -1"),
        (lambda: hinges([(1, 1)]), "atoms"),
        (lambda: best_on_grid(zigzag(4), cells=6, levels=2, most=1), "cells = 6"),
        (lambda: best_on_grid(zigzag(4), cells=4, levels=0, most=1), "levels = 0"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, message: str) -> None:
    with pytest.raises(InputError, match=message):
        call()
