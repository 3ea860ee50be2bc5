"""Bracket words: after every token, which bracket may close next?"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from shiftbound import require, words
from shiftbound.tasks import HOME, Batch, Shift, Task

CAP, CAPPED = 6, (48, 96, 192)  # three lengths rank a family; the full list would double the cost of scoring
TILTS = (-0.15, 0.05, 0.1, 0.2, 0.4)
PREFIXES = (4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Dyck(Task):
    """Dyck-k words. Tokens: BOS 0, opens 1..k, closes k+1..2k; the label is the type on top of the stack, 0 if empty.

    Hard positions: after a close, with a bracket still open; elsewhere the label is 0 or was just read.

    >>> task = Dyck(k=2)
    >>> word = words.parse("( ( [ [ ] ( ) ]")
    >>> task.label(task.rows(word[None])).labels.tolist()
    [[-1, 1, 1, 2, 2, 2, 1, 2, 1]]
    >>> task.label(task.rows(word[None])).hard[0].nonzero()[0].tolist()
    [5, 7, 8]
    """

    k: int = 2
    name: ClassVar[str] = "dyck"
    mixes: ClassVar[tuple[float, ...]] = (0.65, 0.8, 0.9, 0.97)

    def __post_init__(self) -> None:
        require(self.k >= 1, "k", self.k, "a whole number, at least 1")

    @property
    def vocab(self) -> int:
        return 2 * self.k + 1

    @property
    def classes(self) -> int:
        return self.k + 1

    def rows(self, word: Int[ndarray, "size length"]) -> Int[ndarray, "size width"]:
        """Words as this task writes them, behind BOS."""
        return np.pad(word + 1, ((0, 0), (1, 0)))

    def words(self, tokens: Int[ndarray, "size width"]) -> Int[ndarray, "size length"]:
        """The words that ``tokens`` write; the inverse of `rows`."""
        return tokens[:, 1:] - 1

    def draw(
        self,
        rng: np.random.Generator,
        size: int,
        length: int,
        beta: float = 0.0,
        cap: int | None = None,
        first: float | None = None,
        prefix: int = 0,
    ) -> Int[ndarray, "size width"]:
        """Exactly sampled words: nested by ``beta``, at most ``cap`` high, the first type with probability ``first``
        (the others share the rest); the first ``prefix`` of the ``length`` tokens are ``()()...``.
        """
        require(0 <= prefix <= length and prefix % 2 == 0, "prefix", prefix, f"an even whole number up to {length}")
        types = None if first is None else [first, *[(1 - first) / (self.k - 1)] * (self.k - 1)]
        word = words.sample(rng, size, length - prefix, self.k, beta, cap, types)
        harmless = np.tile([0, self.k], (size, prefix // 2)).reshape(size, prefix)
        return self.rows(np.concatenate([harmless, word], axis=1))

    def label(self, tokens: Int[ndarray, "size width"]) -> Batch:
        labels = np.pad(words.stack_tops(tokens[:, 1:] - 1, self.k), ((0, 0), (1, 0)), constant_values=-1)
        return Batch(tokens, labels, (tokens > self.k) & (labels > 0))

    def sample(self, rng: np.random.Generator, size: int, length: int, **options) -> Batch:
        """`Task.sample`; what stands in a harmless ``prefix`` is not supervised: the word alone is scored."""
        batch = super().sample(rng, size, length, **options)
        scored = np.arange(length + 1) > options.get("prefix", 0)
        return dataclasses.replace(batch, labels=np.where(scored, batch.labels, -1), hard=batch.hard & scored)

    def paths(self, batch: Batch) -> Float[ndarray, "size numbers"]:
        """Per-type height paths at 32 normalised times (`words.typed_paths`)."""
        return words.typed_paths(self.words(batch.tokens), self.k)

    def own_shifts(self) -> tuple[Shift, ...]:
        """Length with heights capped at 6, nesting tilt, type mix, harmless prefix."""
        return (
            *(Shift("capped", n, n, options=(("cap", CAP),)) for n in CAPPED),
            *(Shift("tilt", beta, HOME, options=(("beta", beta),)) for beta in TILTS),
            *(Shift("types", p, HOME, options=(("first", p),)) for p in (self.mixes if self.k > 1 else ())),
            *(Shift("prefix", n, HOME + n, options=(("prefix", n),)) for n in PREFIXES),
        )


TASK = Dyck
