"""Statistics by a second route each: SciPy, brute force over permutations, simulation."""

import itertools

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from shiftbound import InputError, statistics


@pytest.mark.parametrize("seed", range(5))
def test_spearman_is_scipys(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 6, 30).astype(float), rng.normal(size=30)
    assert statistics.spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic, abs=1e-12)


def test_spearman_of_a_constant_is_not_a_number():
    assert np.isnan(statistics.spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]))
    assert np.isnan(statistics.spearman([1.0, 2.0], [1.0, 2.0]))


def test_permutation_p_against_all_permutations():
    x, y = np.arange(6.0), np.array([1.0, 0.0, 2.0, 4.0, 3.0, 5.0])
    rho = abs(statistics.spearman(x, y))
    exact = np.mean([abs(statistics.spearman(x, p)) >= rho - 1e-12 for p in itertools.permutations(y)])
    drawn = statistics.permutation_p(x, y, np.random.default_rng(0), draws=20000)
    assert drawn == pytest.approx(exact, abs=5 * np.sqrt(exact / 20000) + 1e-4)


def _simpson() -> pd.DataFrame:
    """Inside each of 8 cells y rises with x; across cells it falls."""
    rows = [
        {"cell": cell, "family": "f", "x": 10 * cell + level, "y": -10 * cell + level}
        for cell in range(8)
        for level in range(5)
    ]
    return pd.DataFrame(rows).astype({"x": float, "y": float})


def test_simpsons_paradox_is_taken_apart():
    table = _simpson()
    assert statistics.spearman(table.x, table.y) < -0.9
    assert (statistics.within(table, "x", "y", ["cell", "family"]).rho == 1).all()
    assert statistics.adjusted(table, "x", "y", ["cell", "family"]) == pytest.approx(1)


def test_adjusted_against_a_loop():
    rng = np.random.default_rng(3)
    table = pd.DataFrame({"g": rng.integers(0, 4, 40), "x": rng.normal(size=40), "y": rng.normal(size=40)})
    rx, ry = stats.rankdata(table.x), stats.rankdata(table.y)
    for g in range(4):
        rx[table.g == g] -= rx[table.g == g].mean()
        ry[table.g == g] -= ry[table.g == g].mean()
    assert statistics.adjusted(table, "x", "y", ["g"]) == pytest.approx(np.corrcoef(rx, ry)[0, 1])


def test_bootstrap_covers_a_mean_of_clusters():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(60):
        centres = rng.normal(size=25)
        table = pd.DataFrame(
            {"c": np.repeat(np.arange(25), 4), "v": np.repeat(centres, 4) + 0.1 * rng.normal(size=100)}
        )
        _, low, high = statistics.bootstrap(table, lambda t: t.v.mean(), ["c"], rng, draws=200)
        hits += low <= 0 <= high
    assert hits >= 48  # 95 % nominal of 60 is 57; 48 is five standard errors below


def test_bootstrap_of_one_cluster_has_no_interval():
    table = pd.DataFrame({"c": [0, 0], "v": [1.0, 2.0]})
    estimate, low, high = statistics.bootstrap(table, lambda t: t.v.mean(), ["c"], np.random.default_rng(0))
    assert estimate == 1.5 and np.isnan(low) and np.isnan(high)


def test_clopper_pearson_against_the_binomial():
    low, high = statistics.clopper_pearson(3, 50)
    assert stats.binom.sf(2, 50, low) == pytest.approx(0.025, rel=1e-6)
    assert stats.binom.cdf(3, 50, high) == pytest.approx(0.025, rel=1e-6)


@pytest.mark.parametrize(("errors", "trials"), [(-1, 5), (6, 5), (0, 0)])
def test_clopper_pearson_refuses(errors, trials):
    with pytest.raises(InputError, match="errors"):
        statistics.clopper_pearson(errors, trials)


def test_seeds_shows_the_spread():
    table = pd.DataFrame({"cell": ["a", "a", "b"], "risk": [0.1, 0.3, 0.5]})
    assert statistics.seeds(table, ["cell"], "risk").to_dict("list") == {
        "cell": ["a", "b"], "mean": [0.2, 0.5], "least": [0.1, 0.5], "greatest": [0.3, 0.5], "seeds": [2, 1]
    }  # fmt: skip
