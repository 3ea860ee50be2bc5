"""Exact W1: assignment for equal uniform weights, a linear program for others, a closed form on the line."""

from __future__ import annotations

import math
import os
import warnings
from types import ModuleType

import numpy as np
from jaxtyping import Float, Int, Num
from numpy.typing import ArrayLike
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import cdist

from shiftbound import InputError

UNIT = 2.0**-53  # unit roundoff of float64


# Ground metrics -----------------------------------------------------------------------------------------------------


def euclidean(x: Num[np.ndarray, "m d"], y: Num[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
    """The cost matrix ‖x_i - y_j‖₂.

    >>> euclidean(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]])).tolist()
    [[5.0]]
    """
    return cdist(x, y)


def cityblock(x: Num[np.ndarray, "m d"], y: Num[np.ndarray, "n d"]) -> Float[np.ndarray, "m n"]:
    """The cost matrix ‖x_i - y_j‖₁.

    >>> cityblock(np.array([[0.0, 0.0]]), np.array([[3.0, 4.0]])).tolist()
    [[7.0]]
    """
    return cdist(x, y, "cityblock")


# Any finite space ---------------------------------------------------------------------------------------------------


def w1_exact(
    cost: Num[np.ndarray, "m n"], a: Num[np.ndarray, " m"] | None = None, b: Num[np.ndarray, " n"] | None = None
) -> float:
    """W1 = min ⟨cost, P⟩ over plans P >= 0 with marginals a, b (eq-w1), in the units of ``cost``.

    Weights default to uniform and are divided by their sums. A cost that is negative or not finite, weights that are
    negative, not finite or all 0, and wrong lengths raise `InputError`.

    >>> round(w1_exact(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.2, 0.8]), np.array([0.8, 0.2])), 12)
    0.6

    Source: Villani, Topics in Optimal Transportation (2003), chapter 1.
    """
    cost, a, b = problem(cost, a, b)
    if assignable(a, b):
        return float(cost[np.arange(len(cost)), assignment(cost)].mean())
    return float((linear_program(cost, a, b)[0] * cost).sum())


def assignment(cost: Float[np.ndarray, "n n"]) -> Int[np.ndarray, " n"]:
    """The column matched to each row in an optimal assignment.

    Taking the least of every column, then of every row, off the cost changes no optimum and halves the solver's work.
    """
    reduced = cost - cost.min(axis=0)
    return linear_sum_assignment(reduced - reduced.min(axis=1, keepdims=True))[1]


def pot() -> ModuleType:
    """The module ``ot``, imported late and without its other backends, which cost seconds and are not needed."""
    for backend in ("PYTORCH", "JAX", "CUPY", "TENSORFLOW"):
        os.environ.setdefault(f"POT_BACKEND_DISABLE_{backend}", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its docstrings hold invalid escapes, a warning wherever it is compiled
        import ot
    return ot


def linear_program(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """POT's network simplex on the atoms that carry mass: an optimal plan, and a potential for the rows."""
    emd = pot().lp.emd
    rows, columns = np.flatnonzero(a), np.flatnonzero(b)
    part = np.ascontiguousarray(cost[np.ix_(rows, columns)])
    mass_a, mass_b = a[rows] / a.sum(), b[columns] / b.sum()
    found, log = emd(mass_a, mass_b, part, numItermax=100_000_000, log=True, check_marginals=False)
    if log["result_code"] != 1:
        raise ArithmeticError(f"the network simplex stopped early on a {part.shape} problem: {log['warning']}")
    plan = np.zeros(cost.shape)
    plan[np.ix_(rows, columns)] = np.maximum(found, 0)
    psi = (part - log["u"][:, None]).min(axis=0)
    return plan, (cost[:, columns] - psi).min(axis=1)


# The line -----------------------------------------------------------------------------------------------------------


def w1_line(
    x: Num[np.ndarray, " m"],
    y: Num[np.ndarray, " n"],
    a: Num[np.ndarray, " m"] | None = None,
    b: Num[np.ndarray, " n"] | None = None,
) -> float:
    """W1 = ∫ |F - G| (eq-line) between samples of real numbers, in their units. Weights as for `w1_exact`.

    >>> w1_line(np.array([0.0, 1.0]), np.array([1.0, 3.0]))
    1.5

    Source: Vallender (1974).
    """
    return line_bounds(x, y, a, b)[1]


def line_bounds(x: np.ndarray, y: np.ndarray, a: np.ndarray | None, b: np.ndarray | None) -> tuple[float, float, float]:
    """A lower bound (the potential), ∫|F - G|, and an upper bound (the quantile coupling)."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise InputError("x or y holds NaN or infinity; every number must be finite")
    a, b = masses(a, len(x), "a"), masses(b, len(y), "b")
    a, b = a / math.fsum(a), b / math.fsum(b)
    z, mass = np.concatenate([x, y]), np.concatenate([a, -b])
    order = np.argsort(z, kind="stable")
    z, mass = z[order] - z[order[0]], mass[order]
    gap, difference = np.diff(z), np.cumsum(mass)[:-1]
    value = float(np.sum(np.abs(difference) * gap))
    potential = np.concatenate([[0.0], np.cumsum(-np.sign(difference) * gap)])
    span = float(z[-1])
    slack = 16 * len(z) * UNIT * span
    i, j = np.argsort(x, kind="stable"), np.argsort(y, kind="stable")
    at_a, at_b = np.cumsum(a[i]), np.cumsum(b[j])
    cuts = np.union1d(at_a, at_b)
    source = x[i][np.minimum(np.searchsorted(at_a, cuts), len(x) - 1)]
    target = y[j][np.minimum(np.searchsorted(at_b, cuts), len(y) - 1)]
    upper = float(np.sum(np.diff(cuts, prepend=0.0) * np.abs(source - target))) + slack
    lower = float(np.sum(potential * mass)) - slack
    return lower, float(np.clip(value, lower, upper)), upper


# Checked input ------------------------------------------------------------------------------------------------------


def masses(weights: ArrayLike | None, count: int, name: str) -> Float[np.ndarray, " n"]:
    """Weights as given, checked; ones where none are given, so that uniform masses stay exact."""
    if weights is None:
        return np.ones(count)
    array = np.asarray(weights, dtype=float)
    if array.shape != (count,):
        raise InputError(f"{name} has the shape {array.shape}; it must be one weight a point, {count} in all")
    if not np.isfinite(array).all() or (array < 0).any():
        raise InputError(
            f"{name} holds {array[~(np.isfinite(array) & (array >= 0))][0]}; a weight must be finite and >= 0"
        )
    if not 0 < array.sum() < math.inf:
        raise InputError(f"{name} sum to {array.sum()}; they must have a positive total")
    return array


def problem(cost: np.ndarray, a: np.ndarray | None, b: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    cost = np.asarray(cost, dtype=float)
    if cost.ndim != 2 or 0 in cost.shape:
        raise InputError(f"cost has the shape {cost.shape}; it must be a matrix with at least one row and one column")
    if not (cost.min() >= 0 and cost.max() < math.inf):  # false for NaN too
        raise InputError("cost holds a negative number, NaN or infinity; distances must be finite and >= 0")
    return cost, masses(a, cost.shape[0], "a"), masses(b, cost.shape[1], "b")


def assignable(a: np.ndarray, b: np.ndarray) -> bool:
    return len(a) == len(b) and bool((a == a[0]).all() and (b == b[0]).all())
