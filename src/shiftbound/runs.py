"""What is trained and scored: a `Run`, a `Grid` of runs, and the profiles that choose them.

A `Run` is a frozen record of names and numbers that decides a trained model completely; a `Grid` is runs together with
how they are scored. A notebook builds its grid from its own parameters in a cell tagged ``grid``; the sweep runs these
cells with the profile's parameters, so the list of runs stands in one place only.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from shiftbound import InputError, require

HEAD = 16
TASKS = ("dyck", "search", "chain", "scoping", "arithmetic")
ENCODINGS = ("ape", "rope", "sinusoidal", "ape-offset", "ape-random", "alibi", "t5", "nope")
COUNTERS = ("counter", "counter-soft", "counter-feature")  # encodings of chapter 15, which read tokens, not ids
ATTENTIONS = ("softmax", "stick-breaking")
PUBLISHED = ("published", "published_arithmetic", "published_learning")  # the shipped files of book/results
MEASURES = ("evaluation", "answers", "error_rates")  # modules of this package whose ``score`` makes a run's rows
STEPS = {"dyck": 1000, "search": 1000, "chain": 2000, "scoping": 2000, "arithmetic": 1000}
Options = tuple[tuple[str, int | float | str | bool], ...]


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run: everything that decides its weights.

    ``options`` are the task's own (sorted pairs, e.g. ``(("k", 2),)``); ``length`` is the longest training length in
    tokens without BOS; ``steps`` is the most steps; ``early_stop`` ends a run at the gate of the protocol; ``window``
    bounds how far back a head sees (0: all the way); ``log_scale`` multiplies logits by the logarithm of how much a
    query sees.

    >>> Run(task="dyck", encoding="rope", depth=2, width=64, seed=0).name
    'dyck-rope-d2-w64-s0'
    """

    task: str
    encoding: str
    depth: int
    width: int
    seed: int = 0
    steps: int = 1000
    batch: int = 32
    length: int = 32
    lr: float = 3e-3
    decay: float = 0.01
    dropout: float = 0.0
    window: int = 0
    early_stop: bool = True
    control: str = ""
    options: Options = ()
    attention: str = "softmax"
    log_scale: bool = False

    def __post_init__(self) -> None:
        _known("task", self.task, TASKS)
        _known("encoding", self.encoding, ENCODINGS + COUNTERS)
        _known("attention", self.attention, ATTENTIONS)
        _known("log_scale", self.log_scale, (False, True))
        _known("control", self.control, ("", "shuffled-labels"))
        for field, least in {"depth": 1, "steps": 1, "batch": 2, "length": 2, "seed": 0, "window": 0}.items():
            given = getattr(self, field)
            require(isinstance(given, int) and given >= least, field, given, f"a whole number of at least {least}")
        whole = isinstance(self.width, int) and self.width > 0 and self.width % HEAD == 0
        require(whole, "width", self.width, f"a positive multiple of the head size {HEAD}")
        require(math.isfinite(self.lr) and self.lr > 0, "lr", self.lr, "a positive number")
        require(0 <= self.dropout < 1, "dropout", self.dropout, "at least 0 and below 1")
        require(self.decay >= 0, "decay", self.decay, "at least 0")

    @property
    def name(self) -> str:
        """A short name for people; two runs of one grid may differ in more than it shows."""
        extra = "".join(f"-{key}{value}" for key, value in self.options)
        window = f"-window{self.window}" if self.window else ""
        control = f"-{self.control}" if self.control else ""
        form = "" if self.attention == "softmax" else f"-{self.attention}"
        form += "-logn" if self.log_scale else ""
        return f"{self.task}{extra}-{self.encoding}{form}{window}-d{self.depth}-w{self.width}{control}-s{self.seed}"

    def canonical(self) -> str:
        """The run as JSON with sorted keys: equal runs, equal text."""
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How a trained run is scored: sequences a shift, and which shift families (all, if empty).

    ``measure`` is the module whose ``score(trained, run, scoring)`` makes the rows.
    W1 is measured between ``states`` states a side; at lengths 64, 128, 256 and for the floor ``states_long`` sequences
    and states are drawn, since these are the ones that a reader compares. ``max_length`` drops longer shifts.
    """

    sequences: int = 256
    states: int = 256
    states_long: int = 512
    draws: int = 200
    families: tuple[str, ...] = ()
    max_length: int = 256
    measure: str = "evaluation"

    def __post_init__(self) -> None:
        _known("measure", self.measure, MEASURES)
        for field, least in {"sequences": 16, "states": 16, "states_long": 16, "draws": 1, "max_length": 8}.items():
            given = getattr(self, field)
            require(isinstance(given, int) and given >= least, field, given, f"a whole number of at least {least}")
        require(self.states <= self.sequences, "states", self.states, f"at most sequences = {self.sequences}")

    def canonical(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class Grid:
    """Runs and how they are scored. With ``published``, the name of a shipped file, their rows are read from it."""

    runs: tuple[Run, ...]
    scoring: Scoring = dataclasses.field(default_factory=Scoring)
    published: str = ""

    def __post_init__(self) -> None:
        _known("published", self.published, ("", *PUBLISHED))
        require(len(set(self.runs)) == len(self.runs), "runs", f"{len(self.runs)} runs", "without repetition")

    def __len__(self) -> int:
        return len(self.runs)


def grid(
    *,
    tasks: Iterable[str],
    encodings: Iterable[str],
    depths: Iterable[int],
    widths: Iterable[int],
    seeds: Iterable[int] = (0,),
    step_factor: float = 1.0,
    scoring: Scoring | None = None,
    published: str = "",
    **settings: object,
) -> Grid:
    """The product of the axes, in the protocol of the book: the learning rate halves at depth 8 and beyond.

    Every run of a task has ``step_factor`` times the task's own number of steps; ``settings`` go to every `Run`,
    ``scoring`` and ``published`` to the `Grid`.

    >>> len(grid(tasks=["dyck", "search"], encodings=["ape", "rope"], depths=[1, 2, 4], widths=[32, 64, 128]))
    36
    """
    allowed = {field.name for field in dataclasses.fields(Run)}
    for name in settings:
        _known("setting", name, tuple(sorted(allowed)))
    require(math.isfinite(step_factor) and step_factor > 0, "step_factor", step_factor, "a number above 0")
    axes = {
        "tasks": list(tasks),
        "encodings": list(encodings),
        "depths": list(depths),
        "widths": list(widths),
        "seeds": list(seeds),
    }
    for name, values in axes.items():
        require(bool(values), name, values, "a list that is not empty")
    _known_all("tasks", axes["tasks"], TASKS)
    _known_all("encodings", axes["encodings"], ENCODINGS + COUNTERS)
    runs = []
    for task, encoding, depth, width, seed in itertools.product(*axes.values()):
        lr = 1.5e-3 if isinstance(depth, int) and depth >= 8 else 3e-3
        own = {"lr": lr, "steps": max(1, round(step_factor * STEPS[task])), **settings}
        runs.append(Run(task=task, encoding=encoding, depth=depth, width=width, seed=seed, **own))
    return Grid(tuple(runs), scoring or Scoring(), published)


def identity(run: Run) -> dict[str, object]:
    """The columns that say which run a row belongs to."""
    fields = ("task", "encoding", "depth", "width", "seed", "steps", "window", "control", "attention", "log_scale")
    return {name: getattr(run, name) for name in fields} | dict(run.options)


def union(grids: Iterable[Grid]) -> list[tuple[Run, Scoring]]:
    """Every (run, scoring) of ``grids`` once, in order of first appearance."""
    return list(dict.fromkeys((run, each.scoring) for each in grids for run in each.runs))


# Profiles ---------------------------------------------------------------------------------------------------------

PROFILES = ("smoke", "laptop", "published", "paper")


@dataclass(frozen=True)
class Profile:
    """A named set of differences from the notebooks' own defaults (which are those of ``laptop``)."""

    name: str
    about: str
    notebooks: Mapping[str, Mapping[str, object]]

    def parameters(self, notebook: str) -> dict[str, object]:
        return dict(self.notebooks.get(notebook, {}))


def profile(name: str, folder: Path) -> Profile:
    """Read ``folder/name.toml``: a line ``about`` and a table ``notebooks`` of parameters."""
    _known("profile", name, PROFILES)
    path = folder / f"{name}.toml"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise InputError(f"profile {name!r} cannot be read from {path.name}: {error}") from error
    unknown = sorted(set(data) - {"about", "notebooks"})
    if unknown or not isinstance(data.get("about"), str):
        raise InputError(
            f"profile {name!r} must hold a line 'about' and tables 'notebooks' only; it also holds {unknown}"
        )
    return Profile(name, data["about"], data.get("notebooks", {}))


def _known(what: str, given: object, known: tuple[object, ...]) -> None:
    listed = ", ".join(repr(each) for each in known)
    require(given in known, what, given, f"one of {listed}")


def _known_all(what: str, given: Iterable[object], known: tuple[str, ...]) -> None:
    for each in given:
        _known(what, each, known)
