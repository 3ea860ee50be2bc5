"""The cost model: recovered where it is exact, honest about its error, refused where it cannot be fitted."""

import numpy as np
import pandas as pd
import pytest

from shiftbound import InputError, tasks
from shiftbound.costs import fit, tokens
from shiftbound.runs import Run

SHAPES = [(depth, width) for depth in (1, 2, 4) for width in (32, 64, 128)]


def made(coefficients, noise=0.0):
    rng, rows = np.random.default_rng(0), []
    for i, (depth, width) in enumerate(SHAPES):
        steps = 300 + 100 * i
        per_token = np.dot(coefficients, [1, depth, depth * width, depth * width**2])
        seconds = 32 * steps * 27 * per_token * np.exp(noise * rng.normal())
        rows.append({"depth": depth, "width": width, "steps_taken": steps, "seconds_cpu": seconds})
    return pd.DataFrame(rows)


def test_an_exact_law_is_recovered_and_extrapolated():
    law = np.array([2e-7, 3e-6, 4e-8, 5e-10])
    model = fit(made(law))
    np.testing.assert_allclose(model.coefficients, law, rtol=1e-6)
    assert model.error < 1e-9
    run = Run(task="dyck", encoding="rope", depth=12, width=1024, steps=10, batch=4, length=64)
    expected = 10 * 4 * (1 + (64 + 36) / 2) * (law @ [1, 12, 12 * 1024, 12 * 1024**2])
    assert model.seconds(run) == pytest.approx(expected)


def test_noise_is_told_and_nothing_is_negative():
    model = fit(made(np.array([0.0, 3e-6, 0.0, 5e-10]), noise=0.1))
    assert (model.coefficients >= 0).all() and 0.01 < model.error < 0.2


@pytest.mark.parametrize("length", [2, 8, 10, 32])
def test_tokens_against_the_draws(length):
    run = Run(task="dyck", encoding="rope", depth=1, width=16, steps=1, batch=2, length=length)
    rng = np.random.default_rng(0)
    drawn = [tasks.get("dyck").train_batch(rng, 1, length).tokens.shape[1] for _ in range(3000)]
    assert abs(np.mean(drawn) - tokens(run) / 2) < 5 * np.std(drawn) / 3000**0.5 + 1e-9


def test_too_few_shapes_are_refused():
    with pytest.raises(InputError, match="3 shapes"):
        fit(made(np.ones(4))[:3])
