"""Arithmetic in any base: sums and products of two numbers, as they stand or modulo m, digit by digit.

The sets of numbers are those of Xu et al. (ACL 2025): in D_n one operand, chosen by a fair coin, has exactly n digits
and the other is any number below base^n; in D_ab-n both have exactly n digits (for n = 1, zero counts as a digit). The
model is autoregressive: at `=` and at every answer digit but the last the label is the *token* that comes next, so an
output that is no digit is possible, and wrong.

Three formats of the same data, operands padded with zeros to ``pad`` digits and answers to their full width:

    repo       the authors' text: operands with the first digit first, the answer reversed, closed by `;`
    separate   everything with the last digit first, nothing to close the answer
    column     token i is the pair (a_i, b_i), last digit first; then `=` and the answer. A departure from the paper:
               the distance from a_i and b_i to the answer's digit i is then the same for every i
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from shiftbound import require
from shiftbound.tasks import Batch, Shift, Task

OPERATIONS = ("addition", "multiplication")
FORMATS = ("repo", "separate", "column")
HELD_OUT = 8  # one pair of operands in eight is kept from training
SMALL = 64  # sets of fewer pairs have none to spare
CHUNK = 256  # pairs drawn at a time


@dataclass(frozen=True)
class Arithmetic(Task):
    """Addition or multiplication, modulo ``modulus`` unless that is 0, trained on D_train_digits (``mixed``: on D_1 to
    D_train_digits in about equal parts) and scored on D_1 to D_test_digits. Training may be kept to a ``share`` of the
    pairs that are not held out, chosen by their hash.

    Tokens: BOS 0, digits 1..base, `=` base+1, the mark between the operands base+2, `;` base+3; in the column format
    pairs follow `=`. Hard positions: answer digits that differ from what a_i and b_i alone give, as where a carry comes
    in.

    >>> task = Arithmetic(base=10, train_digits=2, test_digits=3, pad=3)
    >>> task.show(task.rows(np.array([57]), np.array([68])))
    ['(7,8) (5,6) (0,0) = 5 2 1']
    >>> repo = Arithmetic(base=10, train_digits=2, test_digits=3, pad=3, format="repo")
    >>> batch = repo.label(repo.rows(np.array([57]), np.array([68])))
    >>> repo.show(batch.tokens), repo.show(batch.labels[:, -5:])
    (['0 5 7 + 0 6 8 = 5 2 1 0'], ['5 2 1 0 ;'])
    """

    operation: str = "addition"
    base: int = 3
    modulus: int = 0
    train_digits: int = 4
    test_digits: int = 7
    pad: int = 8
    format: str = "column"
    mixed: bool = False
    share: float = 1.0
    name: ClassVar[str] = "arithmetic"

    def __post_init__(self) -> None:
        require(self.operation in OPERATIONS, "operation", self.operation, "one of 'addition', 'multiplication'")
        require(self.format in FORMATS, "format", self.format, "one of 'repo', 'separate', 'column'")
        require(2 <= self.base <= 36, "base", self.base, "a whole number between 2 and 36")
        require(self.modulus == 0 or self.modulus >= 2, "modulus", self.modulus, "0 for none, or at least 2")
        require(self.train_digits >= 1, "train_digits", self.train_digits, "a whole number, at least 1")
        longer = f"at least train_digits = {self.train_digits}"
        require(self.test_digits >= self.train_digits, "test_digits", self.test_digits, longer)
        require(self.test_digits <= self.pad, "test_digits", self.test_digits, f"at most the pad width {self.pad}")
        room = self.base ** (self.pad * (2 if self.operation == "multiplication" else 1) + 1)
        require(room < 2**62, "pad", self.pad, f"so small that answers in base {self.base} stay below 2^62")
        require(self.modulus <= self.base**self.pad, "modulus", self.modulus, f"at most {self.base}^{self.pad}")
        require(0 < self.share <= 1, "share", self.share, "above 0 and at most 1")
        pairs = self.base ** (2 * self.train_digits)
        require(pairs >= SMALL, "train_digits", self.train_digits, f"so large that base {self.base} has {SMALL} pairs")

    # Sizes and tokens

    @property
    def width(self) -> int:
        """Digits of an answer."""
        if self.modulus:
            return len(np.base_repr(self.modulus - 1, self.base))
        return 2 * self.pad if self.operation == "multiplication" else self.pad + 1

    @property
    def answers(self) -> int:
        """Supervised positions of a row: the answer's digits, and its `;` in the format ``repo``."""
        return self.width + (self.format == "repo")

    @property
    def vocab(self) -> int:
        return self.base + (2 + self.base**2 if self.format == "column" else 4)

    @property
    def classes(self) -> int:
        """Every token may be put out, digit or not."""
        return self.vocab

    @property
    def length(self) -> int:
        """Tokens of a row, BOS not counted."""
        return (self.pad if self.format == "column" else 2 * self.pad + 1) + self.answers

    # Rows

    def answer(self, a: Int[ndarray, " size"], b: Int[ndarray, " size"]) -> Int[ndarray, " size"]:
        """The operation itself."""
        if self.modulus:
            a, b = a % self.modulus, b % self.modulus
        value = a * b if self.operation == "multiplication" else a + b
        return value % self.modulus if self.modulus else value

    def digits(self, numbers: Int[ndarray, " size"], width: int) -> Int[ndarray, "size {width}"]:
        """The last ``width`` digits, last digit first."""
        return numbers[:, None] // self.base ** np.arange(width) % self.base

    def rows(
        self, a: Int[ndarray, " size"], b: Int[ndarray, " size"], answer: Int[ndarray, " size"] | None = None
    ) -> Int[ndarray, "size width"]:
        """The rows for operands a and b, with the true answers or other ones; what ends a row is only predicted."""
        top = self.base**self.pad - 1
        fine = all(len(n) == 0 or 0 <= n.min() <= n.max() <= top for n in (a, b))
        require(fine, "operand", "a number", f"between 0 and {top} = {self.base}^{self.pad} - 1")
        x, y = self.digits(a, self.pad), self.digits(b, self.pad)
        ends = self.digits(self.answer(a, b) if answer is None else answer, self.width)[:, : self.answers - 1] + 1
        mark = np.full((len(a), 1), self.base + 1)
        if self.format == "column":
            parts = [mark * 0, self.base + 2 + x * self.base + y, mark, ends]
        else:
            x, y = (x[:, ::-1], y[:, ::-1]) if self.format == "repo" else (x, y)
            parts = [mark * 0, x + 1, mark + 1, y + 1, mark, ends]
        return np.concatenate(parts, axis=1)

    def operands(self, tokens: Int[ndarray, "size width"]) -> tuple[Int[ndarray, " size"], Int[ndarray, " size"]]:
        """The numbers that stand in rows before `=`."""
        if self.format == "column":
            x, y = np.divmod(tokens[:, 1 : self.pad + 1] - self.base - 2, self.base)
        else:
            x, y = tokens[:, 1 : self.pad + 1] - 1, tokens[:, self.pad + 2 : 2 * self.pad + 2] - 1
            x, y = (x[:, ::-1], y[:, ::-1]) if self.format == "repo" else (x, y)
        powers = self.base ** np.arange(self.pad)
        return x @ powers, y @ powers

    def read(self, outputs: Int[ndarray, "size answers"]) -> Int[ndarray, " size"]:
        """The numbers that models put out, `answers` tokens a row; -1 where the row is not a number."""
        digits = outputs[:, : self.width]
        fine = ((digits >= 1) & (digits <= self.base)).all(axis=1)
        if self.format == "repo":
            fine &= outputs[:, -1] == self.base + 3
        return np.where(fine, (digits - 1) @ self.base ** np.arange(self.width), -1)

    def label(self, tokens: Int[ndarray, "size width"]) -> Batch:
        a, b = self.operands(tokens)
        return self._batch(a, b, self.answer(a, b))

    def truncated(self, batch: Batch) -> Batch:
        """The rows of ``batch`` as the truncating predictor answers them: f(a mod base^n, b mod base^n), n the trained
        digits. A model that matches these labels sees the lowest n digits only."""
        a, b = self.operands(batch.tokens)
        seen = self.base**self.train_digits
        return self._batch(a, b, self.answer(a % seen, b % seen))

    def correct(self, batch: Batch, outputs: Int[ndarray, "size answers"]) -> Bool[ndarray, " size"]:
        """Exact match of greedy outputs, a row each; what cannot be read as a number is wrong and stays counted."""
        return self.read(outputs) == self.read(batch.labels[:, -self.answers :])

    def show(self, tokens: Int[ndarray, "size width"]) -> list[str]:
        """Rows as text; BOS and unsupervised positions are left out."""
        names = {1 + d: np.base_repr(d, self.base) for d in range(self.base)} | {self.base + 1: "="}
        if self.format == "column":
            pairs = [f"({names[1 + x]},{names[1 + y]})" for x in range(self.base) for y in range(self.base)]
            names |= {self.base + 2 + i: pair for i, pair in enumerate(pairs)}
        else:
            names |= {self.base + 2: "×" if self.operation == "multiplication" else "+", self.base + 3: ";"}
        return [" ".join(names[token] for token in row if token > 0) for row in tokens.tolist()]

    def _batch(self, a: ndarray, b: ndarray, answer: ndarray) -> Batch:
        tokens = self.rows(a, b, answer)
        labels, hard = np.full_like(tokens, -1), np.zeros(tokens.shape, dtype=bool)
        last = self.digits(answer, self.width)
        x, y = (np.pad(self.digits(n, self.pad), ((0, 0), (0, self.width)))[:, : self.width] for n in (a, b))
        alone = (x * y if self.operation == "multiplication" else x + y) % self.base
        start = tokens.shape[1] - self.answers
        labels[:, start : start + self.width] = last + 1
        hard[:, start : start + self.width] = last != alone
        labels[:, start + self.width :] = self.base + 3
        return Batch(tokens, labels, hard)

    # Data

    def held_out(self, a: Int[ndarray, " size"], b: Int[ndarray, " size"]) -> Bool[ndarray, " size"]:
        """Whether pairs are kept from training: a hash of the two numbers, the same for (a, b) and (b, a). Sets with
        fewer than 64 pairs (by the larger number's digits) keep none."""
        few = next(n for n in range(1, 7) if self.base ** (2 * n) >= SMALL) - 1  # up to so many digits
        return ((_hash(a, b) >> np.uint64(40)) % np.uint64(HELD_OUT) == 0) & (np.maximum(a, b) >= self.base**few)

    def draw(
        self, rng: np.random.Generator, size: int, length: int, digits: int = 0, both: bool = False, part: str = "test"
    ) -> Int[ndarray, "size width"]:
        """Pairs of D_digits (``both``: of D_ab-digits; 0 stands for the trained number of digits). ``part`` is "train"
        or "test": up to the trained number of digits the test draws held-out pairs only, beyond it all are new."""
        require(length == self.length, "length", length, f"{self.length}, the length of every row of this task")
        digits = digits or self.train_digits
        require(1 <= digits <= self.pad, "digits", digits, f"between 1 and the pad width {self.pad}")
        require(part in ("train", "test"), "part", part, "'train' or 'test'")
        # D_n is disjoint from D_m, so without ``mixed`` only D_train_digits can be met in training; with it, sets too
        # small to spare a pair are scored on all of their pairs
        met = digits == self.train_digits or (self.mixed and digits < self.train_digits)
        hide = part == "train" or (met and self.base ** (2 * digits) >= SMALL)
        kept_a, kept_b, found = [], [], 0
        while found < size:
            a, b = self._pairs(rng.random((CHUNK, 2 * self.pad + 2)), digits, both, self.mixed and part == "train")
            kept = self.held_out(a, b) == (part == "test") if hide else np.ones(len(a), dtype=bool)
            if part == "train" and self.share < 1:
                kept &= (_hash(a, b) >> np.uint64(43)) / 2.0**21 < self.share  # other bits than `held_out` reads
            kept_a.append(a[kept])
            kept_b.append(b[kept])
            found += int(kept.sum())
            empty = found == 0 and len(kept_a) == CHUNK
            require(
                not empty, "train_digits", self.train_digits, f"so large that some pairs in base {self.base} are new"
            )
        return self.rows(np.concatenate(kept_a)[:size], np.concatenate(kept_b)[:size])

    def _pairs(self, draws: ndarray, digits: int, both: bool, mixed: bool) -> tuple[ndarray, ndarray]:
        """Candidates from uniform draws, 2 pad + 2 a pair: which operand is exact, how many digits, then the digits."""
        drawn = draws[:, 2:].reshape(len(draws), 2, self.pad)
        n = 1 + (draws[:, 1] * self.train_digits).astype(np.int64) if mixed else np.full(len(draws), digits)
        n = n[:, None, None]
        exact = (np.where(draws[:, :1] < 0.5, [True, False], [False, True]) | both)[:, :, None]
        place = np.arange(self.pad)
        leads = exact & (place == n - 1) & (n > 1)  # a leading digit that must not be 0
        shown = np.where(leads, 1 + np.floor(drawn * (self.base - 1)), np.floor(drawn * self.base)).astype(np.int64)
        a, b = (np.where(place < n, shown, 0) @ self.base**place).T
        return a, b

    def train_batch(self, rng: np.random.Generator, size: int, longest: int = 0) -> Batch:
        """Pairs that are not held out; every row has the same length, so ``longest`` is ignored."""
        return self.sample(rng, size, self.length, part="train")

    def reference(self) -> Shift:
        return Shift("reference", self.train_digits, self.length, options=(("digits", self.train_digits),))

    def shifts(self) -> tuple[Shift, ...]:
        """The reference and its floor, D_n and D_ab-n for every n up to ``test_digits``."""
        ns = range(1, self.test_digits + 1)
        return (
            self.reference(),
            self.floor(),
            *(Shift("digits", n, self.length, options=(("digits", n),)) for n in ns),
            *(Shift("both-digits", n, self.length, options=(("both", True), ("digits", n))) for n in ns),
        )

    def paths(self, batch: Batch) -> Float[ndarray, "size numbers"]:
        """The digits of both operands, last digit first, in units of the largest digit."""
        a, b = self.operands(batch.tokens)
        return np.concatenate([self.digits(a, self.pad), self.digits(b, self.pad)], axis=1) / (self.base - 1)

    # Theory

    def truncation_accuracy(self, digits: int, both: bool = False) -> Fraction:
        """The exact probability that the truncating predictor is right on D_digits (``both``: on D_ab-digits).

        With u, v the operands' parts above the trained n digits, x, y those below, and q = m / gcd(base^n, m): a sum
        modulo m is right iff q | u + v, a product iff q | x v + y u + base^n u v; without a modulus all of these terms
        must vanish. Summed over residues, for the law that `draw` samples.

        >>> Arithmetic(base=10, modulus=200, train_digits=2, pad=5, test_digits=5).truncation_accuracy(3, both=True)
        Fraction(41, 81)
        """
        n = self.train_digits
        if digits <= n:
            return Fraction(1)
        if not self.modulus:  # u or v is positive; a product is still right where the other operand is 0
            zero = self.operation == "multiplication" and not both
            return Fraction(1, self.base**digits) if zero else Fraction(0)
        q = self.modulus // gcd(self.base**n, self.modulus)
        any_high, low = self.base ** (digits - n), _residues(0, self.base**n, q)
        exact = _residues(any_high // self.base, any_high, q)
        other = exact if both else _residues(0, any_high, q)  # which operand is the exact one does not matter
        if self.operation == "addition":
            right = sum(exact[u] * other[-u % q] for u in range(q))
            return Fraction(right, sum(exact) * sum(other))
        right = 0
        for u in range(q):  # the condition, sorted: (x + base^n u) v = - u y modulo q
            times_u = [0] * q
            for y in range(q):
                times_u[u * y % q] += low[y]
            for x in range(q):
                s = (x + self.base**n * u) % q
                right += exact[u] * low[x] * sum(other[v] * times_u[-s * v % q] for v in range(q))
        return Fraction(right, sum(exact) * sum(other) * sum(low) ** 2)


def _hash(a: Int[ndarray, " size"], b: Int[ndarray, " size"]) -> ndarray:
    """64 mixed bits of two numbers, the same for (a, b) and (b, a)."""
    low, high = np.minimum(a, b).astype(np.uint64), np.maximum(a, b).astype(np.uint64)
    mixed = low * np.uint64(0x9E3779B97F4A7C15) + (high ^ (high >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)


def _residues(start: int, stop: int, q: int) -> list[int]:
    """How many of start..stop-1 leave each remainder modulo q."""
    return [(stop - r + q - 1) // q - (start - r + q - 1) // q for r in range(q)]


TASK = Arithmetic
