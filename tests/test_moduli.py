"""The exact counts of `shiftbound.moduli` against trying every case with Python's own integers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from shiftbound import InputError, moduli


def brute(operation: str, first: range, second: range, modulus: int | None, block: int) -> Fraction:
    f = int.__add__ if operation == "addition" else int.__mul__
    pairs = list(itertools.product(first, second))
    reduce = (lambda z: z % modulus) if modulus else (lambda z: z)
    return Fraction(sum(reduce(f(a, b)) == reduce(f(a % block, b % block)) for a, b in pairs), len(pairs))


@pytest.mark.parametrize("operation", ["addition", "multiplication"])
@pytest.mark.parametrize("modulus", [None, 1, 2, 6, 7, 9, 12, 50, 101])
def test_truncation_match_is_what_counting_gives(operation: str, modulus: int | None) -> None:
    ranges = [range(0, 27), range(9, 81), range(5, 58), range(30, 31)]
    for first, second in itertools.product(ranges, repeat=2):
        expected = brute(operation, first, second, modulus, 9)
        given = {"modulus": modulus, "base": 3, "digits": 2}
        assert moduli.truncation_match(operation, first, second, **given) == expected
        assert moduli.enumerated_match(operation, first, second, **given) == expected


def test_truncation_match_needs_no_enumeration_and_stays_exact() -> None:
    """Thirty digits: far beyond 64-bit integers."""
    laws = moduli.operands("below", 30, 10)
    given = {"modulus": 150, "base": 10, "digits": 2}
    assert moduli.truncation_match("addition", *laws, **given) == moduli.closed_form(150, 10, 2, 10**28)
    product = moduli.truncation_match("multiplication", *laws, modulus=7, base=10, digits=15)
    ideal = Fraction(1, 7) + Fraction(1, 49) - Fraction(1, 343)
    assert 0 < abs(product - ideal) <= Fraction(7, 10**15)


def test_operands_have_the_digits_they_claim() -> None:
    assert moduli.operands("D", 1, 3) == (range(3), range(3))  # one digit may be 0, as in the paper
    for n in range(2, 5):
        first, second = moduli.operands("D", n, 3)
        assert {len(np.base_repr(z, 3)) for z in first} == {n} and second == range(3**n)
        assert moduli.operands("Dab", n, 3) == (first, first)


def test_the_task_and_this_module_agree() -> None:
    """Two counts written apart from each other, on the laws that models are tested on."""
    from shiftbound.tasks.arithmetic import Arithmetic

    for operation, modulus in itertools.product(("addition", "multiplication"), (0, 9, 28, 7, 10)):
        task = Arithmetic(operation=operation, base=3, modulus=modulus, train_digits=4, test_digits=7, pad=8)
        for digits, both in itertools.product(range(1, 8), (False, True)):
            laws = moduli.operands("Dab" if both else "D", digits, 3)
            mine = moduli.truncation_match(operation, *laws, modulus=modulus or None, base=3, digits=4)
            assert task.truncation_accuracy(digits, both=both) == mine


@pytest.mark.parametrize("law", moduli.LAWS)
def test_carry_error_is_what_running_the_adder_gives(law: str) -> None:
    for base, digits, window in itertools.product((2, 3), (1, 2, 3, 4), (0, 1, 2, 5)):
        first, second = moduli.operands(law, digits, base)
        wrong = 0
        for a, b in itertools.product(first, second):
            cut = [base ** max(0, i - window) for i in range(digits + 1)]
            said = [(a // low * low + b // low * low) // base**i % base for i, low in enumerate(cut)]
            wrong += said != [(a + b) // base**i % base for i in range(digits + 1)]
        assert moduli.carry_error(first, second, base=base, window=window) == Fraction(wrong, len(first) * len(second))


def test_window_sum_sees_only_its_window() -> None:
    a, b = np.array([[9, 9, 9, 9]]), np.array([[1, 0, 0, 0]])
    shown = {w: moduli.window_sum(a, b, base=10, window=w)[0].tolist() for w in (0, 1, 2, 4)}
    assert shown == {0: [0, 9, 9, 9, 0], 1: [0, 0, 9, 9, 0], 2: [0, 0, 0, 9, 0], 4: [0, 0, 0, 0, 1]}


def test_influence_counts_changes() -> None:
    base, digits = 3, 2
    for operation, place, output in itertools.product(("addition", "multiplication"), range(2), range(4)):
        f = int.__add__ if operation == "addition" else int.__mul__
        changed = total = 0
        for a, b, digit in itertools.product(range(9), range(9), range(3)):
            other = a + (digit - a // base**place % base) * base**place
            if other != a:
                total += 1
                changed += f(a, b) // base**output % base != f(other, b) // base**output % base
        assert moduli.influence(operation, base, digits, place, output) == Fraction(changed, total)


def test_transduce_runs_one_machine_on_many_words_and_many_on_one() -> None:
    step, emit = moduli.machines(2)
    word = np.array([0, 1, 1, 0])
    together = moduli.transduce(step, emit, word)
    assert len({step[i].tobytes() + emit[i].tobytes() for i in range(256)}) == 256
    for i in (0, 17, 200, 255):
        state, written = 0, []
        for symbol in word:
            written.append(int(emit[i, state, symbol]))
            state = int(step[i, state, symbol])
        assert together[i].tolist() == written
        assert moduli.transduce(step[i], emit[i], np.stack([word, word]))[1].tolist() == written


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: moduli.closed_form(0, 10, 2, 5),
            "modulus = 0 is not allowed; it must be a whole number of at least 1",
        ),
        (lambda: moduli.closed_form(7, 1, 2, 5), "base = 1 is not allowed; it must be a whole number of at least 2"),
        (lambda: moduli.closed_form(7, 10, 2, 0), "size = 0"),
        (lambda: moduli.operands("E", 2, 10), "law = 'E'"),
        (lambda: moduli.operands("D", 0, 10), "digits = 0"),
        (lambda: moduli.truncation_match("division", range(9), range(9), modulus=3, base=3, digits=1), "operation"),
        (lambda: moduli.truncation_match("addition", range(0), range(9), modulus=3, base=3, digits=1), "first"),
        (lambda: moduli.carry_error(range(7), range(10), base=10, window=1), "first = range"),
        (lambda: moduli.carry_error(range(10), range(10), base=10, window=-1), "window = -1"),
        (lambda: moduli.influence("addition", 10, 2, 2, 0), "place = 2"),
        (lambda: moduli.machines(4), "states = 4"),
        (lambda: moduli.adder(1), "base = 1"),
    ],
)
def test_bad_input_gets_one_sentence(call: object, message: str) -> None:
    with pytest.raises(InputError, match=message.replace("(", r"\(")) as error:
        call()
    assert "\n" not in str(error.value)
