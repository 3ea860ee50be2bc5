"""Certificates: a plan bounds W1 from above, potentials bound it from below.

In floating point with the rounding paid for (`certify`), or in whole numbers (`integer_certificate`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from jaxtyping import Float, Num

from shiftbound import require
from shiftbound.transport.exact import UNIT, assignable, assignment, linear_program, problem


@dataclass(frozen=True)
class Certificate:
    """``lower <= W1 <= upper``, with the witnesses: a plan, and potentials with phi_i + psi_j <= cost_ij."""

    w1: float
    lower: float
    upper: float
    plan: Float[np.ndarray, "m n"]
    phi: Float[np.ndarray, " m"]
    psi: Float[np.ndarray, " n"]


def w1_certified(
    cost: Num[np.ndarray, "m n"], a: Num[np.ndarray, " m"] | None = None, b: Num[np.ndarray, " n"] | None = None
) -> Certificate:
    """W1 with a certificate from both sides (thm-duality); the gap is rounding. Input as for `w1_exact`.

    >>> found = w1_certified(np.array([[1.0, 2.0, 4.0]]))
    >>> found.lower <= found.w1 <= found.upper, found.upper - found.lower < 1e-12, round(found.w1, 9)
    (True, True, 2.333333333)
    """
    cost, a, b = problem(cost, a, b)
    if assignable(a, b):
        columns = assignment(cost)
        plan = np.zeros(cost.shape)
        plan[np.arange(len(cost)), columns] = 1 / len(cost)
        return certify(cost, plan, _assignment_potential(cost, columns), a, b)
    return certify(cost, *linear_program(cost, a, b), a, b)


def certify(
    cost: Num[np.ndarray, "m n"],
    plan: Num[np.ndarray, "m n"],
    phi: Num[np.ndarray, " m"],
    a: Num[np.ndarray, " m"] | None = None,
    b: Num[np.ndarray, " n"] | None = None,
) -> Certificate:
    """A valid sandwich from any plan and any potential: the plan is rounded to the polytope, the potential transformed.

    The potentials become psi_j = min_i (cost_ij - phi_i) and phi_i = min_j (cost_ij - psi_j) (eq-c-transform). Rounding
    of the arithmetic is paid for: ``lower`` is moved down and ``upper`` up by a bound on it. Input as for `w1_exact`.

    >>> cost = np.array([[0.0, 1.0], [1.0, 0.0]])
    >>> found = certify(cost, np.full((2, 2), 0.25), np.array([0.0, 0.3]), np.array([0.2, 0.8]), np.array([0.8, 0.2]))
    >>> round(found.lower, 9), round(found.upper, 9)
    (0.18, 0.714285714)

    Source: Altschuler, Weed and Rigollet (2017), algorithm 2.
    """
    cost, a, b = problem(cost, a, b)
    require(bool(np.isfinite(phi).all()), "phi", "a potential with NaN or infinity", "finite")
    plan = round_plan(plan, a, b)
    psi = (cost - phi[:, None]).min(axis=0)
    phi = (cost - psi[None, :]).min(axis=1)
    psi = np.nextafter((cost - phi[:, None]).min(axis=0), -math.inf)  # below the exact minimum whatever the rounding
    total_a, total_b = math.fsum(a), math.fsum(b)
    lower = math.fsum(a * phi) / total_a + math.fsum(b * psi) / total_b
    lower -= 8 * UNIT * (math.fsum(a * abs(phi)) / total_a + math.fsum(b * abs(psi)) / total_b)
    used = plan > 0
    value = math.fsum((plan * cost)[used])
    missing = sum(
        math.fsum(abs(plan.sum(axis=1 - axis) - mass / total))
        for axis, (mass, total) in enumerate(((a, total_a), (b, total_b)))
    )
    # Moving what the marginals still lack costs at most max(cost) a unit; sums of up to 2^20 terms err by 32 units.
    upper = value * (1 + 8 * UNIT) + (missing + 32 * UNIT) * float(cost.max())
    return Certificate(float(np.clip(value, lower, upper)), lower, upper, plan, phi, psi)


def round_plan(
    plan: Num[np.ndarray, "m n"], a: Num[np.ndarray, " m"], b: Num[np.ndarray, " n"]
) -> Float[np.ndarray, "m n"]:
    """The nearest-by-construction plan with marginals a / Σa, b / Σb: scale rows, then columns, down, add a product.

    >>> round_plan(np.array([[0.9, 0.0], [0.0, 0.9]]), np.array([0.5, 0.5]), np.array([0.5, 0.5])).round(9).tolist()
    [[0.5, 0.0], [0.0, 0.5]]

    Source: Altschuler, Weed and Rigollet (2017), algorithm 2.
    """
    require(bool(np.isfinite(plan).all() and (plan >= 0).all()), "plan", "a plan with such entries", "finite, >= 0")
    a, b = a / a.sum(), b / b.sum()
    plan = plan * np.minimum(a / np.maximum(plan.sum(axis=1), 1e-300), 1)[:, None]
    plan = plan * np.minimum(b / np.maximum(plan.sum(axis=0), 1e-300), 1)[None, :]
    lack_a, lack_b = np.maximum(a - plan.sum(axis=1), 0), np.maximum(b - plan.sum(axis=0), 0)
    return plan + np.outer(lack_a, lack_b) / max(lack_a.sum(), 1e-300)


def sinkhorn(
    cost: Num[np.ndarray, "m n"], a: Num[np.ndarray, " m"], b: Num[np.ndarray, " n"], epsilon: float, steps: int
) -> tuple[Float[np.ndarray, "m n"], Float[np.ndarray, " m"]]:
    """A plan and a potential of entropic transport after ``steps`` rounds of Sinkhorn in the log domain, for `certify`.

    ``epsilon`` > 0 has the units of ``cost``; weights must be positive.

    >>> plan, phi = sinkhorn(np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([0.2, 0.8]), np.array([0.8, 0.2]), 0.05, 200)
    >>> plan.round(3).tolist()
    [[0.2, 0.0], [0.6, 0.2]]

    Source: Cuturi (2013); Peyré and Cuturi (2019), chapter 4.
    """
    require(epsilon > 0, "epsilon", epsilon, "a positive number")
    require(steps >= 1, "steps", steps, "a whole number of at least 1")
    require(bool((a > 0).all() and (b > 0).all()), "weights", "a weight of 0", "all positive")
    from scipy.special import logsumexp

    log_a, log_b = np.log(a / a.sum()), np.log(b / b.sum())
    psi = np.zeros(len(b))
    for _ in range(steps):
        phi = -epsilon * logsumexp((psi - cost) / epsilon + log_b, axis=1)
        psi = -epsilon * logsumexp((phi[:, None] - cost) / epsilon + log_a[:, None], axis=0)
    return np.exp((phi[:, None] + psi - cost) / epsilon + log_a[:, None] + log_b), phi


def min_transform(phi: Num[np.ndarray, " n"], cost: Num[np.ndarray, "m n"]) -> Num[np.ndarray, " m"]:
    """f(x) = min_y [phi(y) + d(x, y)] (eq-min-transform): the largest 1-Lipschitz function below phi on the points y.

    1-Lipschitz for every phi whatever, provided ``cost`` comes from a metric; exact on whole numbers.

    >>> min_transform(np.array([0, 9]), np.array([[0, 2], [2, 0]])).tolist()
    [0, 2]
    """
    return (phi + cost).min(axis=1)


def _assignment_potential(cost: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """phi, phi_i - phi_k <= cost[i, s(k)] - cost[k, s(k)] of an optimal matching s: shortest paths (Bellman-Ford)."""
    step = cost[:, columns]
    step = step - np.diag(step)
    phi = np.zeros(len(cost))
    for _ in range(len(cost)):
        better = (step + phi).min(axis=1)
        if np.max(phi - better) <= UNIT * np.max(np.abs(better)):
            break
        phi = better
    return phi


# Certificates in whole numbers --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class IntegerCertificate:
    """Whole-number witnesses of W1: a plan and potentials of equal value (thm-integer). `verify` uses integers only."""

    cost: list[list[int]]
    a: list[int]
    b: list[int]
    plan: list[list[int]]
    phi: list[int]
    psi: list[int]

    @property
    def value(self) -> Fraction:
        """The cost of the plan per unit of mass: W1, exactly."""
        rows = zip(self.cost, self.plan, strict=True)
        return Fraction(sum(c * p for row in rows for c, p in zip(*row, strict=True)), sum(self.a))

    def verify(self) -> bool:
        """Whether the plan is feasible, the potentials are feasible, and both have the same value."""
        rows, columns = range(len(self.a)), range(len(self.b))
        dual = sum(f * m for f, m in zip(self.phi, self.a, strict=True))
        dual += sum(g * m for g, m in zip(self.psi, self.b, strict=True))
        return (
            [sum(row) for row in self.plan] == self.a
            and [sum(column) for column in zip(*self.plan, strict=True)] == self.b
            and min(map(min, self.plan)) >= 0
            and all(self.phi[i] + self.psi[j] <= self.cost[i][j] for i in rows for j in columns)
            and self.value * sum(self.a) == dual
        )


def integer_certificate(cost: Sequence[Sequence[int]], a: Sequence[int], b: Sequence[int]) -> IntegerCertificate:
    """Solve in floating point, round, verify in whole numbers (thm-integer): afterwards the solver is irrelevant.

    ``cost``, ``a`` and ``b`` are whole numbers, the masses of equal positive total. Other input raises `InputError`;
    a solution that does not verify raises `ArithmeticError`.

    >>> found = integer_certificate([[0, 1], [1, 0]], [2, 8], [8, 2])
    >>> found.value, found.plan, found.verify()
    (Fraction(3, 5), [[2, 0], [6, 2]], True)
    """
    cost, a, b = [[int(c) for c in row] for row in cost], [int(m) for m in a], [int(m) for m in b]
    fits = len(cost) == len(a) > 0 and {len(row) for row in cost} == {len(b)}
    require(fits, "cost", f"{len(cost)} rows for {len(a)} and {len(b)} masses", "len(a) rows of len(b) costs")
    require(min(a + b) >= 0 and sum(a) == sum(b) > 0, "a, b", (sum(a), sum(b)), "masses >= 0 of equal positive total")
    from scipy.optimize import linprog
    from scipy.sparse import identity, kron, vstack

    m, n = len(a), len(b)
    rows, columns = kron(identity(m), np.ones((1, n))), kron(np.ones((1, m)), identity(n))
    solved = linprog(np.ravel(cost), A_eq=vstack([rows, columns]).tocsr(), b_eq=[*a, *b], method="highs-ds")
    if solved.status == 0:
        plan = [[round(p) for p in row] for row in solved.x.reshape(m, n).tolist()]
        phi, psi = (list(map(round, part.tolist())) for part in np.split(solved.eqlin.marginals, [m]))
        found = IntegerCertificate(cost, a, b, plan, phi, psi)
        if found.verify():
            return found
    raise ArithmeticError(f"the rounded solution of a {m} x {n} transport problem does not verify: {solved.message}")
