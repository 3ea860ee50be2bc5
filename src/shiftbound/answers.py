"""What is measured on a trained run of `tasks.arithmetic`: whole answers, for every length of the operands.

A model answers greedily, and its own digits are fed back to it. Every item of a data set is in every denominator; an
answer that is no number is wrong.

    exact        share of items with the right answer, all digits
    truncated    share of items answered f(a mod b^n, b mod b^n), n the trained digits: the truncating predictor
    theory       the exact match of the truncating predictor for the law that was sampled, computed as a fraction
    equivariant  share of items whose answer moves with its operands: out(Sa, Sb) = S^k out(a, b), k = 1 for sums, 2 for
                 products (`eq-arith-shift`)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Int
from numpy import ndarray

from shiftbound import require, tasks
from shiftbound.runs import Run, Scoring
from shiftbound.tasks import Batch

if TYPE_CHECKING:
    from shiftbound.tasks.arithmetic import Arithmetic
    from shiftbound.training import Trained

GATE = 0.95  # exact match in distribution, on pairs that training never saw
TOKENS = 16384  # tokens in one forward pass: bounds a worker's memory


@torch.no_grad()
def greedy(model: torch.nn.Module, tokens: Int[ndarray, "size width"], answers: int) -> Int[ndarray, "size answers"]:
    """What ``model`` writes, token by token the likeliest, after everything in ``tokens`` but the last ``answers - 1``.

    These last tokens are only a first guess at the answer: a pass over the guess gives the next one, and after k passes
    the first k tokens are those of greedy decoding, so the passes end at the latest when all are, and for a row as
    soon as its guess no longer changes.

    >>> class Next(torch.nn.Module):
    ...     def forward(self, tokens):
    ...         return torch.nn.functional.one_hot((tokens + 1) % 9, 9).float()
    >>> greedy(Next(), np.array([[0, 4, 7, 7]]), 3)
    array([[5, 6, 7]])
    """
    require(1 <= answers < tokens.shape[1], "answers", answers, f"between 1 and {tokens.shape[1] - 1}")
    model.eval()
    start = tokens.shape[1] - answers
    rows, written = tokens.copy(), np.full((len(tokens), answers), -1)
    open_rows = np.arange(len(tokens))
    for _ in range(answers):
        said = _argmax(model, rows[open_rows])[:, start:]
        changed = (said[:, :-1] != rows[open_rows, start + 1 :]).any(1)
        written[open_rows], rows[open_rows, start + 1 :] = said, said[:, :-1]
        open_rows = open_rows[changed]
        if not len(open_rows):
            break
    return written


def _argmax(model: torch.nn.Module, tokens: Int[ndarray, "size width"]) -> Int[ndarray, "size width"]:
    step = max(1, TOKENS // tokens.shape[1])
    parts = (torch.from_numpy(tokens[first : first + step]) for first in range(0, len(tokens), step))
    return np.concatenate([model(part).argmax(-1).numpy() for part in parts])


def measure(model: torch.nn.Module, task: Arithmetic, batch: Batch) -> dict[str, float | list[float] | None]:
    """Shares over all rows of ``batch``: exact, truncated, unreadable (no number), digits (answer digits right), and
    the last of these for each place, lowest first; ``equivariant`` is None modulo anything, and for operands that fill
    the pad width."""
    written = greedy(model, batch.tokens, task.answers)
    right = written[:, : task.width] == batch.labels[:, -task.answers :][:, : task.width]
    return {
        "exact": float(task.correct(batch, written).mean()),
        "truncated": float(task.correct(task.truncated(batch), written).mean()),
        "unreadable": float((task.read(written) < 0).mean()),
        "digits": float(right.mean()),
        "places": right.mean(0).tolist(),
        "equivariant": _equivariant(model, task, batch, written),
    }


def _equivariant(model: torch.nn.Module, task: Arithmetic, batch: Batch, written: ndarray) -> float | None:
    a, b = task.operands(batch.tokens)
    if task.modulus or max(a.max(), b.max()) >= task.base ** (task.pad - 1):
        return None
    moved = task.read(greedy(model, task.rows(task.base * a, task.base * b), task.answers))
    still, factor = task.read(written), task.base ** (2 if task.operation == "multiplication" else 1)
    return float(((still >= 0) & (moved == factor * still)).mean())


def score(trained: Trained, run: Run, scoring: Scoring) -> list[dict]:
    """One row a shift of the task: `measure`, the exact theory value, and what training logged.

    ``exact_id`` is the exact match in distribution, ``passed_gate`` whether it is at least .95. Raises `InputError` for
    a run of another task.
    """
    require(run.task == "arithmetic", "task", run.task, "'arithmetic', the one task with answers")
    task = tasks.get(run.task, **dict(run.options))
    chosen = (*scoring.families, "reference") if scoring.families else ("reference", "digits", "both-digits")
    rows = []
    for shift in (each for each in task.shifts() if each.family in chosen):
        options = dict(shift.options)
        theory = task.truncation_accuracy(options["digits"], both=options.get("both", False))
        rows.append(
            {"family": shift.family, "level": shift.level, "length": shift.length, "items": scoring.sequences}
            | measure(trained.model, task, task.evaluation_batch(shift, scoring.sequences))
            | {"theory": float(theory)}
        )
    home = next(row["exact"] for row in rows if row["family"] == "reference")
    return [row | {"exact_id": home, "passed_gate": home >= GATE, **trained.summary()} for row in rows]
