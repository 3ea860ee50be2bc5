"""What training costs: CPU seconds a token by the shape of the model, fitted on the runs that were made.

    seconds a token = c_0 + c_1 depth + c_2 depth width + c_3 depth width^2,   c >= 0

The first term is what every step pays, the second what every layer pays, the third what grows with the residual stream
(norms, activations, attention at fixed length), the fourth the matrix products. The coefficients are the non-negative
ones with the least squared *relative* error, so that a small model counts as much as a large one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from shiftbound import require
from shiftbound.runs import Run

if TYPE_CHECKING:
    import pandas as pd


def tokens(run: Run, steps: int | None = None) -> float:
    """Tokens, BOS included, that ``run`` reads in ``steps`` steps (all of them, if None), on average over its draws.

    Half of the batches have the training length, the others an even length from 8 up to it, uniformly.

    >>> tokens(Run(task="dyck", encoding="rope", depth=1, width=16, steps=10, batch=2, length=32))
    540.0
    """
    shorter = (8 + run.length) / 2 if run.length >= 8 else run.length
    return (run.steps if steps is None else steps) * run.batch * (1 + (run.length + shorter) / 2)


@dataclass(frozen=True)
class CostModel:
    """Seconds a token by shape; ``error`` is the root mean squared relative error on the runs that it was fitted on."""

    coefficients: Float[ndarray, " 4"]
    error: float

    def seconds(self, run: Run) -> float:
        """CPU seconds that all steps of ``run`` should take."""
        return float(tokens(run) * (_features(np.array([run.depth]), np.array([run.width])) @ self.coefficients)[0])


def fit(table: pd.DataFrame, batch: int = 32, length: int = 32) -> CostModel:
    """The cost model of runs that were trained with ``batch`` and ``length``; ``table`` has one row a run with columns
    ``depth, width, steps_taken, seconds_cpu``. Raises `InputError` below four different shapes.

    Source: Lawson and Hanson, Solving Least Squares Problems (1974), for non-negative least squares.
    """
    from scipy.optimize import nnls

    shapes = len(table[["depth", "width"]].drop_duplicates())
    require(shapes >= 4, "table", f"{shapes} shapes", "of at least 4 different depths and widths")
    depth, width = table.depth.to_numpy(float), table.width.to_numpy(float)
    one_step = Run(task="dyck", encoding="rope", depth=1, width=16, batch=batch, length=length)
    seen = table.seconds_cpu.to_numpy(float) / (tokens(one_step, 1) * table.steps_taken.to_numpy(float))
    relative = _features(depth, width) / seen[:, None]
    scale = relative.max(0)
    coefficients = nnls(relative / scale, np.ones(len(seen)))[0] / scale
    return CostModel(coefficients, float(np.sqrt(np.mean((relative @ coefficients - 1) ** 2))))


def _features(depth: ndarray, width: ndarray) -> Float[ndarray, "s 4"]:
    depth, width = depth.astype(float), width.astype(float)
    return np.stack([np.ones_like(depth), depth, depth * width, depth * width**2], 1)
