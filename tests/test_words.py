"""Dyck words: exact sampling against an independent checker and the exact law, heights, distances, search traces."""

from __future__ import annotations

import doctest
import itertools
import math
from collections import Counter

import numpy as np
import pytest
from scipy import stats

from shiftbound import InputError, traces, words
from shiftbound.tasks import LENGTHS

CHI_SQUARE = 1e-4  # a seeded draw of the right law is refused with this probability; a wrong one practically always


def by_recursion(k: int, n: int) -> set[tuple[int, ...]]:
    """All Dyck-k words by the grammar S -> () | open S close S, which nothing in `words` uses."""
    if n == 0:
        return {()}
    return {
        (kind, *inner, kind + k, *rest)
        for half in range(0, n, 2)
        for kind in range(k)
        for inner in by_recursion(k, half)
        for rest in by_recursion(k, n - 2 - half)
    }


@pytest.mark.parametrize("module", [words, traces])
def test_examples(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("length", sorted({0, 2, 8, 12, 32, *LENGTHS}))
def test_ten_thousand_words_of_every_length_are_balanced(length):
    drawn = words.sample(np.random.default_rng(length), 10_000, length)
    assert drawn.shape == (10_000, length)
    assert all(words.is_dyck(word, 2) for word in drawn.tolist())


@pytest.mark.parametrize(
    "options", [{"beta": 0.4}, {"beta": -0.15}, {"cap": 6}, {"cap": 1, "k": 3}, {"k": 8, "beta": 0.1}]
)
def test_tilted_and_capped_words_are_balanced(options):
    k = options.get("k", 2)
    drawn = words.sample(np.random.default_rng(1), 10_000, 64, **options)
    assert all(words.is_dyck(word, k) for word in drawn.tolist())
    assert words.heights(drawn, k).max() <= options.get("cap", 32)


@pytest.mark.parametrize(("k", "n"), [(1, 0), (1, 2), (1, 8), (1, 12), (2, 4), (2, 8), (3, 6)])
def test_all_words_are_exactly_those_of_the_grammar(k, n):
    listed = [tuple(word) for word in words.all_words(k, n).tolist()]
    assert listed == sorted(by_recursion(k, n))
    assert len(listed) == words.count(n, k)
    assert all(words.is_dyck(word, k) for word in listed)
    if (2 * k) ** n <= 5_000:  # and no other row of tokens is balanced
        assert len(listed) == sum(words.is_dyck(row, k) for row in itertools.product(range(2 * k), repeat=n))


def law(k: int, n: int, beta: float = 0.0, cap: int | None = None, types: list[float] | None = None) -> dict:
    """P(word) from its definition, over all words."""
    weights = {}
    for word in by_recursion(k, n):
        path = np.cumsum([1 if token < k else -1 for token in word])
        if cap is None or path.max() <= cap:
            share = math.prod(types[token] for token in word if token < k) if types else 1.0
            weights[word] = math.exp(beta * path.sum()) * share
    total = sum(weights.values())
    return {word: weight / total for word, weight in weights.items()}


@pytest.mark.parametrize(
    ("k", "n", "options"),
    [
        (1, 8, {}),
        (2, 6, {}),
        (3, 4, {}),
        (1, 10, {"beta": 0.2}),
        (1, 10, {"beta": -0.15}),
        (2, 6, {"cap": 2}),
        (1, 10, {"cap": 3, "beta": 0.4}),
        (2, 6, {"types": [0.8, 0.2]}),
        (3, 4, {"types": [0.5, 0.3, 0.2], "beta": 0.3}),
    ],
)
def test_sampling_has_the_exact_law(k, n, options):
    expected = law(k, n, **options)
    size = 20_000
    seen = Counter(map(tuple, words.sample(np.random.default_rng(7), size, n, k, **options).tolist()))
    assert set(seen) <= set(expected)
    keys = sorted(expected)
    result = stats.chisquare([seen[key] for key in keys], [size * expected[key] for key in keys])
    assert result.pvalue > CHI_SQUARE


def test_the_chi_square_would_notice_a_wrong_law():
    """The guard above is worth something: words grown by fair coin flips are not uniform, and it sees that."""
    rng = np.random.default_rng(0)
    seen = Counter()
    for _ in range(20_000):
        height, path = 0, []
        for left in range(8, 0, -1):
            rises = height == 0 or (height < left and rng.random() < 0.5)
            path.append(0 if rises else 1)
            height += 1 if rises else -1
        seen[tuple(path)] += 1
    assert len(seen) == words.count(8, 1)
    assert stats.chisquare(list(seen.values())).pvalue < CHI_SQUARE


def test_the_closed_form_of_the_rise_probability_is_the_count_of_words():
    closed = words._rise(40, 0.0, 20)
    counted = words._rise(40, 0.0, 19)  # a cap that only the one highest word of 40 tokens feels, so the general route
    reachable = [(r, h) for r in range(1, 19) for h in range(r + 1) if (r + h) % 2 == 0 and h + r <= 19]
    for r, h in reachable:
        assert closed[r, h] == counted[r, h]


def test_mean_area_matches_the_exact_one():
    n = 32  # the areas of all Dyck paths of length n under unit steps sum to 4^(n/2) - Catalan-like terms; by recursion
    weight = np.zeros((n // 2 + 2, 2))  # number of prefixes at height h, and their total area
    weight[0, 0] = 1
    for _ in range(n):
        new = np.zeros_like(weight)
        for h in range(n // 2 + 1):
            for step in (-1, 1):
                if 0 <= h + step <= n // 2:
                    new[h + step, 0] += weight[h, 0]
                    new[h + step, 1] += weight[h, 1] + (h + step) * weight[h, 0]
        weight = new
    assert weight[0, 0] == words.count(n, 1)
    areas = words.heights(words.sample(np.random.default_rng(3), 10_000, n)).sum(axis=1)
    error = areas.std(ddof=1) / math.sqrt(len(areas))
    assert abs(areas.mean() - weight[0, 1] / weight[0, 0]) < 4.5 * error


def test_the_first_words_do_not_depend_on_how_many_are_drawn():
    few, many = (words.sample(np.random.default_rng(5), size, 32, beta=0.1) for size in (7, 100))
    assert np.array_equal(few, many[:7])


def test_strong_tilts_stay_exact():
    nested = words.sample(np.random.default_rng(0), 20, 256, k=1, beta=60.0)
    assert np.array_equal(nested, np.repeat([[0] * 128 + [1] * 128], 20, axis=0))
    flat = words.sample(np.random.default_rng(0), 20, 256, k=1, beta=-60.0)
    assert np.array_equal(flat, np.repeat([[0, 1] * 128], 20, axis=0))


# Reading ----------------------------------------------------------------------------------------------------------


def test_stack_tops_against_a_plain_stack():
    for k, length in ((2, 32), (8, 64)):
        drawn = words.sample(np.random.default_rng(k), 2_000, length, k)
        generic = np.minimum(drawn, k)  # one pop for all types
        assert np.array_equal(words.stack_tops(drawn, k), words.stack_tops(generic, k))
        for word, tops in zip(drawn.tolist(), words.stack_tops(drawn, k).tolist(), strict=True):
            stack = [0]
            for token, top in zip(word, tops, strict=True):
                stack = [*stack, token + 1] if token < k else stack[:-1]
                assert top == stack[-1]
    with pytest.raises(InputError, match="no close finds the stack empty"):
        words.stack_tops(np.array([[2, 0]]))


def test_text_round_trips():
    for k in (1, 2, 3, 4):
        for word in words.sample(np.random.default_rng(k), 50, 16, k):
            assert np.array_equal(words.parse(words.render(word, k), k), word)


# Distances --------------------------------------------------------------------------------------------------------


def slow_levenshtein(x: tuple, y: tuple) -> int:
    if not x or not y:
        return len(x) + len(y)
    if x[0] == y[0]:
        return slow_levenshtein(x[1:], y[1:])
    return 1 + min(slow_levenshtein(x[1:], y), slow_levenshtein(x, y[1:]), slow_levenshtein(x[1:], y[1:]))


@pytest.mark.parametrize("pairs", [1, 2, 3, 4])
def test_distances_on_all_pairs_of_words(pairs):
    every = words.all_words(1, 2 * pairs)
    area, top, edits, differ = (
        words.l1_heights(every, every, 1),
        words.sup_heights(every, every, 1),
        words.levenshtein(every, every),
        words.hamming(every, every),
    )
    swaps = words.swap_distance(every, every)
    for (i, x), (j, y) in itertools.product(enumerate(every), repeat=2):
        h, g = words.heights(x, 1), words.heights(y, 1)
        assert area[i, j] == sum(abs(a - b) for a, b in zip(h, g, strict=True)) == words.l1_heights(x, y, 1)
        assert top[i, j] == max(abs(a - b) for a, b in zip(h, g, strict=True)) == words.sup_heights(x, y, 1)
        assert differ[i, j] == sum(a != b for a, b in zip(x, y, strict=True)) == words.hamming(x, y)
        assert swaps[i, j] == words.swap_distance_bfs(x, y) == words.swap_distance(x, y)
        if pairs <= 3:
            assert edits[i, j] == slow_levenshtein(tuple(x), tuple(y)) == words.levenshtein(x, y)


def test_levenshtein_across_lengths_and_set_sizes():
    rng = np.random.default_rng(0)
    x, y = words.sample(rng, 6, 4), words.sample(rng, 4, 8)
    costs = words.levenshtein(x, y)
    assert costs.shape == (6, 4)
    for i, j in itertools.product(range(6), range(4)):
        assert costs[i, j] == slow_levenshtein(tuple(x[i]), tuple(y[j]))


def test_typed_paths_against_counting():
    for length in (2, 12, 32, 40, 64):
        drawn = words.sample(np.random.default_rng(length), 50, length, 3)
        paths = words.typed_paths(drawn, 3, 32).reshape(50, 3, 32)
        for row, kind, point in itertools.product(range(50), range(3), range(32)):
            prefix = drawn[row, : math.floor((point + 0.5) * length / 32)].tolist()
            assert paths[row, kind, point] == prefix.count(kind) - prefix.count(kind + 3)
    x, y = words.sample(np.random.default_rng(0), 5, 32), words.sample(np.random.default_rng(1), 4, 64)
    by_hand = np.abs(words.typed_paths(x)[:, None] - words.typed_paths(y)[None]).mean(axis=2)
    assert np.allclose(words.dyck_path_metric(x, y), by_hand, atol=1e-12)


# Searches ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "edges"), [(1, 0), (1, 5), (2, 4), (2, 5)])
def test_trees_and_words_correspond_one_to_one(k, edges):
    every = words.all_words(k, 2 * edges)
    trees = {words.word_to_tree(word, k) for word in every.tolist()}
    assert len(trees) == len(every) == words.count(2 * edges, k)

    def edges_of(tree: tuple) -> int:
        return sum(1 + edges_of(below) for _, below in tree)

    assert all(edges_of(tree) == edges for tree in trees)
    assert {tuple(words.tree_to_word(tree, k).tolist()) for tree in trees} == {tuple(word) for word in every.tolist()}


def test_deep_trees_do_not_exhaust_the_stack():
    word = np.repeat([0, 1], 5_000)
    assert np.array_equal(words.tree_to_word(words.word_to_tree(word, 1), 1), word)


@pytest.mark.parametrize(("n", "solutions"), [(1, 1), (2, 0), (3, 0), (4, 2), (5, 10), (6, 4)])
def test_exhaustive_backtracking_is_a_dyck_word(n, solutions):
    trace = words.queens_trace(n)
    assert words.is_dyck(trace.tolist(), n)
    path = words.heights(trace, n)
    assert int((path == n).sum()) == solutions  # each full board is visited once
    boards = {tuple(b) for b in itertools.permutations(range(n)) if legal(b)}
    assert len(boards) == solutions


def legal(board: tuple[int, ...]) -> bool:
    return all(abs(board[i] - board[j]) != j - i for i, j in itertools.combinations(range(len(board)), 2))


def test_stopping_at_the_first_solution_leaves_a_prefix():
    whole, stopped = words.queens_trace(6), words.queens_trace(6, first=True)
    assert len(whole) == 304 and words.heights(whole, 6)[-1] == 0
    assert len(stopped) == 56 and words.heights(stopped, 6)[-1] == 6
    assert np.array_equal(whole[:56], stopped)
    assert not words.is_dyck(stopped.tolist(), 6)
    stack = []
    for token in stopped.tolist():
        stack = [*stack, token] if token < 6 else stack[:-1]
    assert legal(tuple(stack))


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda rng: words.sample(rng, 1, 7), "length = 7 is not allowed; it must be an even whole number, at least 0"),
        (lambda rng: words.sample(rng, 1, 8, k=0), "k = 0 is not allowed; it must be a whole number, at least 1"),
        (
            lambda rng: words.sample(rng, 1, 8, cap=0),
            "cap = 0 is not allowed; it must be None or a whole number, at least 1",
        ),
        (lambda rng: words.sample(rng, -1, 8), "size = -1 is not allowed; it must be a whole number, at least 0"),
        (lambda rng: words.sample(rng, 1, 8, beta=math.inf), "beta = inf is not allowed; it must be a finite number"),
        (
            lambda rng: words.sample(rng, 1, 8, types=[0.5, 0.6]),
            "types = (0.5, 0.6) is not allowed; it must be 2 probabilities that sum to 1",
        ),
        (lambda rng: words.parse("(a)"), "'a' in '(a)' is not allowed; a word is written in ()[]"),
        (lambda rng: words.render([4]), "token = 4 is not allowed; it must be between 0 and 3 for k = 2"),
        (
            lambda rng: words.word_to_tree([0, 0, 2]),
            "word = (0, 0, 2) is not allowed; it must be a Dyck word over 2 bracket types",
        ),
        (lambda rng: words.tree_to_word(((5, ()),)), "label = 5 is not allowed; it must be between 0 and 1 for k = 2"),
        (lambda rng: words.queens_trace(0), "n = 0 is not allowed; it must be a whole number, at least 1"),
        (
            lambda rng: words.swap_distance(np.array([0, 2]), np.array([0, 1])),
            "word = (0, 2) is not allowed; it must be balanced over one bracket type (tokens 0 and 1)",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, says):
    with pytest.raises(InputError) as refused:
        call(np.random.default_rng(0))
    assert str(refused.value) == says
