"""Dyck words over ``k`` bracket types: exact sampling, an independent checker, height paths, distances, search traces.

A word of length n is a row of tokens: 0..k-1 open a bracket of that type, k..2k-1 close one. Its height path is
h_0 = 0, h_i = (opens - closes among the first i tokens).
"""

from __future__ import annotations

import decimal
import functools
import itertools
import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int

from shiftbound import InputError, require
from shiftbound.traces import queens_trace, tree_to_word, word_to_tree  # noqa: F401  (part of this module's interface)

BRACKETS = "()[]{}<>"


def _check_k(k: int) -> None:
    require(isinstance(k, int | np.integer) and bool(k >= 1), "k", k, "a whole number, at least 1")


def _check_length(length: int) -> None:
    require(bool(length >= 0 and length % 2 == 0), "length", length, "an even whole number, at least 0")


# Sampling ---------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _rise(length: int, beta: float, top: int) -> Float[np.ndarray, "steps heights"]:
    """P(next token opens | r tokens to go, height h) at [r, h], for heights up to ``top``.

    W(r, h) is the total weight of all ways home from height h in r steps, so the answer is the share of those that rise
    first. W is kept in whole numbers (beta = 0) or 50-digit decimals, not in floating-point logarithms: the table is
    then the same to the last bit on every platform, and so is all data drawn from it.
    """
    heights = np.arange(top + 2)
    if beta == 0 and top >= length // 2:  # ballot numbers: W(r, h+1) / (W(r, h+1) + W(r, h-1)) in closed form
        r = np.arange(length + 1)[:, None]
        return np.maximum(r - heights, 0) * (heights + 2) / np.maximum(2 * r * (heights + 1), 1)
    table = np.zeros((length + 1, top + 2))
    with decimal.localcontext(decimal.Context(prec=50, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)):
        weight = np.array([(decimal.Decimal(beta) * h).exp() if beta else 1 for h in range(top + 2)], dtype=object)
        ways = np.array([1] + [0] * (top + 1), dtype=object)  # the last column is one above the cap and stays 0
        for r in range(1, length + 1):
            up, down = np.append((weight * ways)[1:], 0), np.append(0, (weight * ways)[:-1])
            up[top:] = down[top + 1] = 0
            ways = up + down
            table[r] = [float(u / w) if w else 0.0 for u, w in zip(up, ways, strict=True)]
    return table


def sample(
    rng: np.random.Generator,
    size: int,
    length: int,
    k: int = 2,
    beta: float = 0.0,
    cap: int | None = None,
    types: Sequence[float] | None = None,
) -> Int[np.ndarray, "size length"]:
    """Dyck words drawn exactly from P(w) ∝ exp(beta · Σ_i h_i(w)) · Π_(opens) types[type], heights at most ``cap``.

    With the defaults every word has probability 1 / `count`. The first m words do not depend on ``size``. ``types``
    holds k probabilities (None: uniform). Raises `InputError` for an odd length, k < 1, a cap below 1, or types that
    are no distribution.

    >>> [is_dyck(word, 2) for word in sample(np.random.default_rng(0), 3, 8)]
    [True, True, True]
    >>> render(sample(np.random.default_rng(0), 1, 8, k=1, cap=1)[0], k=1)
    '()()()()'

    Source: the recursive method for sampling combinatorial structures (Nijenhuis and Wilf, 1978), in exact arithmetic.
    """
    _check_length(length)
    _check_k(k)
    require(isinstance(size, int | np.integer) and size >= 0, "size", size, "a whole number, at least 0")
    require(math.isfinite(beta), "beta", beta, "a finite number")
    require(cap is None or cap >= 1, "cap", cap, "None or a whole number, at least 1")
    top = length // 2 if cap is None else min(cap, length // 2)
    rise = _rise(int(length), float(beta), int(top))
    draws, kinds = np.ascontiguousarray(rng.random((size, 2, length)).transpose(1, 2, 0))  # a step's draws together
    kinds = _kinds(kinds, k, types)
    words = np.empty((length, size), dtype=np.int64)
    stack = np.zeros((size, top + 1), dtype=np.int64)
    height = np.zeros(size, dtype=np.int64)
    rows = np.arange(size)
    for t in range(length):
        opens = draws[t] < rise[length - t, height]
        at = height - ~opens
        kind = np.where(opens, kinds[t], stack[rows, at])
        stack[rows, at] = kind  # a close writes back what was there
        words[t] = np.where(opens, kind, kind + k)
        height = at + opens
    return np.ascontiguousarray(words.T)


def _kinds(draws: np.ndarray, k: int, types: Sequence[float] | None) -> np.ndarray:  # uniform draws turned into types
    if types is None:
        return (draws * k).astype(np.int64)
    law = np.asarray(types, dtype=float)
    fine = law.shape == (k,) and bool(np.all(law >= 0)) and math.isclose(law.sum(), 1.0, abs_tol=1e-9)
    require(fine, "types", tuple(types), f"{k} probabilities that sum to 1")
    return np.minimum(np.searchsorted(np.cumsum(law), draws, side="right"), k - 1)


# Reading words ----------------------------------------------------------------------------------------------------


def is_dyck(word: Sequence[int] | Int[np.ndarray, " length"], k: int) -> bool:
    """Whether ``word`` is balanced: a plain stack that shares no code with `sample`.

    >>> is_dyck([0, 1, 3, 2], 2), is_dyck([0, 1, 2, 3], 2), is_dyck([0], 2)
    (True, False, False)
    """
    stack = []
    for token in word:
        if 0 <= token < k:
            stack.append(token)
        elif not k <= token < 2 * k or not stack or stack.pop() != token - k:
            return False
    return not stack


def heights(words: Int[np.ndarray, "*batch length"], k: int = 2) -> Int[np.ndarray, "*batch length+1"]:
    """The height paths h_0 = 0, ..., h_n of words.

    >>> heights(parse("(())()")).tolist()
    [0, 1, 2, 1, 0, 1, 0]
    """
    _check_k(k)
    steps = np.where(words < k, 1, -1)
    return np.concatenate([np.zeros((*steps.shape[:-1], 1), int), np.cumsum(steps, axis=-1)], axis=-1)


def stack_tops(words: Int[np.ndarray, "size length"], k: int = 2) -> Int[np.ndarray, "size length"]:
    """After each token, the type on top of the stack plus 1; 0 where it is empty.

    Every token from k on closes, whatever its type, so this reads searches with one generic pop as well. Prefixes are
    allowed; raises `InputError` where a close finds the stack empty.

    >>> stack_tops(parse("( ( [ [ ] ( ) ]")[None]).tolist()
    [[1, 1, 2, 2, 2, 1, 2, 1]]
    """
    path = heights(words, k)
    require(bool((path >= 0).all()), "words", "a row", "rows in which no close finds the stack empty")
    stack = np.zeros((len(words), int(path.max(initial=0)) + 1), dtype=np.int64)
    tops = np.empty_like(words)
    rows = np.arange(len(words))
    for t in range(words.shape[1]):
        above = path[:, t + 1]
        stack[rows, above] = np.where(words[:, t] < k, words[:, t] + 1, stack[rows, above])
        tops[:, t] = stack[rows, above]
    return tops


def count(n: int, k: int) -> int:
    """How many Dyck words of length n over k types there are: Catalan(n/2) · k^(n/2).

    >>> [count(n, 1) for n in (0, 2, 4, 6, 8)], count(4, 2)
    ([1, 1, 2, 5, 14], 8)
    """
    _check_length(n)
    _check_k(k)
    return math.comb(n, n // 2) // (n // 2 + 1) * k ** (n // 2)


def all_words(k: int, n: int) -> Int[np.ndarray, "count n"]:
    """Every Dyck word of length n over k types, in lexicographic order of tokens.

    >>> [render(word, k=1) for word in all_words(1, 6)]
    ['((()))', '(()())', '(())()', '()(())', '()()()']
    """
    _check_length(n)
    _check_k(k)
    partial: list[tuple[tuple, tuple]] = [((), ())]  # words so far and their stacks
    for left in range(n - 1, -1, -1):
        grown = [((*word, kind), (*stack, kind)) for word, stack in partial if len(stack) < left for kind in range(k)]
        closed = [((*word, k + stack[-1]), stack[:-1]) for word, stack in partial if stack]
        partial = grown + closed
    return np.array(sorted(word for word, _ in partial), dtype=np.int64).reshape(len(partial), n)


def parse(text: str, k: int = 2) -> Int[np.ndarray, " length"]:
    """The tokens of a text over the first k pairs of ``()[]{}<>``; spaces are skipped, balance is not checked.

    >>> parse("([])").tolist(), parse("( )", k=1).tolist()
    ([0, 1, 3, 2], [0, 1])
    """
    require(1 <= k <= 4, "k", k, "between 1 and 4 for words written in brackets")
    tokens = []
    for letter in "".join(text.split()):
        place = BRACKETS.find(letter)
        if not 0 <= place < 2 * k:
            raise InputError(f"{letter!r} in {text!r} is not allowed; a word is written in {BRACKETS[: 2 * k]}")
        tokens.append(place // 2 + k * (place % 2))
    return np.array(tokens, dtype=np.int64)


def render(word: Sequence[int] | Int[np.ndarray, " length"], k: int = 2) -> str:
    """A word in brackets; the inverse of `parse`.

    >>> render(parse("([])")), render([0, 4, 9, 5], k=5)
    ('([])', '(0 (4 4) 0)')
    """
    _check_k(k)
    word = [int(token) for token in word]
    for token in word:
        require(0 <= token < 2 * k, "token", token, f"between 0 and {2 * k - 1} for k = {k}")
    if k <= 4:
        return "".join(BRACKETS[2 * (token % k) + token // k] for token in word)
    return " ".join(f"({token}" if token < k else f"{token - k})" for token in word)


# Distances --------------------------------------------------------------------------------------------------------

Words = Int[np.ndarray, "... n"]  # one word, or a row each
Costs = Int[np.ndarray, "..."] | int


def _pairwise(x: np.ndarray, y: np.ndarray, reduce) -> Costs:  # one word a side gives a number, sets give a matrix
    cost = reduce(np.atleast_2d(x)[:, None, :], np.atleast_2d(y)[None, :, :])
    return int(cost[0, 0]) if x.ndim == y.ndim == 1 else cost


def l1_heights(x: Words, y: Words, k: int = 2) -> Costs:
    """Σ_i |h_i - h'_i|: a number for two words, a cost matrix for two sets.

    >>> l1_heights(parse("((()))"), parse("()()()"))
    6
    """
    return _pairwise(heights(x, k), heights(y, k), lambda a, b: np.abs(a - b).sum(axis=-1))


def sup_heights(x: Words, y: Words, k: int = 2) -> Costs:
    """max_i |h_i - h'_i|.

    >>> sup_heights(parse("((()))"), parse("()()()"))
    2
    """
    return _pairwise(heights(x, k), heights(y, k), lambda a, b: np.abs(a - b).max(axis=-1))


def hamming(x: Words, y: Words) -> Costs:
    """How many tokens differ.

    >>> hamming(parse("((()))"), parse("()()()"))
    2
    """
    return _pairwise(x, y, lambda a, b: (a != b).sum(axis=-1))


def levenshtein(x: Words, y: Int[np.ndarray, "... m"]) -> Costs:
    """The least number of insertions, deletions and substitutions; lengths may differ between the sides.

    >>> levenshtein(parse("((()))"), parse("()()()")), levenshtein(parse("()"), parse("(())"))
    (2, 2)
    """

    def table(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        shape = np.broadcast_shapes(a.shape[:2], b.shape[:2])
        row = [np.full(shape, j) for j in range(b.shape[2] + 1)]
        for i in range(a.shape[2]):
            above, row = row, [np.full(shape, i + 1)]
            for j in range(b.shape[2]):
                change = above[j] + (a[..., i] != b[..., j])
                row.append(np.minimum(np.minimum(above[j + 1], row[j]) + 1, change))
        return row[-1]

    return _pairwise(x, y, table)


def swap_distance(x: Words, y: Words) -> Costs:
    """The fewest swaps ``()`` <-> ``)(`` of neighbours that lead from x to y inside Dyck-1: ½ Σ_i |h_i - h'_i|.

    Dyck-1 only (tokens 0 and 1). The reference is `swap_distance_bfs`.

    >>> swap_distance(parse("((()))", k=1), parse("()()()", k=1))
    3
    """
    for word in itertools.chain(np.atleast_2d(x), np.atleast_2d(y)):
        require(is_dyck(word, 1), "word", tuple(word.tolist()), "balanced over one bracket type (tokens 0 and 1)")
    return l1_heights(x, y, k=1) // 2


def swap_distance_bfs(x: Int[np.ndarray, " n"], y: Int[np.ndarray, " n"]) -> int:
    """`swap_distance` of two Dyck-1 words by breadth-first search over the words: slow, and independent of heights.

    >>> swap_distance_bfs(parse("((()))", k=1), parse("()()()", k=1))
    3
    """
    start, goal = tuple(x.tolist()), tuple(y.tolist())
    for word in (start, goal):
        require(is_dyck(word, 1), "word", word, "balanced over one bracket type (tokens 0 and 1)")
    steps, queue = {start: 0}, deque([start])
    while goal not in steps:
        word = queue.popleft()
        for i in range(len(word) - 1):
            swapped = (*word[:i], word[i + 1], word[i], *word[i + 2 :])
            if swapped not in steps and is_dyck(swapped, 1):
                steps[swapped] = steps[word] + 1
                queue.append(swapped)
    return steps[goal]


def path_indices(length: int, points: int = 32) -> Int[np.ndarray, " points"]:
    """The ``points`` indices floor((i + 1/2) length / points) at which paths of any length are compared.

    >>> path_indices(64, 4).tolist()
    [8, 24, 40, 56]
    """
    require(points >= 1, "points", points, "a whole number, at least 1")
    return (2 * np.arange(points) + 1) * length // (2 * points)


def typed_paths(
    words: Int[np.ndarray, "size n"], k: int = 2, points: int = 32
) -> Float[np.ndarray, "size {k}*{points}"]:
    """Per-type height paths read at `path_indices`: row by row, type 0 at all points, then type 1, ...

    >>> typed_paths(parse("([])")[None], points=4).tolist()
    [[0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0]]
    """
    _check_k(k)
    at = path_indices(words.shape[1], points)
    kinds = np.arange(k)[:, None]
    steps = (words[:, None, :] == kinds).astype(np.float64) - (words[:, None, :] == kinds + k)
    paths = np.cumsum(np.pad(steps, ((0, 0), (0, 0), (1, 0))), axis=2)
    return paths[:, :, at].reshape(len(words), k * points)


def dyck_path_metric(
    x: Int[np.ndarray, "size n"], y: Int[np.ndarray, "other m"], k: int = 2, points: int = 32
) -> Float[np.ndarray, "size other"]:
    """Mean over types and points of |difference of `typed_paths`|: a cost between words of any two lengths.

    >>> dyck_path_metric(parse("(())")[None], parse("(())(())")[None], points=8).tolist()
    [[0.375]]
    """
    from scipy.spatial.distance import cdist

    return cdist(typed_paths(x, k, points), typed_paths(y, k, points), "cityblock") / (k * points)
