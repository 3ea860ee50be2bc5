"""Chapter 8, one test a theorem, by routes that the chapter does not take."""

from __future__ import annotations

import itertools
from fractions import Fraction
from math import gcd

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shiftbound import moduli

bases = st.integers(2, 16)


@given(bases, st.integers(0, 10**30), st.integers(0, 10**30))
def test_prop_arith_shift(base: int, x: int, y: int) -> None:
    def shift(z: int) -> int:
        digits = [z // base**i % base for i in range(z.bit_length() + 1)]
        return sum(digit * base ** (i + 1) for i, digit in enumerate(digits))

    assert shift(x) + shift(y) == shift(x + y)
    assert shift(x) * shift(y) == shift(shift(x * y))
    assert x * y == 0 or shift(x) * shift(y) != shift(x * y)


@given(bases, st.integers(0, 10**40), st.integers(0, 10**40))
@settings(deadline=None)
def test_thm_adder(base: int, x: int, y: int) -> None:
    width = max(x, y).bit_length() + 1
    pairs = np.array([x // base**i % base * base + y // base**i % base for i in range(width)])
    written = moduli.transduce(*moduli.adder(base), pairs).tolist()
    assert sum(digit * base**i for i, digit in enumerate(written)) == x + y


@pytest.mark.parametrize("power", range(6))
def test_thm_no_multiplier(power: int) -> None:
    """The machine of the proof squares b^n with n + 1 states and no other power of b."""
    states = power + 1  # state 0 is p, state 1 + j is s_j
    step, emit = np.zeros((states, 2), dtype=int), np.zeros((states, 2), dtype=int)
    step[1:-1, 0] = np.arange(2, states)
    step[0, 1] = min(1, power)
    emit[-1, 0 if power else 1] = 1
    for other in range(9):
        word = np.array([0] * other + [1] + [0] * (2 * other + 3))
        written = moduli.transduce(step, emit, word)
        right = written.tolist() == [int(i == 2 * other) for i in range(len(word))]
        assert right == (other == power)


def test_thm_influence_add() -> None:
    """Expectation of |a - a'| and a Markov chain of carries, against the formula and all cases."""
    for base in range(2, 13):
        mean = Fraction(sum(abs(a - c) for a, c in itertools.permutations(range(base), 2)), base * (base - 1))
        assert mean == Fraction(base + 1, 3)
        assert moduli.influence("addition", base, 1, 0, 1) == mean / base
    assert moduli.influence("addition", 10, 2, 0, 1) == Fraction(11, 30)
    assert moduli.influence("addition", 4, 4, 0, 4) == Fraction(5, 12) / 4**3


@pytest.mark.parametrize(("base", "digits"), [(2, 8), (3, 5), (4, 4), (6, 3), (12, 2)])
def test_thm_influence_mul(base: int, digits: int) -> None:
    for place in range(digits):
        same = moduli.influence("multiplication", base, digits, place, place)
        assert same == 1 - Fraction(sum(gcd(d, base) for d in range(1, base)), base * (base - 1))
        for d in range(1, digits):
            heard = moduli.influence("multiplication", base, digits, place, place + d)
            assert heard >= 1 - Fraction(2, base) - Fraction(1, base**d)


def test_thm_window_unique() -> None:
    """Base 2, window 1: of all 2^16 local maps, the right one on two digits is the carry-window adder, and at every
    place it errs least."""
    base, window, length = 2, 1, 4
    found = []
    numbers = range(base**length)

    def pair(x: int, y: int, i: int) -> int:
        return (x >> i & 1) * 2 + (y >> i & 1) if i >= 0 else 0

    table = {  # per place: how often each window asks for a 0 and for a 1
        i: np.zeros((16, 2), dtype=int) for i in range(length)
    }
    for x, y in itertools.product(numbers, repeat=2):
        for i in range(length):
            table[i][pair(x, y, i - 1) * 4 + pair(x, y, i), (x + y) >> i & 1] += 1
    for code in range(2**16):
        g = [code >> w & 1 for w in range(16)]
        short = all(
            g[pair(x, y, i - 1) * 4 + pair(x, y, i)] == (x + y) >> i & 1
            for x in range(4)
            for y in range(4)
            for i in range(2)
        )
        if short:
            found.append(g)
    assert len(found) == 1
    said = moduli.window_sum(
        np.array([[w >> 3 & 1, w >> 1 & 1] for w in range(16)]), np.array([[w >> 2 & 1, w & 1] for w in range(16)]),
        base=2, window=window,
    )  # fmt: skip
    assert said[:, 1].tolist() == found[0]
    for i in range(window, length):
        errors = table[i][np.arange(16), 1 - np.array(found[0])]
        assert (errors == table[i].min(axis=1)).all()


@pytest.mark.parametrize(("base", "window", "length"), [(2, 3, 9), (10, 3, 40), (7, 1, 12), (3, 0, 5)])
def test_thm_window_error(base: int, window: int, length: int) -> None:
    """The transfer matrix in floating point, the union bound, and the value for 40 digits in base ten."""
    makes, passes = (base - 1) / (2 * base), 1 / base
    matrix = np.zeros((window + 2, window + 2))  # no live carry, one that has travelled 0..window-1, wrong
    for state in range(window + 1):
        matrix[state, 1] += makes
        matrix[state, state + 1 if state else 0] += passes
        matrix[state, 0] += 1 - makes - passes
    matrix[window + 1] = np.eye(window + 2)[window + 1]
    start = np.eye(window + 2)[0]
    exact = moduli.carry_error(*moduli.operands("below", length, base), base=base, window=window)
    if window:
        assert float(exact) == pytest.approx((start @ np.linalg.matrix_power(matrix, length))[-1], rel=1e-9)
    assert 0 < exact <= Fraction(base - 1, 2 * base) * (length - window) / base**window
    if (base, window, length) == (10, 3, 40):
        assert round(float(exact), 5) == 0.01654


@given(st.integers(1, 300), bases, st.integers(1, 4), st.integers(0, 10**9), st.integers(0, 10**9))
def test_thm_truncation(p: int, base: int, n: int, x: int, y: int) -> None:
    block = base**n
    right = (x % block + y % block) % p == (x + y) % p
    assert right == ((x // block + y // block) % moduli.order(p, base, n) == 0)
    if block % p == 0:
        assert right


@given(st.integers(1, 60), bases, st.integers(1, 3), st.integers(1, 60))
@settings(deadline=None)
def test_thm_closed_form(p: int, base: int, n: int, size: int) -> None:
    q = moduli.order(p, base, n)
    right = sum((u + v) * base**n % p == 0 for u in range(size) for v in range(size))
    claimed = moduli.closed_form(p, base, n, size)
    assert claimed == Fraction(right, size * size)
    assert abs(claimed - Fraction(1, q)) <= Fraction(q, 4 * size * size)


def test_the_table_of_lengths_and_laws() -> None:
    """Base ten, two trained digits: the values that a limit alone would get wrong."""

    def value(law: str, p: int, m: int) -> Fraction:
        laws = moduli.operands(law, 2 + m, 10)
        return moduli.truncation_match("addition", *laws, modulus=p, base=10, digits=2)

    assert [value("Dab", p, 1) for p in (50, 99, 100, 101)] == [1, 0, 1, 0]
    assert value("below", 101, 1) == Fraction(1, 100) and value("Dab", 200, 1) == Fraction(41, 81)
    assert value("below", 1000, 1) == Fraction(1, 10)
    assert value("Dab", 101, 3) == Fraction(
        sum((u + v) % 101 == 0 for u in range(100, 1000) for v in range(100, 1000)), 900**2
    )


@given(st.integers(1, 120), bases, st.integers(1, 3), st.integers(0, 10**8), st.integers(0, 10**8))
def test_prop_truncated_product(p: int, base: int, n: int, x: int, y: int) -> None:
    block = base**n
    (u, s), (v, t) = divmod(x, block), divmod(y, block)
    assert (s * t % p == x * y % p) == ((s * v + u * (t + block * v)) % moduli.order(p, base, n) == 0)


@pytest.mark.parametrize("p", [2, 3, 5, 7])
def test_prop_truncated_prime(p: int) -> None:
    quadruples = list(itertools.product(range(p), repeat=4))
    share = Fraction(sum((x * y - s * t) % p == 0 for x, s, y, t in quadruples), len(quadruples))
    assert share == Fraction(1, p) + Fraction(1, p**2) - Fraction(1, p**3)
    base = 10 if 10 % p else 9 if 9 % p else 7
    for low, high in itertools.product((1, 2), repeat=2):
        laws = moduli.operands("below", low + high, base)
        real = moduli.truncation_match("multiplication", *laws, modulus=p, base=base, digits=low)
        assert 0 < abs(real - share) <= Fraction(p, 2) * (Fraction(1, base**low) + Fraction(1, base**high))


@given(st.integers(2, 12), st.integers(1, 5), st.integers(1, 6))
def test_thm_neither(base: int, window: int, extra: int) -> None:
    length = window + extra
    nines = np.full((1, length), base - 1)
    one = np.eye(1, length, dtype=nines.dtype)
    said = moduli.window_sum(nines, one, base=base, window=window)
    assert said[0, : window + 1].tolist() == [0] * (window + 1) and said[0, -1] == 0
    shifted = moduli.window_sum(*(np.pad(z, ((0, 0), (1, 0))) for z in (nines, one)), base=base, window=window)
    assert shifted[0].tolist() == [0, *said[0]]
    p = base  # divides base, so truncation to one digit is right; the task does not commute with the shift
    assert base * ((p - 1) % p) != (base * (p - 1)) % p
