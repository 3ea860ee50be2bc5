"""The arithmetic task: sets, formats and labels against Python's integers; theory against enumeration."""

from __future__ import annotations

import itertools
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from shiftbound import InputError, tasks
from shiftbound.tasks.arithmetic import FORMATS, HELD_OUT

SAMPLES = 10_000
SOME = [
    {"format": layout, "operation": operation, "base": base, "modulus": modulus, "pad": 5, "test_digits": 5}
    for layout in FORMATS
    for operation in ("addition", "multiplication")
    for base, modulus in ((3, 0), (3, 9), (10, 101), (2, 7))
]


def make(**options):
    return tasks.get("arithmetic", **options)


def draw(task, size, seed=0, **options):
    return task.sample(np.random.default_rng(seed), size, task.length, **options)


def in_base(number: int, base: int) -> str:
    text = ""
    while number:
        text = "0123456789"[number % base] + text
        number //= base
    return text


def truth(task, a: int, b: int) -> int:
    value = a + b if task.operation == "addition" else a * b
    return value % task.modulus if task.modulus else value


@pytest.mark.parametrize("options", SOME)
def test_rows_and_labels_against_integers_and_text(options):
    task = make(train_digits=4, **options)
    batch = draw(task, 400, digits=5)
    a, b = (numbers.tolist() for numbers in task.operands(batch.tokens))
    assert batch.tokens.shape == (400, task.length + 1)
    for x, y, shown, answer in zip(a, b, task.show(batch.tokens), task.show(np.maximum(batch.labels, 0)), strict=True):
        left, right = in_base(x, task.base).zfill(5), in_base(y, task.base).zfill(5)
        result = in_base(truth(task, x, y), task.base).zfill(task.width)[::-1]
        assert len(result) == task.width  # the answer fits
        end = ";" if task.format == "repo" else ""
        seen = (result + end)[:-1]  # the last token is predicted and never read
        if task.format == "column":
            operands = "".join(f"({i},{j})" for i, j in zip(left[::-1], right[::-1], strict=True))
        elif task.format == "separate":
            operands = f"{left[::-1]}+{right[::-1]}"
        else:
            operands = f"{left}+{right}"
        sign = operands.replace("+", "×") if task.operation == "multiplication" else operands
        assert shown.replace(" ", "") == f"{sign}={seen}"
        assert answer.replace(" ", "") == result + end


@pytest.mark.parametrize(
    "options", [{}, {"modulus": 28}, {"operation": "multiplication"}, {"format": "repo", "base": 10}]
)
def test_ten_thousand_answers_are_those_of_python(options):
    task = make(**options)
    batch = draw(task, SAMPLES, digits=7)
    a, b = (numbers.tolist() for numbers in task.operands(batch.tokens))
    answers = task.read(batch.labels[:, -task.answers :]).tolist()
    assert answers == [truth(task, x, y) for x, y in zip(a, b, strict=True)]


@pytest.mark.parametrize("options", SOME)
def test_every_format_round_trips(options):
    task = make(train_digits=4, **options)
    rng = np.random.default_rng(1)
    a, b = rng.integers(0, task.base**5, (2, 500))
    tokens = task.rows(a, b)
    back = task.operands(tokens)
    assert np.array_equal(back[0], a) and np.array_equal(back[1], b)
    batch = task.label(tokens)
    assert np.array_equal(batch.tokens, tokens)
    assert np.array_equal(batch.tokens[:, -task.answers + 1 :], batch.labels[:, -task.answers : -1])  # shifted by one
    assert (batch.labels[:, : -task.answers] == -1).all() and (batch.labels[:, -task.answers :] > 0).all()
    assert tokens.max() < task.vocab and batch.labels.max() < task.classes and (tokens[:, 0] == 0).all()


@pytest.mark.parametrize("operation", ["addition", "multiplication"])
def test_hard_digits_are_those_that_a_carry_or_another_place_decides(operation):
    task = make(operation=operation)
    batch = draw(task, 300, digits=4)
    a, b = (numbers.tolist() for numbers in task.operands(batch.tokens))
    for row, (x, y) in enumerate(zip(a, b, strict=True)):
        for place in range(task.width):
            i, j, result = ((number // 3**place) % 3 for number in (x, y, truth(task, x, y)))
            alone = (i + j if operation == "addition" else i * j) % 3
            assert batch.hard[row, -task.answers + place] == (result != alone)
    assert not batch.hard[:, : -task.answers].any()


# The sets of numbers ----------------------------------------------------------------------------------------------


def law(base: int, n: int, both: bool) -> dict[tuple[int, int], float]:
    """P(a, b) in D_n (or D_ab-n), from its definition."""
    exact = range(base ** (n - 1) if n > 1 else 0, base**n)
    below = exact if both else range(base**n)
    weights = Counter()
    for first, second in ((exact, below), (below, exact)):
        for pair in itertools.product(first, second):
            weights[pair] += 0.5 / (len(exact) * len(below))
    return dict(weights)


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("base", "n"), [(3, 1), (3, 2), (3, 3), (2, 3), (10, 1)])
def test_pairs_have_the_law_of_the_set(base, n, both):
    task = make(base=base, train_digits=7, test_digits=7, pad=7)  # n is below the trained digits: no pair is held out
    size = 20_000
    expected = law(base, n, both)
    seen = Counter(zip(*(o.tolist() for o in task.operands(draw(task, size, digits=n, both=both).tokens)), strict=True))
    assert set(seen) <= set(expected)
    keys = sorted(expected)
    assert stats.chisquare([seen[k] for k in keys], [size * expected[k] for k in keys]).pvalue > 1e-4


def test_held_out_pairs_never_meet_training():
    task = make()
    rng = np.random.default_rng(1000)
    trained = set()
    for _ in range(40):
        trained |= set(zip(*(o.tolist() for o in task.operands(task.train_batch(rng, 500).tokens)), strict=True))
    tested = set(zip(*(o.tolist() for o in task.operands(draw(task, 3_000).tokens)), strict=True))
    swapped = {(b, a) for a, b in trained}
    assert not tested & trained and not tested & swapped
    every = 81**2 - 27**2  # the pairs of D_4 in base 3
    everything = np.array(list(law(3, 4, False)))
    kept = task.held_out(everything[:, 0], everything[:, 1])
    assert len(everything) == every
    assert abs(kept.mean() - 1 / HELD_OUT) < 4 * np.sqrt(2 * (1 / HELD_OUT) * (1 - 1 / HELD_OUT) / every)
    assert tested <= set(map(tuple, everything[kept].tolist()))
    assert trained <= set(map(tuple, everything[~kept].tolist()))
    assert len(trained) > 0.9 * (~kept).sum()


def test_mixed_training_shows_every_number_of_digits():
    task = make(mixed=True)
    a, b = task.operands(task.train_batch(np.random.default_rng(0), 4_000).tokens)
    digits = np.maximum(1, np.ceil(np.log(np.maximum(a, b) + 0.5) / np.log(3)))
    shares = np.bincount(digits.astype(int), minlength=5)[1:] / 4_000
    sets = [law(3, n, False) for n in (1, 2, 3, 4)]
    free = [sum(w for (x, y), w in pairs.items() if not task.held_out(np.array([x]), np.array([y]))) for pairs in sets]
    assert free[0] == pytest.approx(1)  # D_1 spares no pair
    expected = np.array(free) / sum(free)
    assert np.all(np.abs(shares - expected) < 5 * np.sqrt(expected * (1 - expected) / 4_000))
    assert not task.held_out(a, b).any()
    for n in (3, 4):
        assert task.held_out(*task.operands(draw(task, 200, digits=n).tokens)).all()
    assert not task.held_out(*task.operands(draw(task, 200, digits=1).tokens)).all()  # too few: all are scored


@pytest.mark.parametrize("share", [0.25, 0.06])
def test_a_share_of_the_pairs_is_all_that_training_sees(share):
    task, whole = make(share=share), make()
    rng = np.random.default_rng(3)
    a, b = task.operands(task.train_batch(rng, 20_000).tokens)
    seen = set(zip(a.tolist(), b.tolist(), strict=True))
    free = np.array([pair for pair in law(3, 4, False) if not whole.held_out(*np.array([pair]).T)[0]])
    assert seen <= set(map(tuple, free.tolist()))
    assert {(y, x) for x, y in seen} == seen  # (a, b) and (b, a) go together, and all of the share was met
    spread = np.sqrt(2 * share * (1 - share) / len(free))
    assert abs(len(seen) / len(free) - share) < 4 * spread
    for digits in (2, 4, 6):  # the test data are those of the whole task
        assert np.array_equal(draw(task, 64, digits=digits).tokens, draw(whole, 64, digits=digits).tokens)


# Outputs and theory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", FORMATS)
def test_unreadable_outputs_are_wrong_and_counted(layout):
    task = make(format=layout)
    batch = draw(task, 50)
    outputs = batch.labels[:, -task.answers :].copy()
    assert task.correct(batch, outputs).all()
    outputs[0, 0] = task.base + 1  # `=`
    outputs[1, 2] = 0  # BOS
    outputs[2, 0] = 1 + outputs[2, 0] % task.base  # another digit
    outputs[3, -1] = 1 if layout == "repo" else 1 + outputs[3, -1] % task.base
    right = task.correct(batch, outputs)
    assert right.shape == (50,) and not right[:4].any() and right[4:].all()
    assert (task.read(outputs)[:2] == -1).all()


@pytest.mark.parametrize("options", SOME)
def test_the_truncating_predictor_sees_the_trained_digits_only(options):
    task = make(train_digits=3 if options["base"] == 2 else 2, **options)
    n = task.train_digits
    batch = draw(task, 300, digits=4)
    other = task.truncated(batch)
    a, b = (numbers.tolist() for numbers in task.operands(batch.tokens))
    low = task.base**n
    expected = [truth(task, x % low, y % low) for x, y in zip(a, b, strict=True)]
    assert task.read(other.labels[:, -task.answers :]).tolist() == expected
    start = task.length + 1 - task.answers
    assert np.array_equal(other.tokens[:, :start], batch.tokens[:, :start])
    assert np.array_equal(other.tokens[:, start + 1 :], other.labels[:, start:-1])


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("operation", ["addition", "multiplication"])
@pytest.mark.parametrize("modulus", [0, 2, 9, 27, 28, 7, 6])
def test_truncation_theory_by_enumeration(operation, modulus, both):
    task = make(operation=operation, modulus=modulus, train_digits=2, test_digits=4, pad=4)
    for digits in (1, 2, 3, 4):
        pairs = law(3, digits, both)
        a, b = np.array(list(pairs)).T
        right = task.answer(a, b) == task.answer(a % 9, b % 9)
        expected = sum(weight for weight, fine in zip(pairs.values(), right, strict=True) if fine)
        assert float(task.truncation_accuracy(digits, both)) == pytest.approx(expected, abs=1e-12)


def test_truncation_theory_reaches_its_known_limits():
    """gcd(b^n, p) / p in the limit; one digit above the trained ones it can be 0 (THEORY 8.4)."""
    hundred_one = make(base=10, modulus=101, train_digits=2, test_digits=8, pad=8)
    assert hundred_one.truncation_accuracy(3, both=True) == 0
    assert float(hundred_one.truncation_accuracy(8)) == pytest.approx(1 / 101, rel=1e-4)
    two_hundred = make(base=10, modulus=200, train_digits=2, test_digits=8, pad=8)
    assert two_hundred.truncation_accuracy(3, both=True) == Fraction(41, 81)
    aligned = make(modulus=9)
    assert all(aligned.truncation_accuracy(digits) == 1 for digits in range(1, 8))


def test_theory_matches_the_sampled_data():
    for options in ({"modulus": 28}, {"operation": "multiplication", "modulus": 10}):
        task = make(train_digits=3, **options)
        for digits in (4, 6):
            batch = draw(task, SAMPLES, digits=digits)
            right = task.correct(batch, task.truncated(batch).labels[:, -task.answers :]).mean()
            expected = float(task.truncation_accuracy(digits))
            assert abs(right - expected) < 4.5 * np.sqrt(expected * (1 - expected) / SAMPLES) + 1e-12


def test_shifts_go_down_and_up():
    task = make(base=5, modulus=25, train_digits=3, test_digits=6, pad=7)
    assert task.reference().level == 3
    assert [s.level for s in task.shifts() if s.family == "digits"] == [1, 2, 3, 4, 5, 6]
    for shift in task.shifts():
        batch = task.evaluation_batch(shift, 64)
        a, b = task.operands(batch.tokens)
        most = np.maximum(a, b) if shift.family != "both-digits" else np.minimum(a, b)
        n = dict(shift.options)["digits"]
        assert (np.maximum(a, b) < 5**n).all() and (n == 1 or (most >= 5 ** (n - 1)).all())
        assert task.paths(batch).shape == (64, 14) and task.paths(batch).max() == 1


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"base": 1}, "base = 1 is not allowed; it must be a whole number between 2 and 36"),
        ({"modulus": 1}, "modulus = 1 is not allowed; it must be 0 for none, or at least 2"),
        ({"modulus": -3}, "modulus = -3 is not allowed; it must be 0 for none, or at least 2"),
        ({"modulus": 3**8 + 1}, "modulus = 6562 is not allowed; it must be at most 3^8"),
        ({"test_digits": 9}, "test_digits = 9 is not allowed; it must be at most the pad width 8"),
        ({"test_digits": 3}, "test_digits = 3 is not allowed; it must be at least train_digits = 4"),
        ({"train_digits": 0}, "train_digits = 0 is not allowed; it must be a whole number, at least 1"),
        ({"train_digits": 1}, "train_digits = 1 is not allowed; it must be so large that base 3 has 64 pairs"),
        (
            {"operation": "division"},
            "operation = 'division' is not allowed; it must be one of 'addition', 'multiplication'",
        ),
        ({"format": "row"}, "format = 'row' is not allowed; it must be one of 'repo', 'separate', 'column'"),
        ({"share": 0.0}, "share = 0.0 is not allowed; it must be above 0 and at most 1"),
        ({"mixed": 1}, "mixed = 1 is not allowed; it must be True or False"),
        (
            {"operation": "multiplication", "base": 10, "pad": 10},
            "pad = 10 is not allowed; it must be so small that answers in base 10 stay below 2^62",
        ),
    ],
)
def test_impossible_options_are_refused_in_one_sentence(options, says):
    with pytest.raises(InputError) as refused:
        make(**options)
    assert str(refused.value) == says


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda task: draw(task, 1, digits=9), "digits = 9 is not allowed; it must be between 1 and the pad width 8"),
        (lambda task: draw(task, 1, part="both"), "part = 'both' is not allowed; it must be 'train' or 'test'"),
        (
            lambda task: task.sample(np.random.default_rng(0), 1, 12),
            "length = 12 is not allowed; it must be 17, the length of every row of this task",
        ),
        (
            lambda task: task.rows(np.array([3**8]), np.array([0])),
            "operand = 'a number' is not allowed; it must be between 0 and 6560 = 3^8 - 1",
        ),
    ],
)
def test_impossible_data_are_refused_in_one_sentence(call, says):
    with pytest.raises(InputError) as refused:
        call(make())
    assert str(refused.value) == says
