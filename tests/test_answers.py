"""Whole answers: greedy decoding against the naive loop, every share against Python's integers, theory a row each."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from shiftbound import InputError, answers, tasks, training
from shiftbound.runs import Run, Scoring
from shiftbound.transformer import Transformer

FORMATS = ("repo", "separate", "column")
SOME = [{"format": f, **o} for f in FORMATS for o in ({}, {"modulus": 28}, {"operation": "multiplication", "base": 2})]


def make(**options):
    return tasks.get("arithmetic", **{"pad": 7, "test_digits": 6} | options)


def untrained(task) -> Transformer:
    torch.manual_seed(0)
    return Transformer(task.vocab, task.classes, depth=2, width=32)


class Oracle(torch.nn.Module):
    """Writes what ``answer(a, b)`` says, whatever stands after `=`; a negative answer is written as a mark."""

    def __init__(self, task, answer) -> None:
        super().__init__()
        self.task, self.answer = task, answer

    def forward(self, tokens):
        a, b = self.task.operands(tokens.numpy())
        value = np.array([self.answer(x, y) for x, y in zip(a.tolist(), b.tolist(), strict=True)])
        said = self.task.label(self.task.rows(a, b)).labels
        start = said.shape[1] - self.task.answers
        said[:, start : start + self.task.width] = 1 + self.task.digits(np.maximum(value, 0), self.task.width)
        said[value < 0, start] = self.task.base + 1
        return torch.nn.functional.one_hot(torch.from_numpy(np.maximum(said, 0)), self.task.classes).float()


@torch.no_grad()
def naive(model, task, tokens):
    rows = torch.from_numpy(tokens[:, : tokens.shape[1] - task.answers + 1])
    written = []
    for _ in range(task.answers):
        written.append(model(rows)[:, -1].argmax(-1))
        rows = torch.cat([rows, written[-1][:, None]], 1)
    return torch.stack(written, 1).numpy()


@pytest.mark.parametrize("options", SOME)
def test_greedy_is_the_loop_that_writes_one_token_at_a_time(options, monkeypatch):
    task = make(**options)
    model, tokens = untrained(task), task.evaluation_batch(task.shift("digits", 5), 40).tokens
    expected = naive(model, task, tokens)
    assert np.array_equal(answers.greedy(model, tokens, task.answers), expected)
    monkeypatch.setattr(answers, "TOKENS", 64)  # several passes a guess
    assert np.array_equal(answers.greedy(model, tokens, task.answers), expected)


def test_greedy_does_not_look_at_the_true_answer():
    task = make()
    batch = task.evaluation_batch(task.shift("digits", 5), 40)
    other = task.truncated(batch)
    assert not np.array_equal(batch.tokens, other.tokens)
    model = untrained(task)
    assert np.array_equal(
        answers.greedy(model, batch.tokens, task.answers), answers.greedy(model, other.tokens, task.answers)
    )


def test_exact_match_is_that_of_teacher_forcing():
    """The whole answer is right under greedy decoding iff every token is, given the true ones before it."""
    run = Run(task="arithmetic", encoding="ape", depth=1, width=32, steps=150, batch=32, options=(("modulus", 6),))
    trained, task = training.train(run), tasks.get("arithmetic", modulus=6)
    shares = []
    for level in range(1, 8):
        batch = task.evaluation_batch(task.shift("digits", level), 200)
        with torch.no_grad():
            forced = trained.model(torch.from_numpy(batch.tokens)).argmax(-1).numpy()
        forced = (forced == batch.labels)[:, -task.answers :].all(1).mean()
        shares.append(answers.measure(trained.model, task, batch)["exact"])
        assert shares[-1] == forced
    assert 0 < min(shares) < max(shares) < 1  # the two could have differed


@pytest.mark.parametrize("layout", FORMATS)
@pytest.mark.parametrize("operation", ["addition", "multiplication"])
def test_a_perfect_model_is_right_and_moves_with_its_operands(layout, operation):
    task = make(format=layout, operation=operation)
    perfect = Oracle(task, int.__add__ if operation == "addition" else int.__mul__)
    for level in (2, 6):
        found = answers.measure(perfect, task, task.evaluation_batch(task.shift("digits", level), 64))
        assert found["exact"] == found["digits"] == found["equivariant"] == 1 and found["unreadable"] == 0
        assert found["places"] == [1.0] * task.width
        assert (found["truncated"] == 1) == (level == 2)
    whole = make(format=layout, operation=operation, test_digits=7)
    found = answers.measure(perfect, whole, whole.evaluation_batch(whole.shift("digits", 7), 64))
    assert found["exact"] == 1 and found["equivariant"] is None  # no room to move


def test_shares_against_python():
    """A model that is wrong, unreadable or right by the residue of a: every item is in every denominator."""
    task = make()

    def answer(a: int, b: int) -> int:
        return {0: a + b, 1: -1, 2: (a % 81) + (b % 81)}[a % 3]

    batch = task.evaluation_batch(task.shift("digits", 5), 300)
    pairs = list(zip(*(numbers.tolist() for numbers in task.operands(batch.tokens)), strict=True))
    found = answers.measure(Oracle(task, answer), task, batch)
    assert found["exact"] == np.mean([answer(a, b) == a + b for a, b in pairs])
    assert found["truncated"] == np.mean([answer(a, b) == a % 81 + b % 81 for a, b in pairs])
    assert found["unreadable"] == np.mean([a % 3 == 1 for a, b in pairs])
    moves = [answer(a, b) >= 0 and answer(3 * a, 3 * b) == 3 * answer(a, b) for a, b in pairs]
    assert found["equivariant"] == np.mean(moves)
    assert 0 < found["exact"] < 1 and 0 < found["unreadable"] < 1 and 0 < found["equivariant"] < 1
    right = []
    for a, b in pairs:
        said, true = (task.digits(np.array([n]), task.width)[0] for n in (max(answer(a, b), 0), a + b))
        right.append((said == true) & ((answer(a, b) >= 0) | (np.arange(task.width) > 0)))
    assert found["digits"] == pytest.approx(np.mean(right)) and found["places"] == np.mean(right, axis=0).tolist()


class Trained:
    def __init__(self, model) -> None:
        self.model = model

    def summary(self) -> dict:
        return {"steps_taken": 7}


def test_a_row_a_length_each_with_its_exact_theory():
    options = {"modulus": 18, "train_digits": 3, "test_digits": 6, "pad": 7}
    task = tasks.get("arithmetic", **options)
    truncating = Oracle(task, lambda a, b: (a % 27 + b % 27) % 18)
    run = Run(task="arithmetic", encoding="ape", depth=1, width=16, options=tuple(sorted(options.items())))
    items = 2000
    rows = answers.score(Trained(truncating), run, Scoring(sequences=items, measure="answers"))
    expected = [("reference", 3), *(("digits", n) for n in range(1, 7)), *(("both-digits", n) for n in range(1, 7))]
    assert [(row["family"], row["level"]) for row in rows] == expected
    for row in rows:
        both = row["family"] == "both-digits"
        assert row["theory"] == float(task.truncation_accuracy(row["level"], both=both)) and row["truncated"] == 1
        spread = np.sqrt(row["theory"] * (1 - row["theory"]) / items)
        assert abs(row["exact"] - row["theory"]) <= 5 * spread
        assert row["items"] == items and row["passed_gate"] and row["exact_id"] == 1 and row["steps_taken"] == 7
        assert json.dumps(row, allow_nan=False)
    assert 0.4 < rows[5]["theory"] < 0.6  # mod 18 with three digits: about a half


def test_the_gate_is_exact_match_on_new_pairs():
    run = Run(task="arithmetic", encoding="ape", depth=1, width=16)
    for wrong, passed in ((20, True), (10, False)):  # one answer in 20, or in 10, is wrong
        model = Oracle(tasks.get("arithmetic"), lambda a, b, w=wrong: a + b + ((7 * a + 11 * b) % w == 0))
        rows = answers.score(Trained(model), run, Scoring(sequences=512, measure="answers", families=("digits",)))
        assert {row["passed_gate"] for row in rows} == {passed} and rows[0]["exact_id"] == rows[0]["exact"] < 1
        assert {row["family"] for row in rows} == {"reference", "digits"}


def test_other_tasks_are_refused():
    with pytest.raises(InputError, match="task = 'dyck' is not allowed; it must be 'arithmetic'"):
        answers.score(Trained(None), Run(task="dyck", encoding="ape", depth=1, width=16), Scoring(measure="answers"))
    with pytest.raises(InputError, match="answers = 3 is not allowed; it must be between 1 and 2"):
        answers.greedy(torch.nn.Identity(), np.zeros((1, 3), dtype=int), 3)
