"""Honest statistics for tables of runs: rank correlations inside and across cells, intervals, permutations, seeds.

The unit of replication is the trained cell, not the row: the rows of one cell share a model and its training data, so
intervals resample whole cells. A correlation pooled over cells and families mixes three different questions and is
called "confounded" wherever the book prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from shiftbound import require

if TYPE_CHECKING:
    import pandas as pd


def ranks(values: Float[ndarray, " n"]) -> Float[ndarray, " n"]:
    """Ranks 1..n, ties sharing their mean rank.

    >>> ranks(np.array([3.0, 1.0, 3.0])).tolist()
    [2.5, 1.0, 2.5]
    """
    from scipy.stats import rankdata

    return rankdata(values)


def spearman(x: Collection[Real], y: Collection[Real]) -> float:
    """Spearman's rho: the correlation of the ranks; nan where one side is constant or there are fewer than 3 pairs.

    >>> spearman([1, 2, 3, 4], [10, 20, 40, 30])
    0.8
    """
    x, y = _pairs(x, y)
    return _pearson(ranks(x), ranks(y)) if len(x) >= 3 else float("nan")


def permutation_p(x: Collection[Real], y: Collection[Real], rng: np.random.Generator, draws: int = 2000) -> float:
    """Two-sided permutation p-value of Spearman's rho, (1 + #{|rho*| >= |rho|}) / (1 + draws)."""
    x, y = _pairs(x, y)
    rx, ry = ranks(x), ranks(y)
    observed = abs(_pearson(rx, ry))
    if not np.isfinite(observed):
        return float("nan")
    shuffled = rng.permuted(np.tile(ry, (draws, 1)), axis=1)
    rho = (shuffled - ry.mean()) @ (rx - rx.mean()) / (len(rx) * rx.std() * ry.std())
    return float((1 + np.sum(np.abs(rho) >= observed - 1e-12)) / (1 + draws))


def within(table: pd.DataFrame, x: str, y: str, groups: Sequence[str]) -> pd.DataFrame:
    """Spearman's rho of ``y`` on ``x`` inside every group: one row a group, with the number of levels it rests on."""
    import pandas as pd

    rows = [
        {**dict(zip(groups, key, strict=True)), "levels": len(part), "rho": spearman(part[x], part[y])}
        for key, part in table.groupby(list(groups), sort=True, observed=True)
    ]
    return pd.DataFrame(rows, columns=[*groups, "levels", "rho"])


def adjusted(table: pd.DataFrame, x: str, y: str, groups: Sequence[str]) -> float:
    """Rank correlation after the groups' means are removed from the ranks: what is left inside groups, pooled.

    rho = corr(r_x - mean_g r_x, r_y - mean_g r_y), ranks over the whole table.
    """
    require(len(table) >= 3, "table", f"{len(table)} rows", "at least 3 rows long")
    keys = [table[name].to_numpy() for name in groups]
    left, right = ranks(table[x].to_numpy(float)), ranks(table[y].to_numpy(float))
    _, index = np.unique(np.array(["\0".join(map(str, key)) for key in zip(*keys, strict=True)]), return_inverse=True)
    return _pearson(_centred(left, index), _centred(right, index))


def bootstrap(
    table: pd.DataFrame,
    statistic: Callable[[pd.DataFrame], float],
    cluster: Sequence[str],
    rng: np.random.Generator,
    draws: int = 1000,
    level: float = 0.95,
) -> tuple[float, float, float]:
    """``statistic`` of the table and its percentile interval over resampled clusters: (estimate, low, high).

    A cluster drawn twice counts as two: its copies get different values in the column ``copy``, so a statistic that
    removes cluster means should group by ``copy`` too. With fewer than 2 clusters the interval is (nan, nan).
    """
    require(0 < level < 1, "level", level, "between 0 and 1")
    indices = table.reset_index(drop=True).groupby(list(cluster)).indices
    parts = [np.asarray(rows) for _, rows in sorted(indices.items())]
    estimate = statistic(table.assign(copy=0))
    if len(parts) < 2:
        return estimate, float("nan"), float("nan")
    values = []
    for _ in range(draws):
        drawn = [parts[i] for i in rng.integers(len(parts), size=len(parts))]
        copies = np.repeat(np.arange(len(drawn)), [len(rows) for rows in drawn])
        values.append(statistic(table.iloc[np.concatenate(drawn)].assign(copy=copies)))
    low, high = np.nanquantile(values, [(1 - level) / 2, (1 + level) / 2])
    return estimate, float(low), float(high)


def seeds(table: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """Mean, least and greatest ``value`` over seeds and how many there are, one row a combination of ``by``."""
    grouped = table.groupby(list(by), sort=True, observed=True)[value]
    return grouped.agg(mean="mean", least="min", greatest="max", seeds="count").reset_index()


def clopper_pearson(errors: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The exact binomial interval for an error rate, from ``errors`` in ``trials``.

    >>> tuple(round(end, 4) for end in clopper_pearson(0, 2000))
    (0.0, 0.0018)
    """
    require(
        0 <= errors <= trials and trials > 0, "errors", errors, f"between 0 and trials = {trials}, which is positive"
    )
    from scipy.stats import beta

    tail = (1 - level) / 2
    low = 0.0 if errors == 0 else float(beta.ppf(tail, errors, trials - errors + 1))
    high = 1.0 if errors == trials else float(beta.ppf(1 - tail, errors + 1, trials - errors))
    return low, high


def verdict(low: float, high: float, *, above: float) -> str:
    """What an interval says of the claim "the quantity is above ``above``", in the ledger's words.

    >>> verdict(0.2, 0.9, above=0.0), verdict(-0.9, -0.2, above=0.0), verdict(-0.1, 0.9, above=0.0)
    ('supported by measurement', 'contradicted by measurement', 'inconclusive')
    """
    if low > above:
        return "supported by measurement"
    return "contradicted by measurement" if high < above else "inconclusive"


def _pairs(x: Collection[Real], y: Collection[Real]) -> tuple[ndarray, ndarray]:
    x, y = np.asarray(x, float), np.asarray(y, float)
    require(
        x.shape == y.shape and x.ndim == 1, "y", f"shape {y.shape}", f"of the shape of x, {x.shape}, one-dimensional"
    )
    return x, y


def _pearson(x: ndarray, y: ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / scale) if scale > 1e-12 else float("nan")


def _centred(values: ndarray, index: ndarray) -> ndarray:
    return values - (np.bincount(index, values) / np.bincount(index))[index]
