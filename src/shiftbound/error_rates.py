"""What is measured on a trained run of chapter 15: errors counted on many words a length, and where they sit.

Only *hard* positions count (`shiftbound.tasks`). Positions of one word are not independent, words are: so beside the
errors among all hard positions stands the number of words with any error, and the errors at one hard position a word,
drawn at random; for these two the binomial interval of `statistics.clopper_pearson` is exact.

Beyond 512 tokens the words become fewer, in proportion to 1 / n^2 (`size_at`); every row says how many it counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Int
from numpy import ndarray

from shiftbound import tasks, words
from shiftbound.positions import LearnedAPE
from shiftbound.runs import Run, Scoring
from shiftbound.tasks import Batch, Shift

if TYPE_CHECKING:
    from shiftbound.training import Trained

GATE = 0.95
LENGTHS = (64, 128, 256, 512, 1024, 2048)
PAIRS = 2**16  # at length n > 512 one in n^2 / PAIRS of the words is scored
TOKENS = 2**18  # token pairs in one forward pass: bounds a worker's memory
LEAST = 16  # words at any length
BINS = 12  # of distances and heights: [1, 2), [2, 4), ..., [2048, 4096)


def size_at(length: int, sequences: int) -> int:
    """How many of ``sequences`` words are scored at ``length``: all up to 512, beyond it ever fewer, but at least 16.

    >>> [size_at(n, 2000) for n in (64, 512, 1024, 2048)]
    [2000, 2000, 125, 31]
    """
    return sequences if length <= 512 else min(sequences, max(LEAST, sequences * PAIRS // length**2))


@torch.no_grad()
def wrong(model: torch.nn.Module, batch: Batch) -> Bool[ndarray, "size width"]:
    """Where the likeliest label is not the right one, among the supervised positions."""
    model.eval()
    step = max(1, TOKENS // batch.tokens.shape[1] ** 2)
    parts = (torch.from_numpy(batch.tokens[i : i + step]).long() for i in range(0, len(batch), step))
    said = np.concatenate([model(part).argmax(-1).numpy() for part in parts])
    return (said != batch.labels) & (batch.labels >= 0)


def tops(trace: Int[ndarray, "size n"], k: int) -> Int[ndarray, "size n"]:
    """Where the open on top of the stack stands after each token, -1 where the stack is empty.

    >>> tops(words.parse("( ( ) [ ]")[None], 2).tolist()
    [[0, 1, 0, 3, 0]]
    """
    path = words.heights(trace, k)
    stack = np.full((len(trace), int(path.max(initial=0)) + 1), -1)
    found, rows = np.empty_like(trace), np.arange(len(trace))
    for t in range(trace.shape[1]):
        above = path[:, t + 1]
        stack[rows, above] = np.where(trace[:, t] < k, t, stack[rows, above])
        found[:, t] = stack[rows, above]
    return found


def places(task: tasks.Task, batch: Batch) -> tuple[Int[ndarray, "size width"], Int[ndarray, "size width"]] | None:
    """The distance to the open that the answer names, and the height, at each hard position of a bracket task (0
    elsewhere); None for a task without brackets."""
    if not hasattr(task, "k"):
        return None
    trace = batch.tokens[:, 1:] - 1
    distance = np.pad(np.arange(trace.shape[1]) - tops(trace, task.k), ((0, 0), (1, 0)))
    return np.where(batch.hard, distance, 0), np.where(batch.hard, words.heights(trace, task.k), 0)


def measure(model: torch.nn.Module, task: tasks.Task, batch: Batch, seed: int = 0) -> dict[str, object]:
    """Counts on one batch.

    ``words, words_wrong``: words with a hard position, and those with an error at one. ``hard, errors``: hard positions
    and errors there. ``picked_wrong``: errors at one random hard position a word. ``distance_hard``,
    ``distance_errors``, ``height_hard``, ``height_errors``: the same by powers of two, for tasks with brackets.
    """
    missed = wrong(model, batch)
    errors = missed & batch.hard
    any_hard = batch.hard.any(1)
    picked = np.where(batch.hard, np.random.default_rng(seed).random(batch.hard.shape), -1.0).argmax(1)
    found = {
        "words": int(any_hard.sum()),
        "words_wrong": int(errors.any(1).sum()),
        "hard": int(batch.hard.sum()),
        "errors": int(errors.sum()),
        "picked_wrong": int((errors[np.arange(len(errors)), picked] & any_hard).sum()),
        "accuracy": float(1 - missed.sum() / (batch.labels >= 0).sum()),
    }
    where = places(task, batch) or (None, None)
    for name, place in zip(("distance", "height"), where, strict=True):
        for kind, chosen in {"hard": batch.hard, "errors": errors}.items():
            found[f"{name}_{kind}"] = None if place is None else _histogram(place[chosen])
    return found


def _histogram(place: Int[ndarray, " m"]) -> list[int]:
    """How many values lie in [1, 2), [2, 4), ..."""
    return np.bincount(np.floor(np.log2(place)).astype(int), minlength=BINS).tolist()


def score(trained: Trained, run: Run, scoring: Scoring) -> list[dict]:
    """One row for the trained lengths and one for each of `LENGTHS` up to ``scoring.max_length`` that the encoding can
    read (a learned table ends at its last row); ``passed_gate`` is about the accuracy in distribution.

    A counter that was trained without rounding is scored again with its increments rounded, family "rounded".
    """
    task = tasks.get(run.task, **dict(run.options))
    encoding = trained.model.encoding
    reach = len(encoding.table) - 1 if isinstance(encoding, LearnedAPE) else scoring.max_length
    lengths = [n for n in LENGTHS if n <= min(reach, scoring.max_length)]
    shifts = [task.reference(), *(Shift("length", n, n) for n in lengths)]
    rows = [_row(trained, task, shift, shift.family, scoring) for shift in shifts]
    if run.encoding == "counter-soft":
        encoding.rounded.fill_(True)
        rows += [_row(trained, task, shift, "rounded", scoring) for shift in shifts if shift.length <= 512]
        encoding.rounded.fill_(False)
    home = rows[0]["accuracy"]
    return [row | {"accuracy_id": home, "passed_gate": home >= GATE, **trained.summary()} for row in rows]


def _row(trained: Trained, task: tasks.Task, shift: Shift, family: str, scoring: Scoring) -> dict[str, object]:
    batch = task.evaluation_batch(shift, size_at(shift.length, scoring.sequences))
    where = {"family": family, "level": shift.level, "length": shift.length}
    return where | measure(trained.model, task, batch)
