"""Two samples: what their W1 is, what it would be without any shift, and how far it spreads."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Num
from numpy.typing import ArrayLike

from shiftbound import InputError, require
from shiftbound.transport.certificates import w1_certified
from shiftbound.transport.exact import assignable, cityblock, euclidean, line_bounds, masses, w1_exact, w1_line

Metric = Callable[..., np.ndarray]
PAIRS = 100_000_000  # entries of the largest cost matrix that `compare` builds


def noise_floor(sample: Num[np.ndarray, "n d"], metric: Metric, rng: np.random.Generator, splits: int = 10) -> float:
    """The W1 of one law against itself: the median over random ``splits`` of W1 between the two halves of the sample.

    Halves have floor(n / 2) points, so this overstates the floor at n. Fewer than 2 points raise `InputError`.

    >>> noise_floor(np.array([[0.0], [1.0]]), euclidean, np.random.default_rng(0))
    1.0
    """
    require(len(sample) >= 2, "sample", f"{len(sample)} points", "at least 2 points")
    half = len(sample) // 2
    orders = [rng.permutation(len(sample)) for _ in range(splits)]
    return float(np.median([_w1(sample[o[:half]], sample[o[half : 2 * half]], metric) for o in orders]))


def interval(
    x: Num[np.ndarray, "m d"],
    y: Num[np.ndarray, "n d"],
    metric: Metric,
    rng: np.random.Generator,
    m: int | None = None,
    draws: int = 200,
) -> tuple[float, float]:
    """The central 95 % of W_n + √(m/n) (W*_m - median W*_m), W*_m from m points, drawn without replacement.

    A spread, not coverage of the population's W1. ``m`` defaults to a quarter of the smaller sample; n is the harmonic
    mean of the two sizes. Samples too small for one point raise `InputError`.

    >>> x = np.arange(16.0)[:, None]
    >>> interval(x, x + 5, euclidean, np.random.default_rng(0), draws=20)[0] < 5
    True

    Source: Sommerfeld and Munk (2018) for why m must be small beside n.
    """
    if _on_line(x, metric):
        return _spread(w1_line(x[:, 0], y[:, 0]), lambda i, j: w1_line(x[i, 0], y[j, 0]), len(x), len(y), rng, m, draws)
    return interval_from_cost(metric(x, y), rng, m, draws)


def interval_from_cost(
    cost: Num[np.ndarray, "m n"], rng: np.random.Generator, m: int | None = None, draws: int = 200
) -> tuple[float, float]:
    """`interval` from the cost matrix of two uniform samples.

    >>> interval_from_cost(np.full((8, 8), 3.0), np.random.default_rng(0), draws=5)
    (3.0, 3.0)
    """
    return _spread(w1_exact(cost), lambda i, j: w1_exact(cost[np.ix_(i, j)]), *cost.shape, rng, m, draws)


def _spread(w1: float, between, nx: int, ny: int, rng: np.random.Generator, m: int | None, draws: int) -> tuple:
    m = min(nx, ny) // 4 if m is None else m
    require(1 <= m <= min(nx, ny), "m", m, f"from 1 to the smaller sample's size {min(nx, ny)}")
    require(draws >= 1, "draws", draws, "a whole number of at least 1")
    n = 2 * nx * ny / (nx + ny)
    seen = np.array([between(rng.choice(nx, m, replace=False), rng.choice(ny, m, replace=False)) for _ in range(draws)])
    low, high = np.quantile(w1 + math.sqrt(m / n) * (seen - np.median(seen)), [0.025, 0.975])
    return float(low), float(high)


def compare(
    x: ArrayLike,
    y: ArrayLike,
    metric: Metric = euclidean,
    *,
    a: ArrayLike | None = None,
    b: ArrayLike | None = None,
    seed: int = 0,
    names: tuple[str, str] = ("x", "y"),
) -> dict[str, object]:
    """Everything `shiftbound w1` says of two samples (rows are points; one column or a flat list is the line).

    Keys: ``w1``, ``lower``, ``upper`` (certified), ``floor`` (a pair), ``interval`` (a pair), ``n`` (a pair),
    ``dimension``, ``metric``, ``method``. ``floor`` and ``interval`` are None, and ``method`` says why, for weighted
    samples and below 4 points. Every refusal is an `InputError` of one sentence that uses ``names``.

    >>> found = compare([0, 1, 2, 3], [1, 2, 3, 4])
    >>> round(found["w1"], 12), found["n"], found["dimension"], found["metric"]
    (1.0, [4, 4], 1, 'euclidean')
    """
    x, y = (_points(points, name) for points, name in zip((x, y), names, strict=True))
    if x.shape[1] != y.shape[1]:
        raise InputError(
            f"{names[0]} has points of dimension {x.shape[1]} and {names[1]} of dimension {y.shape[1]}; "
            "both must have the same"
        )
    weights = [masses(w, len(p), f"weights of {name}") for w, p, name in zip((a, b), (x, y), names, strict=True)]
    line = _on_line(x, metric)
    if line:
        lower, w1, upper = line_bounds(x[:, 0], y[:, 0], *weights)
        notes = ["closed form on the line"]
    else:
        if len(x) * len(y) > PAIRS:
            raise InputError(f"{names[0]} and {names[1]} make {len(x)} x {len(y)} pairs; at most {PAIRS} are allowed")
        found = w1_certified(metric(x, y), *weights)
        lower, w1, upper = found.lower, found.w1, found.upper
        notes = ["exact assignment" if assignable(*weights) else "exact linear program by network simplex"]
    floor = spread = None
    if a is not None or b is not None:
        notes.append("weights divided by their sums; no floor and no interval for weighted samples")
    elif min(len(x), len(y)) < 4:
        notes.append("no floor and no interval below 4 points")
    else:
        rng = np.random.default_rng(seed)
        floor = [noise_floor(sample, metric, rng) for sample in (x, y)]
        spread = list(interval(x, y, metric, rng))
        notes.append("floor from 10 split halves, interval from 200 draws of a quarter")
    return {
        "w1": w1, "lower": lower, "upper": upper, "floor": floor, "interval": spread, "n": [len(x), len(y)],
        "dimension": x.shape[1], "metric": getattr(metric, "__name__", "custom"), "method": "; ".join(notes),
    }  # fmt: skip


def _points(points: ArrayLike, name: str) -> Float[np.ndarray, "n d"]:
    try:
        array = np.asarray(points, dtype=float)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is not a table of numbers; it must hold rows of equally many numbers") from error
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or 0 in array.shape:
        raise InputError(f"{name} has the shape {array.shape}; it must be a table with at least one row and one column")
    if not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array).all(axis=1)))
        raise InputError(f"{name} holds NaN or infinity in row {row + 1}; every entry must be a finite number")
    return array


def _on_line(x: np.ndarray, metric: Metric) -> bool:
    return x.shape[1] == 1 and metric in (euclidean, cityblock)


def _w1(x: np.ndarray, y: np.ndarray, metric: Metric) -> float:
    return w1_line(x[:, 0], y[:, 0]) if _on_line(x, metric) else w1_exact(metric(x, y))
