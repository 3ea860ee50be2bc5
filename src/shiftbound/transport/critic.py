"""A trained critic: a small network that learns a Kantorovich potential and is certified afterwards."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Num

from shiftbound import require


def train_critic(
    features: Num[np.ndarray, "n d"],
    signed: Num[np.ndarray, " n"],
    cost: Num[np.ndarray, "n n"],
    *,
    width: int = 32,
    steps: int = 300,
    seed: int = 0,
    every: int = 10,
    penalty: float = 10.0,
    rate: float = 0.01,
) -> tuple[list[int], Float[np.ndarray, "snapshots n"]]:
    """The values phi on n points of a network trained by Adam to maximise eq-critic, recorded every ``every`` steps.

    One hidden layer of ``width`` tanh units; ``features`` describe the points, ``signed`` is μ - ν, ``cost`` the metric
    on the points. As in WGAN-GP, a ``penalty`` on slopes |phi_i - phi_j| / cost_ij above 1 asks for a 1-Lipschitz phi
    without ensuring it. Returns the steps and one row of values each. Sizes below 1 raise `InputError`.

    >>> line = np.arange(3.0)[:, None]
    >>> steps, phi = train_critic(line, np.array([0.5, 0, -0.5]), abs(line - line.T), steps=20)
    >>> steps, phi.shape, bool(phi[-1, 0] > phi[-1, 2])
    ([0, 10, 20], (3, 3), True)

    Source: Gulrajani et al. (2017), with the penalty on all pairs of points; Kingma and Ba (2015) for Adam.
    """
    for name, value in {"width": width, "steps": steps, "every": every}.items():
        require(value >= 1, name, value, "a whole number of at least 1")
    scale = features.std(axis=0)
    points = (features - features.mean(axis=0)) / np.where(scale > 0, scale, 1)
    points = np.column_stack([points, np.ones(len(points))])
    rng = np.random.default_rng(seed)
    inner = rng.normal(size=(points.shape[1], width)) / np.sqrt(points.shape[1])
    outer = rng.normal(size=width) / np.sqrt(width)
    weights, moments = [inner, outer], [[0.0, 0.0], [0.0, 0.0]]
    at, snapshots = [], []
    for step in range(steps + 1):
        hidden = np.tanh(points @ weights[0])
        phi = hidden @ weights[1]
        if step % every == 0 or step == steps:
            at.append(step)
            snapshots.append(phi)
        slope = gradient(phi, signed, cost, penalty)
        slopes = [points.T @ (np.outer(slope, weights[1]) * (1 - hidden**2)), hidden.T @ slope]
        for i, each in enumerate(slopes):
            moments[i] = [0.9 * moments[i][0] + 0.1 * each, 0.999 * moments[i][1] + 0.001 * each**2]
            mean, square = moments[i][0] / (1 - 0.9 ** (step + 1)), moments[i][1] / (1 - 0.999 ** (step + 1))
            weights[i] = weights[i] - rate * mean / (np.sqrt(square) + 1e-8)
    return at, np.stack(snapshots)


def gradient(
    phi: Num[np.ndarray, " n"], signed: Num[np.ndarray, " n"], cost: Num[np.ndarray, "n n"], penalty: float
) -> Float[np.ndarray, " n"]:
    """The gradient in phi of -Σ phi · signed + penalty · mean over pairs of (|phi_i - phi_j| / cost_ij - 1)²₊.

    >>> gradient(np.array([3.0, 0.0]), np.array([1.0, -1.0]), np.array([[0.0, 1.0], [1.0, 0.0]]), 1.0).tolist()
    [3.0, -3.0]
    """
    pairs = cost > 0
    distance = np.where(pairs, cost, 1)
    difference = phi[:, None] - phi
    excess = np.maximum(abs(difference) / distance - 1, 0) * pairs
    return 4 * penalty / max(pairs.sum(), 1) * (excess * np.sign(difference) / distance).sum(axis=1) - signed
