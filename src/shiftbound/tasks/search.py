"""Depth-first searches: after every step back, at which node is the search now?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from shiftbound import words
from shiftbound.tasks import Batch
from shiftbound.tasks.dyck import Dyck


@dataclass(frozen=True)
class Search(Dyck):
    """The trace of a depth-first search. Tokens: BOS 0, push of node 1..k, one pop k+1 for all of them.

    The label stands at pops only: the node that the search comes back to, 0 for the root. Hard: it is not the root.

    >>> task = Search(k=8)
    >>> trace = task.rows(words.parse("( [ ] [ ( ) ] )")[None])  # the brackets' types are nodes 1 and 2
    >>> task.label(np.array([[0, 1, 2, 9, 2, 1, 9, 9, 9]])).labels.tolist()
    [[-1, -1, -1, 1, -1, -1, 2, 1, 0]]
    """

    k: int = 8
    name: ClassVar[str] = "search"
    mixes: ClassVar[tuple[float, ...]] = (0.3, 0.6, 0.8, 0.95)

    @property
    def vocab(self) -> int:
        return self.k + 2

    def rows(self, word: Int[ndarray, "size length"]) -> Int[ndarray, "size width"]:
        return np.pad(np.minimum(word, self.k) + 1, ((0, 0), (1, 0)))

    def words(self, tokens: Int[ndarray, "size width"]) -> Int[ndarray, "size length"]:
        trace = tokens[:, 1:] - 1
        tops = np.pad(words.stack_tops(trace, self.k), ((0, 0), (1, 0)))[:, :-1]  # what a pop takes away
        return np.where(trace < self.k, trace, tops - 1 + self.k)

    def label(self, tokens: Int[ndarray, "size width"]) -> Batch:
        every = super().label(tokens)
        pops = tokens > self.k
        return Batch(tokens, np.where(pops, every.labels, -1), every.hard)


TASK = Search
