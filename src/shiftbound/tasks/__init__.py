"""The tasks: what a model reads, what it must answer, and the graded shifts that it is scored on.

A task turns random draws into a `Batch`: rows of tokens, token 0 = BOS first, and one label a supervised position. It
names its `Shift` families; every shift has one data set, the same for all models, so that comparisons are paired.

Data are decided by numbers, never by the clock or the platform. Each data set comes from ``default_rng(stream)``:

    reference 11, floor 12, validation 77          training 1000 + seed
    length 500 + n                                 offset: the reference's own tokens
    capped 20000 + n                               tilt 30000 + 1000 beta
    types 40000 + 1000 p                           prefix 50000 + tokens
    axioms 60000 + 1000 p                          closing 70000 + 1000 beta
    digits 80000 + n                               both-digits 90000 + n

and draws only uniform numbers from it, compared with thresholds that are computed exactly; the first m rows do not
depend on how many are drawn. ``data_hashes.csv`` holds the SHA-256 that each set must have; a set that differs is an
error. After a deliberate change of the data write it anew with

    python -c "from shiftbound import tasks; tasks.write_hashes()"
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import importlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from shiftbound import InputError, require

NAMES = ("dyck", "search", "chain", "scoping", "arithmetic")
HOME = 32  # the length that models are trained up to and scored at
LENGTHS = (40, 48, 64, 96, 128, 192, 256)
OFFSETS = (1, 2, 4, 8, 32, 192)  # close together at first: learned positions lose most of what they lose by 16
STREAMS = {  # family: (first number, how much one unit of the level adds)
    "reference": (11, 0),
    "floor": (12, 0),
    "validation": (77, 0),
    "length": (500, 1),
    "offset": (11, 0),
    "capped": (20_000, 1),
    "tilt": (30_000, 1000),
    "types": (40_000, 1000),
    "prefix": (50_000, 1),
    "axioms": (60_000, 1000),
    "closing": (70_000, 1000),
    "digits": (80_000, 1),
    "both-digits": (90_000, 1),
}
GUARDED = 512  # rows of each data set that its SHA-256 covers: the most that the default scoring draws
HASHES = Path(__file__).parent.parent / "data_hashes.csv"
Level = int | float
Option = int | float | str | bool


class DataChanged(RuntimeError):
    """A fixed data set is not the one that the published results were made with."""


@dataclass(frozen=True, eq=False)
class Batch:
    """Rows of tokens (column 0 is BOS = 0), a label a position (-1: not supervised), and which positions are hard."""

    tokens: Int[ndarray, "size width"]
    labels: Int[ndarray, "size width"]
    hard: Bool[ndarray, "size width"]

    def __len__(self) -> int:
        return len(self.tokens)

    def head(self, size: int) -> Batch:
        """The first ``size`` rows."""
        return Batch(self.tokens[:size], self.labels[:size], self.hard[:size])

    @property
    def sha256(self) -> str:
        """SHA-256 over the shape and the arrays as little-endian 64-bit integers: equal on every platform."""
        digest = hashlib.sha256(np.asarray(self.tokens.shape, dtype="<i8").tobytes())
        for array in (self.tokens, self.labels, self.hard):
            digest.update(np.ascontiguousarray(array, dtype="<i8").tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Shift:
    """One way to leave the training distribution: sequences of ``length`` tokens (BOS not counted) drawn with
    ``options``, shown at position ids from ``offset`` on. ``level`` grades the shift within its ``family``."""

    family: str
    level: Level
    length: int
    offset: int = 0
    options: tuple[tuple[str, Option], ...] = ()

    @property
    def stream(self) -> int:
        """The number that seeds this shift's data (see the table above)."""
        require(self.family in STREAMS, "family", self.family, f"one of {_listed(STREAMS)}")
        first, step = STREAMS[self.family]
        return first + round(step * self.level)


@dataclass(frozen=True)
class Baselines:
    """Accuracy without reading: always the commonest label (overall; on hard positions), or a label at random."""

    majority: float
    majority_hard: float
    chance: float


@dataclass(frozen=True)
class Task(ABC):
    """A family of sequences with labels. Its fields are its options; equal options, equal task.

    A task says how tokens are drawn (`draw`), how labels follow from tokens (`label`), what a trajectory is for the
    model-free ground metric (`paths`) and which shifts it has of its own (`own_shifts`); the rest is common.
    """

    name: ClassVar[str]

    @property
    @abstractmethod
    def vocab(self) -> int:
        """Number of tokens, BOS included."""

    @property
    @abstractmethod
    def classes(self) -> int:
        """Number of labels."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, size: int, length: int, **options: Option) -> Int[ndarray, "size width"]:
        """Rows of tokens with BOS in front. The first m rows do not depend on ``size``."""

    @abstractmethod
    def label(self, tokens: Int[ndarray, "size width"]) -> Batch:
        """The labels and hard positions that follow from ``tokens``, BOS in column 0."""

    @abstractmethod
    def paths(self, batch: Batch) -> Float[ndarray, "size numbers"]:
        """Each trajectory as numbers; the ground metric is the mean of absolute differences."""

    def own_shifts(self) -> tuple[Shift, ...]:
        """The graded shifts that only this task has."""
        return ()

    def sample(self, rng: np.random.Generator, size: int, length: int, **options: Option) -> Batch:
        """``size`` labelled sequences of ``length`` tokens (BOS not counted).

        >>> get("dyck").sample(np.random.default_rng(0), 2, 4).tokens.tolist()
        [[0, 2, 2, 4, 4], [0, 2, 4, 2, 4]]
        """
        return self.label(self.draw(rng, size, length, **options))

    def train_batch(self, rng: np.random.Generator, size: int, longest: int = HOME) -> Batch:
        """A training batch, all of one length: ``longest`` in half of the batches, in the others an even length
        between 8 and ``longest``, uniformly.

        >>> rng = np.random.default_rng(1000)
        >>> [get("dyck").train_batch(rng, 32).tokens.shape[1] - 1 for step in range(6)]
        [22, 20, 32, 28, 32, 32]
        """
        require(longest >= 2 and longest % 2 == 0, "longest", longest, "an even whole number, at least 2")
        half, which = rng.random(2)
        shorter = 8 + 2 * int(which * ((longest - 8) // 2 + 1))
        return self.sample(rng, size, longest if half < 0.5 or longest < 8 else shorter)

    def reference(self) -> Shift:
        """The in-distribution data that every shift is compared with."""
        return Shift("reference", HOME, HOME)

    def floor(self) -> Shift:
        """A second, independent draw of the reference: its W1 to the reference is the noise floor."""
        return dataclasses.replace(self.reference(), family="floor")

    def validation(self) -> Shift:
        """The data that early stopping looks at; used for nothing else."""
        return dataclasses.replace(self.reference(), family="validation")

    def shifts(self) -> tuple[Shift, ...]:
        """Everything that one trained model is scored on, the reference and its floor first."""
        lengths = tuple(Shift("length", n, n) for n in LENGTHS)
        offsets = tuple(Shift("offset", by, HOME, by) for by in OFFSETS)
        return (self.reference(), self.floor(), *lengths, *offsets, *self.own_shifts())

    def shift(self, family: str, level: Level) -> Shift:
        """The shift of that family and level; raises `InputError` naming the known ones.

        >>> get("dyck").shift("tilt", 0.4).options
        (('beta', 0.4),)
        """
        levels: dict[str, list[Level]] = {}
        for each in self.shifts():
            levels.setdefault(each.family, []).append(each.level)
            if (each.family, each.level) == (family, level):
                return each
        require(family in levels, "family", family, f"one of {_listed(levels)}")
        raise InputError(f"level = {level!r} is not allowed; for {family!r} it must be one of {levels[family]}")

    def evaluation_batch(self, shift: Shift, size: int) -> Batch:
        """The first ``size`` rows of the fixed data set of ``shift``.

        Raises `DataChanged` where the set is one of the published ones and its SHA-256 is another.
        """
        require(size >= 1, "size", size, "a whole number, at least 1")
        if shift.family == "offset":  # the tokens are the reference's; only the position ids differ
            shift = dataclasses.replace(shift, family="reference", level=self.reference().level, offset=0)
        return _fixed(self, shift, max(size, GUARDED)).head(size)

    def data_hashes(self) -> dict[str, str]:
        """The SHA-256 of every fixed data set, by its name, as drawn here."""
        sets = [shift for shift in (*self.shifts(), self.validation()) if shift.family != "offset"]
        hashes = {_set_name(shift): _fixed(self, shift, GUARDED).head(GUARDED).sha256 for shift in sets}
        return hashes | {"training": self.train_batch(np.random.default_rng(1000), GUARDED).sha256}

    def baselines(self, batch: Batch) -> Baselines:
        """What guessing reaches on ``batch``.

        >>> get("dyck").baselines(get("dyck").evaluation_batch(get("dyck").reference(), 512)).chance.__round__(4)
        0.3333
        """
        return Baselines(
            _commonest(batch.labels[batch.labels >= 0]), _commonest(batch.labels[batch.hard]), 1 / self.classes
        )


def get(name: str, **options: Option) -> Task:
    """The task called ``name`` with ``options`` in place of its defaults.

    Raises `InputError` for an unknown task or option, naming the known ones.

    >>> get("search").k, get("search", k=4).vocab
    (8, 6)
    """
    require(name in NAMES, "task", name, f"one of {_listed(NAMES)}")
    # by name, so that a change to one task does not count as a change to the code of the others (see `store`)
    made = importlib.import_module(f"shiftbound.tasks.{name}").TASK
    defaults = {field.name: field.default for field in dataclasses.fields(made)}
    for option, value in options.items():
        require(option in defaults, f"option of {name}", option, f"one of {_listed(defaults)}")
        kind = type(defaults[option])
        given = float(value) if kind is float and type(value) is int else value
        require(
            type(given) is kind,
            option,
            value,
            {int: "a whole number", float: "a number", str: "a text", bool: "True or False"}[kind],
        )
        options[option] = given
    return made(**options)


# The guard on fixed data ------------------------------------------------------------------------------------------

ARITHMETIC = ({}, {"modulus": 9}, {"modulus": 28}, {"operation": "multiplication"})  # the columns of chapter 14


def _set_name(shift: Shift) -> str:
    return shift.family if shift.family in ("reference", "floor", "validation") else f"{shift.family} {shift.level}"


def _task_name(task: Task) -> str:
    changed = [
        f"{field.name}={getattr(task, field.name)}"
        for field in dataclasses.fields(task)
        if getattr(task, field.name) != field.default
    ]
    return " ".join([task.name, *changed])


@lru_cache(maxsize=128)
def _fixed(task: Task, shift: Shift, size: int) -> Batch:
    batch = task.sample(np.random.default_rng(shift.stream), size, shift.length, **dict(shift.options))
    expected = _expected().get((_task_name(task), _set_name(shift)))
    if expected is not None and shift == _same(task, shift):
        found = batch.head(GUARDED).sha256
        if found != expected:
            raise DataChanged(
                f"the data set {_set_name(shift)!r} of {_task_name(task)!r} has SHA-256 {found[:12]}... where "
                f"{expected[:12]}... is published: this code, NumPy or platform draws other data, and results would "
                "not be comparable"
            )
    return batch


def _same(task: Task, shift: Shift) -> Shift:
    """The published shift of that family and level (a home-made one of the same name is not guarded)."""
    return task.validation() if shift.family == "validation" else task.shift(shift.family, shift.level)


@cache
def _expected() -> dict[tuple[str, str], str]:
    if not HASHES.exists():
        raise DataChanged(f"{HASHES.name} is missing from the package, so fixed data cannot be verified")
    with HASHES.open(encoding="utf-8", newline="") as file:
        return {(row["task"], row["set"]): row["sha256"] for row in csv.DictReader(file)}


def write_hashes() -> None:
    """Write ``data_hashes.csv`` anew from the data as drawn here: only after a deliberate change of the data."""
    HASHES.write_text("task,set,sha256\n", encoding="utf-8")
    _expected.cache_clear()
    chosen = [get(name) for name in NAMES if name != "arithmetic"] + [get("arithmetic", **o) for o in ARITHMETIC]
    rows = [(_task_name(task), *pair) for task in chosen for pair in task.data_hashes().items()]
    with HASHES.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([("task", "set", "sha256"), *rows])
    _expected.cache_clear()


def _commonest(labels: ndarray) -> float:
    return float(np.bincount(labels).max() / len(labels)) if len(labels) else math.nan


def _listed(names) -> str:
    return ", ".join(repr(each) for each in names)
