"""Pairs of runs by a second route: plain loops over dictionaries."""

import itertools

import numpy as np
import pandas as pd
import pytest

from shiftbound import InputError, comparisons, statistics


def _runs(seed: int = 0) -> pd.DataFrame:
    """Two tasks, two encodings, three depths and widths, two seeds; parameters as the decoder's layers have them."""
    rng = np.random.default_rng(seed)
    axes = itertools.product(["a", "b"], ["ape", "rope"], [1, 2, 4], [32, 64, 128], [0, 1])
    return pd.DataFrame(
        [
            {"task": t, "encoding": e, "depth": d, "width": w, "seed": s, "parameters": 8 * d * w**2}
            | {"risk": rng.random()}
            for t, e, d, w, s in axes
        ]
    )


KEYS = ["task", "depth", "width", "seed"]


def test_every_pair_holds_the_two_runs_that_it_names():
    table = _runs()
    pairs = comparisons.paired(table.sample(frac=1, random_state=1), KEYS, "encoding", "ape", "rope", ["risk"])
    found = {
        (*row[:4], side): row[4 + (side == "rope")] for row in pairs.to_numpy().tolist() for side in ("ape", "rope")
    }
    assert found == {(r.task, r.depth, r.width, r.seed, r.encoding): r.risk for r in table.itertuples()}


def test_a_run_without_a_partner_makes_no_pair():
    table = _runs().drop(index=0)
    pairs = comparisons.paired(table, KEYS, "encoding", "ape", "rope", ["risk"])
    assert len(pairs) == len(table) // 2 == 35


def test_keys_that_leave_something_out_are_refused():
    with pytest.raises(InputError, match="'ape' stands twice for task a, depth 1, width 32"):
        comparisons.paired(_runs(), ["task", "depth", "width"], "encoding", "ape", "rope", ["risk"])
    with pytest.raises(InputError, match="second = 'ape' is not allowed"):
        comparisons.paired(_runs(), KEYS, "encoding", "ape", "ape", ["risk"])


def test_the_reduction_is_a_ratio_of_means():
    pairs = pd.DataFrame({"cell": [0, 1], "risk_first": [0.4, 0.0001], "risk_second": [0.1, 0.0003]})
    value, low, high = comparisons.reduction(pairs, "risk", ["cell"], np.random.default_rng(0))
    assert value == pytest.approx(1 - 0.1003 / 0.4001)
    assert low == pytest.approx(1 - 3)
    assert high == pytest.approx(1 - 0.25)
    negative = pairs.assign(risk_first=-1.0)
    for each in (negative, pairs.iloc[:0]):
        assert np.isnan(comparisons.reduction(each, "risk", ["cell"], np.random.default_rng(0))).all()


def test_the_fast_intervals_are_those_of_the_cluster_bootstrap():
    """Two routes to one distribution: the ends agree up to the error of 4000 draws each."""
    pairs = comparisons.paired(_runs(), KEYS, "encoding", "ape", "rope", ["risk"])
    cluster, draws = ["task", "depth"], 4000
    for statistic, fast in (
        (lambda t: float(1 - t.risk_second.sum() / t.risk_first.sum()), comparisons.reduction),
        (lambda t: t.risk_first.mean(), lambda t, _, *rest: comparisons.mean(t, t.risk_first.to_numpy(), *rest)),
    ):
        value, low, high = fast(pairs, "risk", cluster, np.random.default_rng(0), draws)
        slow = statistics.bootstrap(pairs, statistic, cluster, np.random.default_rng(1), draws=draws)
        assert value == pytest.approx(slow[0], abs=1e-12)
        assert [low, high] == pytest.approx(slow[1:], abs=0.1 * (high - low))


def test_a_mean_needs_one_value_a_row():
    table, rng = _runs(), np.random.default_rng(0)
    with pytest.raises(InputError, match=r"values = .3 of them. is not allowed"):
        comparisons.mean(table, np.zeros(3), ["task"], rng)
    value, low, high = comparisons.mean(table.assign(lone=0), table.risk.to_numpy(), ["lone"], rng)
    assert value == pytest.approx(table.risk.mean())
    assert np.isnan([low, high]).all()


@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0, 4.0])
def test_matched_models_are_those_that_a_loop_finds(factor):
    table = _runs()
    same = ["task", "encoding", "seed"]
    found = comparisons.matched(table, same, "parameters", factor, ["risk"])
    expected = [
        (wide.risk, deep.risk)
        for wide, deep in itertools.product(table.itertuples(), table.itertuples())
        if all(getattr(wide, key) == getattr(deep, key) for key in same)
        and deep.depth > wide.depth
        and deep.width < wide.width
        and 1 / factor <= deep.parameters / wide.parameters <= factor
    ]
    assert sorted(zip(found.risk_wide, found.risk_deep, strict=True)) == sorted(expected)
    assert len(expected) == {1.0: 16, 1.5: 16, 2.0: 48, 4.0: 56}[factor]


def test_a_factor_below_one_is_refused():
    with pytest.raises(InputError, match=r"factor = 0\.5 is not allowed"):
        comparisons.matched(_runs(), ["task"], "parameters", 0.5, [])


def test_an_estimate_is_the_bootstrap_where_there_is_one():
    table, rng = _runs(), np.random.default_rng(0)
    value, low, high = comparisons.estimate(table, lambda rows: rows.risk.mean(), ["task", "depth"], rng, draws=200)
    assert value == pytest.approx(table.risk.mean())
    assert low < value < high
    alone = comparisons.estimate(table[table.depth == 1], lambda rows: rows.risk.mean(), ["depth"], rng)
    assert np.isfinite(alone[0])
    assert np.isnan(alone[1:]).all()
    assert np.isnan(comparisons.estimate(table, lambda rows: float("nan"), ["task"], rng)).all()
