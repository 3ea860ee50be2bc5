"""Searches as words: a depth-first search of a tree writes a Dyck word, and a word is read back as one tree.

Going down an edge with label c writes token c (an open bracket), coming back writes c + k (its close). These functions
are used as ``words.tree_to_word`` and so on.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from shiftbound import require

Tree = tuple  # an ordered tree with labelled edges: a tuple of pairs (label of the edge, subtree)


def tree_to_word(tree: Tree, k: int = 2) -> Int[np.ndarray, " length"]:
    """The depth-first trace of an ordered tree whose edges carry labels 0..k-1: open going down, close coming back.

    A tree is a tuple of pairs (label, subtree). Its n edges become a Dyck-k word of length 2n, and every such word is
    the trace of exactly one tree (`word_to_tree`).

    >>> tree_to_word(((0, ((1, ()),)), (1, ()))).tolist()
    [0, 1, 3, 2, 1, 3]
    """
    word, todo = [], list(reversed(tree))
    while todo:
        step = todo.pop()
        if isinstance(step, int):  # all of the subtree is done: come back
            word.append(step)
            continue
        label, below = step
        require(0 <= label < k, "label", label, f"between 0 and {k - 1} for k = {k}")
        word.append(label)
        todo += [label + k, *reversed(below)]
    return np.array(word, dtype=np.int64)


def word_to_tree(word: Sequence[int] | Int[np.ndarray, " length"], k: int = 2) -> Tree:
    """The tree whose depth-first trace is ``word``; raises `InputError` where the word is not balanced.

    >>> word_to_tree([0, 1, 3, 2, 1, 3])
    ((0, ((1, ()),)), (1, ()))
    """
    given, balanced = tuple(int(token) for token in word), f"a Dyck word over {k} bracket types"
    levels: list[tuple[int, list]] = [(-1, [])]  # the labels that are open, and the children found below each so far
    for token in given:
        if 0 <= token < k:
            levels.append((token, []))
            continue
        label, children = levels.pop()
        require(label >= 0 and label == token - k, "word", given, balanced)
        levels[-1][1].append((label, tuple(children)))
    require(len(levels) == 1, "word", given, balanced)
    return tuple(levels[0][1])


def queens_trace(n: int, first: bool = False) -> Int[np.ndarray, " events"]:
    """The trace of backtracking for n queens, row by row: token c places a queen in column c, n + c takes it back.

    The exhaustive search is a Dyck-n word; with ``first`` it stops at the first solution and is only a prefix of one.

    >>> len(queens_trace(6)), len(queens_trace(6, first=True))
    (304, 56)
    """
    require(isinstance(n, int) and n >= 1, "n", n, "a whole number, at least 1")
    events: list[int] = []

    def solved(columns: list[int]) -> bool:
        if len(columns) == n:
            return first
        for c in range(n):
            if all(c != other and abs(c - other) != len(columns) - r for r, other in enumerate(columns)):
                events.append(c)
                if solved([*columns, c]):
                    return True
                events.append(c + n)
        return False

    solved([])
    return np.array(events, dtype=np.int64)
