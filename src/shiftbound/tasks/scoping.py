"""Nested scopes: what is the value of a variable where it is used?"""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from shiftbound import require, words
from shiftbound.tasks import HOME, Batch, Shift, Task

SCOPE, USE = 0.4, 0.35
# No level above 2.5: at 4 scopes hardly close, and .006 of the uses are hard, too few to score. W1 grows with the
# level, while models in trials lost next to nothing at any: kept, as the type mix is, because that is worth showing.
CLOSING = (-1.0, 0.5, 1.0, 1.5, 2.5)


@dataclass(frozen=True)
class Scoping(Task):
    """Programs of ``{``, ``}``, ``let x=v`` and ``use x``. Tokens: BOS 0, ``{`` 1, ``}`` 2, then the lets (variable by
    variable), then the uses. At a use the label is the value of the innermost ``let`` still in scope plus 1, 0 if the
    variable is unbound there; a ``}`` undoes the lets of its scope.

    Hard positions: uses of a bound variable whose last ``let`` in the text is out of scope, so that an older value came
    back.

    >>> task = Scoping()
    >>> program = task.rows("let x=2 { let x=0 use x use y } use x { let y=1 } use y")
    >>> task.label(program).labels.tolist()
    [[-1, -1, -1, -1, 1, 0, -1, 3, -1, -1, -1, 0]]
    >>> task.label(program).hard[0].nonzero()[0].tolist()
    [7]
    """

    variables: int = 3
    values: int = 4
    name: ClassVar[str] = "scoping"

    def __post_init__(self) -> None:
        require(self.variables >= 1, "variables", self.variables, "a whole number, at least 1")
        require(self.values >= 2, "values", self.values, "a whole number, at least 2")

    @property
    def vocab(self) -> int:
        return 3 + self.variables * (self.values + 1)

    @property
    def classes(self) -> int:
        return self.values + 1

    def rows(self, program: str) -> Int[ndarray, "1 width"]:
        """One row of tokens from a readable program; the variables are x, y, z, then w, v, ..."""
        variables = "xyzwvutsrq"[: self.variables]
        spelled = {"{": 1, "}": 2}
        for i, variable in enumerate(variables):
            spelled |= {f"let {variable}={value}": 3 + i * self.values + value for value in range(self.values)}
            spelled[f"use {variable}"] = 3 + self.variables * self.values + i
        parts = program.replace("let ", "let_").replace("use ", "use_").split()
        return np.array([[0, *(spelled[part.replace("_", " ")] for part in parts)]])

    def draw(
        self, rng: np.random.Generator, size: int, length: int, closing: float = 0.0
    ) -> Int[ndarray, "size width"]:
        """A scope token with probability .4, a use with .35, else a let; variables and values uniform.

        A scope token closes with probability 1 / (1 + exp(closing)), and opens where no scope is open. A row without
        any use until then ends in one, so that every row has a label.
        """
        with decimal.localcontext(prec=30):  # the same threshold on every platform
            shut = float(1 / (1 + decimal.Decimal(closing).exp()))
        draws = np.ascontiguousarray(rng.random((size, length, 4)).transpose(1, 2, 0))
        tokens = np.zeros((size, length + 1), dtype=np.int64)
        depth = np.zeros(size, dtype=np.int64)
        used = np.zeros(size, dtype=bool)
        for t in range(length):
            kind, way, which, what = draws[t]
            variable = (which * self.variables).astype(np.int64)
            use = ((kind >= SCOPE) & (kind < SCOPE + USE)) | (~used & (t == length - 1))
            scope = (kind < SCOPE) & ~use
            closes = (way < shut) & (depth > 0)
            let = 3 + variable * self.values + (what * self.values).astype(np.int64)
            scoped = np.where(closes, 2, 1)
            tokens[:, t + 1] = np.select([use, scope], [3 + self.variables * self.values + variable, scoped], let)
            depth += np.where(scope, np.where(closes, -1, 1), 0)
            used |= use
        return tokens

    def label(self, tokens: Int[ndarray, "size width"]) -> Batch:
        size, width = tokens.shape
        rows = np.arange(size)
        labels, hard = np.full_like(tokens, -1), np.zeros(tokens.shape, dtype=bool)
        depth = np.pad(self.depths(tokens), ((0, 0), (1, 0)))
        require(bool((depth >= 0).all()), "tokens", "a row", "rows in which no } stands without its {")
        value = np.zeros((size, int(depth.max(initial=0)) + 1, self.variables), dtype=np.int64)  # visible, by depth
        origin = np.zeros_like(value)  # the position of the let that it comes from
        latest = np.zeros((size, self.variables), dtype=np.int64)  # the position of the last let in the text
        for t in range(1, width):
            token, now = tokens[:, t], depth[:, t]
            opens = np.flatnonzero(token == 1)
            value[opens, now[opens]] = value[opens, now[opens] - 1]
            origin[opens, now[opens]] = origin[opens, now[opens] - 1]
            lets = np.flatnonzero((token >= 3) & (token < 3 + self.variables * self.values))
            variable, given = np.divmod(token[lets] - 3, self.values)
            value[lets, now[lets], variable] = given + 1
            origin[lets, now[lets], variable] = t
            latest[lets, variable] = t
            uses = np.flatnonzero(token >= 3 + self.variables * self.values)
            variable = token[uses] - 3 - self.variables * self.values
            labels[uses, t] = value[uses, now[uses], variable]
            hard[uses, t] = (labels[uses, t] > 0) & (origin[uses, now[uses], variable] != latest[uses, variable])
        require(
            len(rows) == 0 or bool((labels >= 0).any(axis=1).all()), "tokens", "a row", "rows with at least one use"
        )
        return Batch(tokens, labels, hard)

    def depths(self, tokens: Int[ndarray, "size width"]) -> Int[ndarray, "size length"]:
        """Open scopes after each token."""
        return np.cumsum((tokens[:, 1:] == 1).astype(np.int64) - (tokens[:, 1:] == 2), axis=1)

    def paths(self, batch: Batch) -> Float[ndarray, "size numbers"]:
        """The scope depth at 32 normalised times."""
        depths = self.depths(batch.tokens)
        return depths[:, words.path_indices(depths.shape[1])].astype(float)

    def own_shifts(self) -> tuple[Shift, ...]:
        """From scopes that close soon (negative) to scopes that hardly ever close."""
        return tuple(Shift("closing", beta, HOME, options=(("closing", beta),)) for beta in CLOSING)


TASK = Scoping
