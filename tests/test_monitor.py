"""The monitor: what it says of a run, and that watching changes nothing."""

import hashlib
from itertools import permutations

import numpy as np
import pytest

from shiftbound import InputError, evaluation, tasks, training
from shiftbound.evaluation import Observation
from shiftbound.monitor import Monitor, compare
from shiftbound.runs import Run

RUN = Run(task="dyck", encoding="ape", depth=1, width=16, steps=200, length=16, early_stop=False, dropout=0.1)
DYCK = tasks.get("dyck")


def weights(trained: training.Trained) -> str:
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in trained.model.parameters())).hexdigest()


def observation(states, predictions, labels) -> Observation:
    counts = np.array([[1, 1, 0, 0]] * len(labels))
    return Observation(counts, np.array(states, float), np.array(predictions, float), np.array(labels), (0.0,), 0.0)


def test_watching_changes_nothing():
    watch = Monitor(DYCK, DYCK.shift("length", 64), sequences=32, draws=10)
    assert weights(training.train(RUN, watch=watch)) == weights(training.train(RUN))
    assert [row["step"] for row in watch.rows] == [100, 200]


def test_the_last_look_is_what_scoring_the_model_says():
    target = DYCK.shift("length", 64)
    watch = Monitor(DYCK, target, sequences=64, draws=10)
    trained = training.train(RUN, watch=watch)
    home, away = (
        evaluation.observe(trained.model, DYCK.evaluation_batch(shift, 64)) for shift in (DYCK.reference(), target)
    )
    row = watch.rows[-1]
    assert row["accuracy"] == away.accuracy() and row["risk"] == pytest.approx(home.accuracy() - away.accuracy())
    assert row["rise"] == pytest.approx(evaluation.soft_risk(away).mean() - evaluation.soft_risk(home).mean())
    assert abs(row["rise"]) <= row["bound"] + 1e-9


def test_distances_against_all_matchings():
    rng = np.random.default_rng(0)
    sides = []
    for shift in (0.0, 0.1, 2.0):
        p = rng.dirichlet([1, 1, 1], size=5)
        sides.append(observation(rng.normal(size=(5, 2)) + shift, p, rng.integers(3, size=5)))
    home, again, away = sides
    said = compare(home, again, away, draws=5)
    unit = np.sqrt((home.states**2).sum(1).mean())

    def least(cost):
        return min(np.mean([cost(i, j) for i, j in enumerate(order)]) for order in permutations(range(5)))

    def joint(i, j):
        return max(abs(home.predictions[i] - away.predictions[j]).max(), home.labels[i] != away.labels[j])

    assert said["w1"] == pytest.approx(least(lambda i, j: np.linalg.norm(home.states[i] - away.states[j]) / unit))
    assert said["w1_floor"] == pytest.approx(
        least(lambda i, j: np.linalg.norm(home.states[i] - again.states[j]) / unit)
    )
    assert said["bound"] == pytest.approx(least(joint))


def test_one_model_state_far_away_raises_the_alarm_and_the_same_sample_does_not():
    rng = np.random.default_rng(1)
    predictions, labels = np.full((40, 2), 0.5), np.zeros(40, int)
    home, again, far = (observation(rng.normal(size=(40, 2)) + by, predictions, labels) for by in (0, 0, 9))
    assert compare(home, again, far)["alarm"] and not compare(home, again, home)["alarm"]


def test_too_few_sequences_are_refused():
    with pytest.raises(InputError, match="sequences = 3"):
        Monitor(DYCK, DYCK.shift("length", 64), sequences=3)
