"""Exact probabilities for arithmetic on digits: residues, carries, small machines. Nothing here is sampled.

A law of an operand is a Python ``range``, read as the uniform law on its numbers; the two operands are independent.
Digits are counted from the lowest, number 0. Probabilities come back as fractions.
"""

from __future__ import annotations

from fractions import Fraction
from math import gcd

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from shiftbound import require

LAWS = ("D", "Dab", "below")


def operands(law: str, digits: int, base: int) -> tuple[range, range]:
    """The two operands of a named law. ``D``: one has exactly ``digits`` digits, the other is any number below
    base^digits; ``Dab``: both have exactly ``digits``; ``below``: both are any number below base^digits. One digit may
    be 0, a leading one of several may not. Which operand is the exact one matters to no function here.

    >>> operands("D", 3, 10)
    (range(100, 1000), range(0, 1000))

    Source: the sets D_n and D_ab-n of Xu et al. (ACL 2025).
    """
    require(law in LAWS, "law", law, f"one of {LAWS}")
    require(base >= 2, "base", base, "a whole number of at least 2")
    require(digits >= 1, "digits", digits, "a whole number of at least 1")
    exact, below = range(base ** (digits - 1) if digits > 1 else 0, base**digits), range(base**digits)
    return {"D": (exact, below), "Dab": (exact, exact), "below": (below, below)}[law]


# The truncating predictor ---------------------------------------------------------------------------------------------


def order(modulus: int, base: int, digits: int) -> int:
    """q = p / gcd(b^n, p): a sum modulo p survives truncation to n digits iff q divides u + v (`thm-truncation`).

    >>> order(150, 10, 2)
    3
    """
    require(modulus >= 1, "modulus", modulus, "a whole number of at least 1")
    require(base >= 2, "base", base, "a whole number of at least 2")
    require(digits >= 1, "digits", digits, "a whole number of at least 1")
    return modulus // gcd(base**digits, modulus)


def closed_form(modulus: int, base: int, digits: int, size: int) -> Fraction:
    """The accuracy of the truncating predictor on sums modulo p whose high parts are independent and uniform on
    0, ..., N-1 with N = ``size`` (`eq-closed-form`): with N = k q + r, 0 <= r < q,

    $$ P = (k^2 q + 2 k r + [r >= 1] + max(0, 2 r - q - 1)) / N^2. $$

    >>> closed_form(150, 10, 2, 10)
    Fraction(17, 50)
    """
    q = order(modulus, base, digits)
    require(size >= 1, "size", size, "a whole number of at least 1")
    k, r = divmod(size, q)
    return Fraction(k * k * q + 2 * k * r + (r >= 1) + max(0, 2 * r - q - 1), size**2)


def truncation_match(
    operation: str, first: range, second: range, *, modulus: int | None, base: int, digits: int
) -> Fraction:
    """P(f(a mod b^n, b mod b^n) = f(a, b)) for f the sum or the product, modulo p unless ``modulus`` is None, with the
    operands a and b uniform on any two ranges, by counting residues: the cost does not grow with the ranges.

    With a = s + b^n u and b = t + b^n v, a sum is right iff q | u + v, a product iff q | s v + u (t + b^n v)
    (`thm-truncation`, `prop-truncated-product`).

    >>> truncation_match("addition", *operands("Dab", 3, 10), modulus=200, base=10, digits=2)
    Fraction(41, 81)
    """
    require(operation in ("addition", "multiplication"), "operation", operation, "'addition' or 'multiplication'")
    for name, numbers in (("first", first), ("second", second)):
        fine = numbers.step == 1 and 0 <= numbers.start < numbers.stop
        require(fine, name, numbers, "a range of consecutive numbers, none negative")
    block, infinity = base**digits, max(first.stop, second.stop)
    sizes = _count(first, infinity), _count(second, infinity)
    total = sizes[0] * sizes[1]
    if modulus is None:
        right = _count(first, block) * _count(second, block)
        if operation == "multiplication":  # beside pairs of short operands: a zero and a long operand
            right += (0 in first) * (sizes[1] - _count(second, block))
            right += (0 in second) * (sizes[0] - _count(first, block))
        return Fraction(right, total)
    q = order(modulus, base, digits)
    exact = np.int64 if total < 2**62 else object
    one, two = _joint(first, block, q).astype(exact), _joint(second, block, q).astype(exact)
    residues = np.arange(q)
    if operation == "addition":
        return Fraction(int((one.sum(0) * two.sum(0)[-residues % q]).sum()), total)
    whole = np.zeros((q, q), dtype=exact)  # [v, b mod q] instead of [t, v]
    t, v = np.meshgrid(residues, residues, indexing="ij")
    np.add.at(whole, (v, (t + block * v) % q), two)
    right = 0
    for s in range(q):
        product = np.zeros((q, q), dtype=exact)  # how often s v = z, for each residue of the second operand
        np.add.at(product, s * residues % q, whole)
        right += sum(int(one[s, u]) * int(product[-u * residues % q, residues].sum()) for u in range(q) if one[s, u])
    return Fraction(right, total)


def enumerated_match(
    operation: str, first: range, second: range, *, modulus: int | None, base: int, digits: int
) -> Fraction:
    """The same as `truncation_match` by trying all pairs; for checks, on small ranges.

    >>> enumerated_match("addition", *operands("Dab", 3, 10), modulus=200, base=10, digits=2)
    Fraction(41, 81)
    """
    f = {"addition": np.add, "multiplication": np.multiply}[operation].outer
    a, b = np.array(first), np.array(second)
    difference = f(a, b) - f(a % base**digits, b % base**digits)
    if modulus is not None:
        difference %= modulus
    return Fraction(int((difference == 0).sum()), difference.size)


def _residues(stop: int, q: int) -> ndarray:
    """How many of 0..stop-1 leave each remainder modulo q."""
    return np.array([(stop - c + q - 1) // q for c in range(q)], dtype=object)


def _joint(numbers: range, block: int, q: int) -> ndarray:
    """How many numbers s + block u have each pair of remainders (s mod q, u mod q)."""

    def up_to(stop: int) -> ndarray:
        u, s = divmod(stop, block)
        last = np.zeros(q, dtype=object)
        last[u % q] = 1
        return np.outer(_residues(block, q), _residues(u, q)) + np.outer(_residues(s, q), last)

    return up_to(numbers.stop) - up_to(numbers.start)


def _count(numbers: range, below: int) -> int:
    """How many numbers are below a bound; `len` stops at 2^63."""
    return max(0, min(numbers.stop, below) - numbers.start)


# Carries --------------------------------------------------------------------------------------------------------------


def carry_error(first: range, second: range, *, base: int, window: int) -> Fraction:
    """The probability that the carry-window adder (`def-window-adder`) gets some digit of a + b wrong.

    It errs iff some pair of digits creates a carry that the ``window`` pairs above it pass on; one pass over the digits
    counts how far the live carry has travelled. The operands must be those of `operands`, whose digits are independent.

    >>> carry_error(*operands("below", 40, 10), base=10, window=3) < Fraction(45 * 37, 100 * 1000)
    True
    """
    require(window >= 0, "window", window, "a whole number of at least 0")
    pairs = list(zip(*_digit_laws(first, second, base), strict=True))
    travelled, dead, wrong = [Fraction(0)] * window, Fraction(1), Fraction(0)
    for x, y in pairs:
        passes = Fraction(sum(base - 1 - c in y for c in x), len(x) * len(y))
        makes = Fraction(sum(len(range(max(y.start, base - c), y.stop)) for c in x), len(x) * len(y))
        alive = dead + sum(travelled)
        if window == 0:
            wrong, dead = wrong + makes * alive, (1 - makes) * alive
            continue
        wrong += passes * travelled[-1]
        dead = (1 - makes - passes) * alive + passes * dead
        travelled = [makes * alive, *(passes * mass for mass in travelled[:-1])]
    return wrong


def _digit_laws(first: range, second: range, base: int) -> list[list[range]]:
    """The laws of the digits of both operands, padded with zeros to one length."""
    laws = []
    for name, numbers in (("first", first), ("second", second)):
        length = next((d for d in range(1, numbers.stop.bit_length() + 1) if base**d >= numbers.stop), 1)
        fine = numbers.stop == base**length and numbers.start in (0, base ** (length - 1))
        require(fine, name, numbers, f"all numbers of a given number of digits in base {base}, or all below such")
        laws.append([range(base)] * (length - 1) + [range(int(numbers.start > 0), base)])
    longest = max(map(len, laws))
    return [law + [range(1)] * (longest - len(law)) for law in laws]


def window_sum(
    a: Int[ndarray, "size digits"], b: Int[ndarray, "size digits"], *, base: int, window: int
) -> Int[ndarray, "size digits+1"]:
    """The digits of a + b as the carry-window adder says them (`def-window-adder`): output digit i reads the pairs
    i - window, ..., i and takes the carry into the lowest of them to be 0. Digits come lowest first.

    >>> window_sum(np.array([[9, 9, 9]]), np.array([[1, 0, 0]]), base=10, window=1)
    array([[0, 0, 9, 0]])
    """
    size, digits = a.shape
    sums = np.pad(a + b, ((0, 0), (window, 1)))
    carry = np.zeros((size, digits + 1), dtype=sums.dtype)
    for step in range(window):
        carry = (sums[:, step : step + digits + 1] + carry) // base
    return (sums[:, window:] + carry) % base


def influence(operation: str, base: int, digits: int, place: int, output: int) -> Fraction:
    """The probability that output digit ``output`` of f(x, y) changes when digit ``place`` of x is replaced by another
    one, uniformly; x, y uniform below base^digits (`def-influence`). All cases are tried.

    >>> influence("addition", 10, 2, 0, 1)
    Fraction(11, 30)
    """
    require(0 <= place < digits, "place", place, f"a digit of x, from 0 to {digits - 1}")
    numbers = np.arange(base**digits)
    f = {"addition": np.add, "multiplication": np.multiply}[operation].outer
    shown = (f(numbers, numbers) // base**output % base).astype(np.uint8)
    shown = shown.reshape(base ** (digits - 1 - place), base, base**place, base**digits)
    changed = sum(
        int((shown[:, c] != shown[:, e]).sum()) for c in range(base) for e in range(c)
    )  # unordered pairs of digits, for every choice of the rest
    return Fraction(2 * changed, base * (base - 1) * (shown.size // base))


# Machines -------------------------------------------------------------------------------------------------------------


def adder(base: int) -> tuple[Int[ndarray, "2 inputs"], Int[ndarray, "2 inputs"]]:
    """Addition as a transducer with two states, the carry 0 or 1 (`thm-adder`): tables ``step[state, input]`` and
    ``emit[state, input]``, where the pair of digits (x, y) is input x base + y.

    >>> step, emit = adder(10)
    >>> int(emit[1, 7 * 10 + 5]), int(step[1, 7 * 10 + 5])
    (3, 1)
    """
    require(base >= 2, "base", base, "a whole number of at least 2")
    carry, x, y = np.meshgrid([0, 1], np.arange(base), np.arange(base), indexing="ij")
    total = (carry + x + y).reshape(2, -1)
    return total // base, total % base


def transduce(
    step: Int[ndarray, "*machines states inputs"],
    emit: Int[ndarray, "*machines states inputs"],
    word: Int[ndarray, "*words length"],
) -> Int[ndarray, "*outputs length"]:
    """What synchronous transducers write while they read, from state 0. Either one machine reads many words, or many
    machines read one word.

    >>> transduce(*adder(10), np.array([95, 95, 0])).tolist()  # 99 + 55, lowest digit first
    [4, 5, 1]
    """
    many, outputs = step.shape[:-2], []
    machine = tuple(np.indices(many))
    state = np.zeros(many or word.shape[:-1], dtype=np.int64)
    for position in range(word.shape[-1]):
        symbol = word[..., position]
        outputs.append(emit[(*machine, state, symbol)])
        state = step[(*machine, state, symbol)]
    return np.stack(outputs, axis=-1)


def machines(states: int) -> tuple[Int[ndarray, "machines states 2"], Int[ndarray, "machines states 2"]]:
    """All transducers with this many states that read and write 0 and 1: (2 states)^(2 states) of them.

    >>> machines(2)[0].shape
    (256, 2, 2)
    """
    require(1 <= states <= 3, "states", states, "1, 2 or 3: with 4 there are 16777216 machines")
    choices = 2 * states
    code = np.arange(choices**choices)[:, None] // choices ** np.arange(choices) % choices
    code = code.reshape(-1, states, 2)
    return code // 2, code % 2
