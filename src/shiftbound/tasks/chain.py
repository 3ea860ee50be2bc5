"""Chains of inference: from which axiom does each new fact follow in the end?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from shiftbound import require, words
from shiftbound.tasks import HOME, Batch, Shift, Task

AXIOM = 0.25
# No level below .06: then one axiom reaches all variables, and at .02 "the first axiom named" is right .92 of the time.
# For the same reason risk hardly rises as chains grow long: they lead to fewer different axioms.
AXIOMS = (0.6, 0.4, 0.18, 0.12, 0.06)


@dataclass(frozen=True)
class Chain(Task):
    """Inference steps ``dst := src``, one token each: 1 + dst · (axioms + variables) + src, where src is an axiom
    (0..axioms-1) or a variable (axioms..), read as its latest binding. The label of a step is the axiom that dst now
    follows from.

    The depth of a step is the number of look-ups from dst to its axiom: 0 for ``dst := axiom``, one more than the depth
    of its source otherwise. Hard positions have depth 2 or more: one look-up does not reach the axiom.

    >>> task = Chain()
    >>> steps = task.rows([("x", "B"), ("y", "x"), ("x", "D"), ("z", "y"), ("y", "x")])
    >>> task.label(steps).labels.tolist()
    [[-1, 1, 1, 3, 1, 3]]
    >>> task.depths(steps).tolist()
    [[0, 1, 0, 2, 1]]
    """

    variables: int = 4
    axioms: int = 4
    name: ClassVar[str] = "chain"

    def __post_init__(self) -> None:
        require(self.variables >= 2, "variables", self.variables, "a whole number, at least 2")
        require(self.axioms >= 2, "axioms", self.axioms, "a whole number, at least 2")

    @property
    def vocab(self) -> int:
        return 1 + self.variables * (self.axioms + self.variables)

    @property
    def classes(self) -> int:
        return self.axioms

    def rows(self, steps: list[tuple[str, str]]) -> Int[ndarray, "1 width"]:
        """One row of tokens from readable steps: axioms A, B, ...; variables x, y, z, then w, v, ..."""
        names = {chr(ord("A") + i): i for i in range(self.axioms)}
        names |= {variable: self.axioms + i for i, variable in enumerate("xyzwvutsrq"[: self.variables])}
        sources = self.axioms + self.variables
        return np.array([[0, *(1 + (names[d] - self.axioms) * sources + names[s] for d, s in steps)]])

    def draw(
        self, rng: np.random.Generator, size: int, length: int, axiom: float = AXIOM
    ) -> Int[ndarray, "size width"]:
        """dst uniform; src an axiom with probability ``axiom`` (and first of all), else a variable bound so far."""
        require(0 <= axiom <= 1, "axiom", axiom, "a probability")
        tokens = np.zeros((size, length + 1), dtype=np.int64)
        bound = np.zeros((size, self.variables), dtype=bool)
        rows, draws = np.arange(size), np.ascontiguousarray(rng.random((size, length, 3)).transpose(1, 2, 0))
        for t in range(length):
            kind, which, where = draws[t]
            direct = (kind < axiom) | ~bound.any(axis=1)
            wanted = (which * bound.sum(axis=1)).astype(np.int64) + 1  # of the bound variables, the wanted-th
            variable = (np.cumsum(bound, axis=1) >= wanted[:, None]).argmax(axis=1)
            source = np.where(direct, (which * self.axioms).astype(np.int64), self.axioms + variable)
            target = (where * self.variables).astype(np.int64)
            tokens[:, t + 1] = 1 + target * (self.axioms + self.variables) + source
            bound[rows, target] = True
        return tokens

    def label(self, tokens: Int[ndarray, "size width"]) -> Batch:
        roots, depths = self._follow(tokens)
        pad = ((0, 0), (1, 0))
        return Batch(tokens, np.pad(roots, pad, constant_values=-1), np.pad(depths >= 2, pad))

    def depths(self, tokens: Int[ndarray, "size width"]) -> Int[ndarray, "size length"]:
        """Look-ups from each step's dst to its axiom."""
        return self._follow(tokens)[1]

    def paths(self, batch: Batch) -> Float[ndarray, "size numbers"]:
        """The depth at 32 normalised times."""
        depths = self.depths(batch.tokens)
        return depths[:, words.path_indices(depths.shape[1])].astype(float)

    def own_shifts(self) -> tuple[Shift, ...]:
        """P(axiom), from short chains to long ones."""
        return tuple(Shift("axioms", p, HOME, options=(("axiom", p),)) for p in AXIOMS)

    def _follow(self, tokens: ndarray) -> tuple[ndarray, ndarray]:
        target, source = np.divmod(tokens[:, 1:] - 1, self.axioms + self.variables)
        root = np.full((len(tokens), self.variables), -1)
        depth = np.zeros_like(root)
        roots, depths = np.empty_like(target), np.empty_like(target)
        rows = np.arange(len(tokens))
        for t in range(target.shape[1]):
            direct = source[:, t] < self.axioms
            variable = np.maximum(source[:, t] - self.axioms, 0)
            roots[:, t] = np.where(direct, source[:, t], root[rows, variable])
            depths[:, t] = np.where(direct, 0, depth[rows, variable] + 1)
            root[rows, target[:, t]], depth[rows, target[:, t]] = roots[:, t], depths[:, t]
        require(bool((roots >= 0).all()), "tokens", "a row", "rows that read no variable before it is bound")
        return roots, depths


TASK = Chain
