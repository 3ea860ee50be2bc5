"""Piecewise affine functions of one variable, exactly, and what few ReLU units can do with them.

A `Graph` is a continuous piecewise affine function on an interval, given by its corners: points (x, y) with increasing
x. With `Fraction` corners every count, distance and norm below is exact. Source: the constructions follow Telgarsky,
Benefits of Depth in Neural Networks (2016).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from jaxtyping import Float

from shiftbound import require

Rational = Fraction | int
Graph = list[tuple[Rational, Rational]]
Layer = tuple[list[list[Rational]], list[Rational]]


def zigzag(pieces: int) -> Graph:
    """The zigzag of ``pieces`` ramps on [0, 1], up first: y = j mod 2 at x = j / pieces ({eq}`eq-zigzag`).

    >>> zigzag(2)
    [(Fraction(0, 1), Fraction(0, 1)), (Fraction(1, 2), Fraction(1, 1)), (Fraction(1, 1), Fraction(0, 1))]
    """
    require(pieces >= 1, "pieces", pieces, "a whole number of at least 1")
    return [(Fraction(j, pieces), Fraction(j % 2)) for j in range(pieces + 1)]


def zigzag_network(pieces: int, depth: int = 1) -> list[Layer]:
    """Weights of a ReLU network of ``depth`` hidden layers, ``pieces`` units each: the zigzag composed ``depth`` times.

    One hidden layer computes ReLU(x - j / pieces), j = 0, 1, ..., and combines them with coefficients pieces,
    -2 pieces, 2 pieces, ... ({eq}`eq-wide`). On [0, 1] the composition is the zigzag of pieces^depth ramps.

    >>> pieces_of(relu_network(zigzag_network(2, depth=3)))
    8
    """
    require(pieces >= 2, "pieces", pieces, "a whole number of at least 2")
    require(depth >= 1, "depth", depth, "a whole number of at least 1")
    mix = [Fraction(pieces if j == 0 else (-1) ** j * 2 * pieces) for j in range(pieces)]
    thresholds = [-Fraction(j, pieces) for j in range(pieces)]
    first = ([[Fraction(1)] for _ in thresholds], thresholds)
    inner = ([mix for _ in thresholds], thresholds)
    return [first, *[inner] * (depth - 1), ([mix], [Fraction(0)])]


def relu_network(layers: Sequence[Layer], lo: Rational = 0, hi: Rational = 1) -> Graph:
    """The function that a ReLU network with one input and one output computes on [lo, hi], exactly.

    ``layers`` are pairs (W, b) of rational matrices and vectors; ReLU follows all but the last. Between two corners
    every unit of a layer is affine; a unit that changes sign there adds one corner (`thm-pieces`).

    >>> relu_network([([[1], [-1]], [0, 0]), ([[1, 1]], [0])], -1, 1)  # |x|
    [(Fraction(-1, 1), Fraction(1, 1)), (Fraction(0, 1), Fraction(0, 1)), (Fraction(1, 1), Fraction(1, 1))]
    """
    require(lo < hi, "lo", lo, f"less than hi = {hi}")
    points = [(x, [x]) for x in (Fraction(lo), Fraction(hi))]
    for weights, shifts in layers[:-1]:
        points = _affine(points, weights, shifts)
        for unit in range(len(shifts)):
            points = _with_zeros(points, unit)
        points = [(x, [max(v, Fraction(0)) for v in values]) for x, values in points]
    return corners([(x, value) for x, (value,) in _affine(points, *layers[-1])])


def _affine(points: list, weights: list[list[Rational]], shifts: list[Rational]) -> list:
    def image(values: list[Fraction]) -> list[Fraction]:
        return [
            sum((w * v for w, v in zip(row, values, strict=True)), s) for row, s in zip(weights, shifts, strict=True)
        ]

    return [(x, image(values)) for x, values in points]


def _with_zeros(points: list, unit: int) -> list:
    """The points, and between two where ``unit`` has opposite signs the point where it is zero."""
    result = points[:1]
    for (x0, v0), (x1, v1) in pairwise(points):
        if v0[unit] * v1[unit] < 0:
            t = v0[unit] / (v0[unit] - v1[unit])
            result.append((x0 + t * (x1 - x0), [a + t * (b - a) for a, b in zip(v0, v1, strict=True)]))
        result.append((x1, v1))
    return result


def corners(graph: Graph) -> Graph:
    """The same function without points where the slope stays the same."""
    result: Graph = []
    for point in graph:
        if len(result) >= 2:
            (x0, y0), (x1, y1), (x2, y2) = *result[-2:], point
            if (y1 - y0) * (x2 - x1) == (y2 - y1) * (x1 - x0):
                result.pop()
        result.append(point)
    return result


def pieces_of(graph: Graph) -> int:
    """How many affine pieces the function has.

    >>> pieces_of([(0, 0), (1, 1), (2, 2), (3, 0)])
    2
    """
    return len(corners(graph)) - 1


def slopes(graph: Graph) -> list[Fraction]:
    """The slope between neighbouring points."""
    return [Fraction(y1 - y0) / (x1 - x0) for (x0, y0), (x1, y1) in pairwise(graph)]


def variation(graph: Graph) -> Fraction:
    """The variation of the slope, which is the integral of |f''| in the open interval ({eq}`eq-variation`).

    >>> variation(zigzag(2))
    Fraction(4, 1)
    """
    steps = slopes(graph)
    return sum((abs(b - a) for a, b in pairwise(steps)), Fraction(0))


def value(graph: Graph, x: Rational) -> Fraction:
    """The value at ``x``, which must lie in the interval.

    >>> value(zigzag(2), Fraction(3, 4))
    Fraction(1, 2)
    """
    require(graph[0][0] <= x <= graph[-1][0], "x", x, f"from {graph[0][0]} to {graph[-1][0]}")
    (x0, y0), (x1, y1) = next((p, q) for p, q in pairwise(graph) if x <= q[0])
    return y0 + Fraction(y1 - y0) * (x - x0) / (x1 - x0)


def difference(f: Graph, g: Graph) -> Graph:
    """f - g, with the points of both."""
    places = sorted({x for x, _ in f} | {x for x, _ in g})
    return [(x, value(f, x) - value(g, x)) for x in places]


def l1_norm(f: Graph) -> Fraction:
    """The integral of |f|: a trapezium where the sign stays, two triangles where it changes.

    >>> l1_norm([(Fraction(0), Fraction(-1)), (Fraction(2), Fraction(1))])
    Fraction(1, 1)
    """
    total = Fraction(0)
    for (x0, y0), (x1, y1) in pairwise(f):
        a, b = abs(y0), abs(y1)
        total += Fraction(x1 - x0) * (Fraction(a * a + b * b) / (a + b) if y0 * y1 < 0 else a + b) / 2
    return total


def sup_norm(f: Graph) -> Rational:
    """The largest |f|, attained at a corner."""
    return max(abs(y) for _, y in f)


def hinges(atoms: Sequence[tuple[Rational, Rational]]) -> Graph:
    """The sum of c ReLU(x - t) over the ``atoms`` (t, c), 0 < t < 1, as a graph on [0, 1]."""
    require(all(0 < t < 1 for t, _ in atoms), "atoms", atoms, "at places strictly between 0 and 1")
    places = sorted({Fraction(0), Fraction(1), *(t for t, _ in atoms)})
    return [(x, sum((c * max(x - t, Fraction(0)) for t, c in atoms), Fraction(0))) for x in places]


def balanced_knots(atoms: Sequence[tuple[Rational, Rational]], units: int) -> list[Fraction]:
    """Knots that share out length and variation together: the s_i with H(s_i) reaching i / (units + 1),

    $$ H(t) = (t + |mu|((0, t]) / |mu|((0, 1))) / 2,   i = 1, ..., units, $$

    for the measure mu of the ``atoms`` (t, c). Each open cell then has length + share of variation at most
    2 / (units + 1) (`thm-line-rate`).

    >>> balanced_knots([(Fraction(1, 2), Fraction(3))], 1)
    [Fraction(1, 2)]
    """
    require(units >= 0, "units", units, "a whole number of at least 0")
    mass = sum(abs(c) for _, c in atoms)
    require(mass > 0, "atoms", atoms, "a measure that is not zero")
    knots, share = [], Fraction(0)
    ladder = [*sorted((t, Fraction(abs(c)) / mass) for t, c in atoms), (Fraction(1), Fraction(0))]
    for t, weight in ladder:
        while len(knots) < units and (t + share) / 2 >= Fraction(len(knots) + 1, units + 1):
            knots.append(2 * Fraction(len(knots) + 1, units + 1) - share)
        share += weight
        while len(knots) < units and (t + share) / 2 >= Fraction(len(knots) + 1, units + 1):
            knots.append(t)
    return sorted(set(knots))


def interpolant(f: Graph, knots: Sequence[Rational]) -> Graph:
    """The function that agrees with ``f`` at the ends and at the ``knots`` and is affine between."""
    places = sorted({f[0][0], f[-1][0], *knots})
    return [(x, value(f, x)) for x in places]


def best_on_grid(target: Graph, cells: int, levels: int, most: int) -> list[Graph]:
    """For P = 1, ..., ``most``: a continuous g of at most P pieces nearest to ``target`` in L1, among the g on [0, 1]
    with knots at multiples of 1 / cells and knot values -1/2, ..., 3/2 in steps of 1 / levels.

    A dynamic programme over (knot, value). The corners of ``target`` must be knots, so that |g - target| is integrated
    without error on each cell.

    >>> pieces_of(best_on_grid(zigzag(4), cells=8, levels=2, most=4)[-1])
    4
    """
    cost, values = _segment_costs(target, cells, levels)
    tables = [cost[0].min(0)]  # tables[c][j, v]: the least distance on [0, j / cells] with c + 1 segments, ending in v
    while len(tables) < most:
        tables.append((tables[-1][:, :, None, None] + cost).min((0, 1)))
    ends = [float(table[-1].min()) for table in tables]
    segments = [int(np.argmin(ends[: p + 1])) for p in range(most)]
    return [_trace(cost, tables[: c + 1], cells, values) for c in segments]


def best_with_jumps(target: Graph, cells: int, levels: int, most: int) -> list[float]:
    """The distances that `best_on_grid` would reach if g could jump at its knots, as no network can.

    >>> best_with_jumps(zigzag(4), cells=8, levels=2, most=1)
    [0.25]
    """
    cost, _ = _segment_costs(target, cells, levels)
    segment = cost.min((1, 3))
    tables = [segment[0]]
    while len(tables) < most:
        tables.append(np.minimum(tables[-1], (tables[-1][:, None] + segment).min(0)))
    return [float(table[-1]) for table in tables]


def _trace(cost: np.ndarray, tables: list[np.ndarray], cells: int, values: list[Fraction]) -> Graph:
    """The function behind the best entry at the right end, from right to left."""
    j, v = cells, int(tables[-1][-1].argmin())
    graph = [(Fraction(1), values[v])]
    for table in reversed(tables[:-1]):
        j, v = map(int, np.unravel_index((table + cost[:, :, j, v]).argmin(), table.shape))
        graph.append((Fraction(j, cells), values[v]))
    graph.append((Fraction(0), values[int(cost[0, :, j, v].argmin())]))
    return graph[::-1]


def _segment_costs(target: Graph, cells: int, levels: int) -> tuple[Float[np.ndarray, "n v n v"], list[Fraction]]:
    """The L1 distance to the target of the segment from (i, u) to (j, v), infinite unless i < j; the values u, v."""
    require(
        all((x * cells).denominator == 1 for x, _ in target), "cells", cells, "such that the target's knots are knots"
    )
    require(levels >= 1, "levels", levels, "a whole number of at least 1")
    values = [Fraction(j, levels) - Fraction(1, 2) for j in range(2 * levels + 1)]
    ends, n = np.array(values, dtype=float), cells + 1
    heights = np.array([float(value(target, Fraction(i, cells))) for i in range(n)])
    cost = np.full((n, len(ends), n, len(ends)), np.inf)
    for length in range(1, n):
        line = ends[:, None, None] + (ends[None, :, None] - ends[:, None, None]) * np.arange(length + 1) / length
        for i in range(n - length):
            e = line - heights[i : i + length + 1]
            a, b = np.abs(e[..., :-1]), np.abs(e[..., 1:])
            crossing = e[..., :-1] * e[..., 1:] < 0
            area = np.where(crossing, (a * a + b * b) / np.maximum(a + b, 1e-300), a + b)
            cost[i, :, i + length, :] = area.sum(-1) / 2 / cells
    return cost, values
