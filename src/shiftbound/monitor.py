"""W1 to a target domain while a model trains: a callback for `shiftbound.training.train`.

At every look the monitor draws nothing new: it runs the model over two fixed samples, the reference and the target, and
reports how far apart the states are, how far a second sample of the reference is (the floor), and the joint-law bound
on the rise of the soft risk (`eq-ood-joint`). It raises an alarm where the spread of W1 lies above the floor. The
alarm needs no labels; the bound and the risks do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from shiftbound import evaluation, require, transport

if TYPE_CHECKING:
    from shiftbound.evaluation import Observation
    from shiftbound.tasks import Shift, Task
    from shiftbound.training import Trained


@dataclass
class Monitor:
    """Watches the shift from ``task``'s reference to ``target`` on ``sequences`` sequences a side.

    ``rows`` grows by one a look; see `compare` for what a row holds, beside ``step``.

    >>> from shiftbound import tasks, training
    >>> from shiftbound.runs import Run
    >>> watch = Monitor(tasks.get("dyck"), tasks.get("dyck").shift("length", 64), sequences=16)
    >>> run = Run(task="dyck", encoding="rope", depth=1, width=16, steps=2, length=8)
    >>> trained = training.train(run, watch=watch)
    >>> [row["step"] for row in watch.rows]
    [2]
    """

    task: Task
    target: Shift
    sequences: int = 256
    draws: int = 100
    rows: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        require(self.sequences >= 16, "sequences", self.sequences, "a whole number of at least 16")
        shifts = (self.task.reference(), self.task.floor(), self.target)
        self.batches = [(self.task.evaluation_batch(each, self.sequences), each.offset) for each in shifts]

    def __call__(self, trained: Trained) -> None:
        looks = [evaluation.observe(trained.model, batch, offset) for batch, offset in self.batches]
        self.rows.append({"step": trained.steps, **compare(*looks, draws=self.draws)})


def compare(home: Observation, again: Observation, away: Observation, *, draws: int = 100) -> dict[str, object]:
    """What the monitor says of three observations of one model: the reference, a second draw of it, the target.

    ``w1`` (with its spread ``w1_low, w1_high``) and ``w1_floor`` are between states, in units of the RMS of the
    reference's; ``bound`` is the exact W1 of the joint laws of (p, y), ``rise`` the rise of the mean of 1 - p_y that it
    bounds, both without unit; ``accuracy_id, accuracy, risk`` count errors; ``alarm`` is ``w1_low > w1_floor``.
    """
    scale = evaluation.rms(home.states)
    cost = transport.euclidean(home.states, away.states) / scale
    low, high = transport.interval_from_cost(cost, np.random.default_rng(0), draws=draws)
    floor = transport.w1_exact(transport.euclidean(home.states, again.states) / scale)
    joint = evaluation.joint_cost(home.predictions, home.labels, away.predictions, away.labels)
    return {
        "w1": transport.w1_exact(cost), "w1_low": low, "w1_high": high, "w1_floor": floor,
        "bound": transport.w1_exact(joint),
        "rise": float(evaluation.soft_risk(away).mean() - evaluation.soft_risk(home).mean()),
        "accuracy_id": home.accuracy(), "accuracy": away.accuracy(), "risk": home.accuracy() - away.accuracy(),
        "alarm": bool(low > floor),
    }  # fmt: skip
