"""Pairs of runs that differ in one thing only: two encodings of one cell, or a deep and a wide model of one size.

A difference between two trained cells says something about an encoding or about depth only if all else is equal: the
task, the seed, the test sequences, and either the shape or the size of the model. These functions make such pairs from
a tidy table, refuse a pairing that is not one to one, and give intervals that resample whole cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float

from shiftbound import InputError, require
from shiftbound.statistics import bootstrap

if TYPE_CHECKING:
    import pandas as pd


def paired(
    table: pd.DataFrame, keys: Sequence[str], column: str, first: object, second: object, values: Sequence[str]
) -> pd.DataFrame:
    """One row for every combination of ``keys`` that has both ``first`` and ``second`` in ``column``.

    The columns are ``keys``, then ``<value>_first`` and ``<value>_second`` for each of ``values``. A combination with
    two rows of one side raises `InputError`: the keys leave something out that differs.

    >>> import pandas as pd
    >>> runs = pd.DataFrame({"task": ["a", "a", "b"], "encoding": ["ape", "rope", "ape"], "risk": [0.5, 0.25, 0.125]})
    >>> paired(runs, ["task"], "encoding", "ape", "rope", ["risk"]).to_dict("records")
    [{'task': 'a', 'risk_first': 0.5, 'risk_second': 0.25}]
    """
    require(first != second, "second", second, f"another value than first = {first!r}")
    keys, values = list(keys), list(values)
    sides = [table.loc[table[column] == name, [*keys, *values]] for name in (first, second)]
    for name, side in zip((first, second), sides, strict=True):
        twice = side.duplicated(keys)
        if twice.any():
            shown = ", ".join(f"{key} {value}" for key, value in side.loc[twice, keys].iloc[0].items())
            raise InputError(f"{name!r} stands twice for {shown}; the keys {keys} do not tell these rows apart")
    return sides[0].merge(sides[1], on=keys, suffixes=("_first", "_second"))


def reduction(
    pairs: pd.DataFrame, value: str, cluster: Sequence[str], rng: np.random.Generator, draws: int = 1000
) -> tuple[float, float, float]:
    """By what share the mean of ``value`` is smaller on the second side, 1 - sum second / sum first, with its 95 %
    interval over resampled clusters.

    A ratio of means, so that a pair in which both are nearly 0 weighs nearly nothing; nan where the first sum is not
    positive.

    >>> import pandas as pd
    >>> pairs = pd.DataFrame({"cell": [0, 1], "risk_first": [0.5, 0.3], "risk_second": [0.25, 0.15]})
    >>> reduction(pairs, "risk", ["cell"], np.random.default_rng(0))
    (0.5, 0.5, 0.5)
    """
    above, below = (pairs[f"{value}_{side}"].to_numpy(float) for side in ("second", "first"))
    share, low, high = _quotient(above, below, pairs, cluster, rng, draws)
    return 1 - share, 1 - high, 1 - low


def mean(
    table: pd.DataFrame,
    values: Float[np.ndarray, " n"],
    cluster: Sequence[str],
    rng: np.random.Generator,
    draws: int = 1000,
) -> tuple[float, float, float]:
    """The mean of ``values``, one a row of ``table``, and its 95 % interval over resampled clusters.

    >>> import pandas as pd
    >>> mean(pd.DataFrame({"cell": [0, 1]}), np.array([2.0, 2.0]), ["cell"], np.random.default_rng(0))
    (2.0, 2.0, 2.0)
    """
    values = np.asarray(values, dtype=float)
    require(len(values) == len(table), "values", f"{len(values)} of them", f"one a row of the table, {len(table)}")
    return _quotient(values, np.ones(len(values)), table, cluster, rng, draws)


def _quotient(
    above: np.ndarray,
    below: np.ndarray,
    table: pd.DataFrame,
    cluster: Sequence[str],
    rng: np.random.Generator,
    draws: int,
) -> tuple[float, float, float]:
    """sum above / sum below and its percentile interval: what `shiftbound.statistics.bootstrap` does, for sums.

    Drawing k clusters with replacement counts each a multinomial number of times, and the sums add up by cluster.
    """
    nan = float("nan")
    if not len(table) or not below.sum() > 0:
        return nan, nan, nan
    index = table.groupby(list(cluster), sort=True).ngroup().to_numpy()
    sums = np.stack([np.bincount(index, weights) for weights in (above, below)])
    value, k = float(above.sum() / below.sum()), sums.shape[1]
    if k < 2:
        return value, nan, nan
    tops, bottoms = sums @ rng.multinomial(k, np.full(k, 1 / k), size=draws).T
    low, high = np.quantile(tops[bottoms > 0] / bottoms[bottoms > 0], [0.025, 0.975])
    return value, float(low), float(high)


def matched(table: pd.DataFrame, keys: Sequence[str], size: str, factor: float, values: Sequence[str]) -> pd.DataFrame:
    """Pairs of a wide and a deep model of nearly one ``size``: one row for each two rows of ``table`` that agree on
    ``keys``, where the deep one has more ``depth`` and less ``width`` and the sizes differ by at most ``factor``.

    The columns are ``keys``, then ``depth, width, <size>`` and ``values`` with ``_wide`` and ``_deep``. A model may
    stand in several pairs, so intervals must resample what its pairs share. ``factor`` is at least 1.

    >>> import pandas as pd
    >>> models = pd.DataFrame({"depth": [1, 4, 4], "width": [64, 32, 64], "parameters": [33, 33, 131], "task": "a"})
    >>> matched(models, ["task"], "parameters", 1.5, []).to_dict("records")[0]["width_wide"]
    64
    """
    require(factor >= 1, "factor", factor, "a number of at least 1")
    columns = list(dict.fromkeys(["depth", "width", size, *values]))
    sides = table[[*keys, *columns]].merge(table[[*keys, *columns]], on=list(keys), suffixes=("_wide", "_deep"))
    apart = np.abs(np.log(sides[f"{size}_wide"].to_numpy(float)) - np.log(sides[f"{size}_deep"].to_numpy(float)))
    shaped = (sides.depth_deep > sides.depth_wide) & (sides.width_deep < sides.width_wide)
    return sides[shaped & (apart <= np.log(factor) + 1e-12)].reset_index(drop=True)


def estimate(
    table: pd.DataFrame,
    statistic: Callable[[pd.DataFrame], float],
    cluster: Sequence[str],
    rng: np.random.Generator,
    draws: int = 1000,
) -> tuple[float, float, float]:
    """Any ``statistic`` and its 95 % interval over resampled clusters, for tables that may be too small for either.

    ``table`` should hold the columns that the statistic reads and no others: it is copied for every draw.

    An empty table, or one on which the statistic is not a number, gives three nan; fewer than 2 clusters give a value
    without an interval.

    >>> import pandas as pd
    >>> empty, rng = pd.DataFrame({"cell": [], "risk": []}), np.random.default_rng(0)
    >>> estimate(empty, lambda rows: rows.risk.mean(), ["cell"], rng)
    (nan, nan, nan)
    """
    if not len(table) or not np.isfinite(statistic(table)):
        return float("nan"), float("nan"), float("nan")
    value, low, high = bootstrap(table, statistic, cluster, rng, draws=draws)
    return float(value), low, high


def ends(low: float, high: float, digits: int = 2) -> str:
    """An interval as text for a table; nothing where there is none.

    >>> ends(0.123, 0.456), ends(float("nan"), float("nan"))
    ('[0.12, 0.46]', '')
    """
    return f"[{low:.{digits}f}, {high:.{digits}f}]" if np.isfinite(low) and np.isfinite(high) else ""
