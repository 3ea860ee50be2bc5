"""What is measured on a trained run: risk, W1, the bound, Lipschitz quotients, collapse and influence, for every shift.

One forward pass over a shift's sequences serves all of it. A trajectory's *state* is the final-LayerNorm output at one
uniformly random supervised position, so it neither averages over the trajectory nor depends on its length.

    excess risk        R(shift) = error(shift) - error(in distribution)
    model-free W1      between trajectories under the task's ground metric: the same for every cell
    representation W1  between states, in units of the RMS of the in-distribution states
    joint-law bound    |E_Q f - E_P f| <= W1 of (p, y) under max(|p - p'|_inf, 1[y != y']), f = 1 - p_y
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from shiftbound import tasks, transport
from shiftbound.runs import Run, Scoring
from shiftbound.tasks import Batch, Shift

if TYPE_CHECKING:
    from shiftbound.training import Trained

GATE = 0.95
LONG = (64, 128, 256)
TOKENS = 8192  # tokens in one forward pass: bounds a worker's memory
INFLUENCE = 32  # sequences on which the influence of an early token is measured
GROWING = ("reference", "length")  # families in which the influence is followed: there it is expected to fall


@dataclass(frozen=True)
class Observation:
    """What one pass over ``s`` sequences shows: how many supervised and hard positions each has and how many were right
    (``counts``), and at one random supervised position each the state, the predicted distribution over the ``c``
    labels, and the label."""

    counts: Int[ndarray, "s 4"]
    states: Float[ndarray, "s d"]
    predictions: Float[ndarray, "s c"]
    labels: Int[ndarray, " s"]
    token_cosine: tuple[float, ...]
    layer_cosine: float

    def accuracy(self, first: int | None = None) -> float:
        """Right among the supervised positions of the ``first`` sequences (all, if None)."""
        right, supervised, _, _ = self.counts[:first].sum(0)
        return float(right / supervised)

    def accuracy_hard(self, first: int | None = None) -> float:
        """The same among the hard positions; nan where there are none."""
        _, _, right, hard = self.counts[:first].sum(0)
        return float(right / hard) if hard else float("nan")

    def exact(self) -> float:
        """The share of sequences without an error."""
        return float((self.counts[:, 0] == self.counts[:, 1]).mean())


@torch.no_grad()
def observe(model: torch.nn.Module, batch: Batch, offset: int = 0, seed: int = 0) -> Observation:
    """Run ``model`` over ``batch`` with position ids from ``offset`` on.

    ``token_cosine`` is the mean cosine between states of different positions, a layer each; ``layer_cosine`` the mean
    cosine between a position's states in neighbouring layers.
    """
    model.eval()
    tokens, labels = torch.from_numpy(batch.tokens).long(), torch.from_numpy(batch.labels).long()
    ids = torch.arange(tokens.shape[1]) + offset
    picks = _picks(batch.labels >= 0, np.random.default_rng(seed))
    states, predictions, right, cosines, across = [], [], [], [], []
    step = max(1, TOKENS // tokens.shape[1])
    for start in range(0, len(tokens), step):
        part = slice(start, start + step)
        layers = model.states(tokens[part], ids)
        logits = model.head(layers[-1])
        right.append((logits.argmax(-1) == labels[part]).numpy())
        rows, columns = torch.arange(len(logits)), torch.from_numpy(picks[part])
        states.append(layers[-1][rows, columns].numpy())
        predictions.append(logits[rows, columns].double().softmax(-1).numpy())
        cosines.append([_token_cosine(layer) for layer in layers])
        across.append(_layer_cosine(layers[:-1]))
    right, supervised = np.concatenate(right), batch.labels >= 0
    weights = [len(r) for r in states]
    return Observation(
        counts=np.stack(
            [(right & of).sum(1) if hit else of.sum(1) for of in (supervised, batch.hard) for hit in (1, 0)], 1
        ),
        states=np.concatenate(states).astype(float),
        predictions=np.concatenate(predictions),
        labels=batch.labels[np.arange(len(picks)), picks],
        token_cosine=tuple(np.average(cosines, axis=0, weights=weights).tolist()),
        layer_cosine=float(np.average(across, weights=weights)),
    )


def _picks(supervised: Bool[ndarray, "s n"], rng: np.random.Generator) -> Int[ndarray, " s"]:
    """One uniformly random supervised position a sequence."""
    return np.where(supervised, rng.random(supervised.shape), -1.0).argmax(1)


def _token_cosine(states: Float[Tensor, "b n d"]) -> float:
    """Mean cosine between the states of two different positions of a sequence, BOS excluded."""
    unit = torch.nn.functional.normalize(states[:, 1:], dim=-1)
    n = unit.shape[1]
    return float(((unit.sum(1) ** 2).sum(-1) - n).mean() / (n * (n - 1)))


def _layer_cosine(layers: list[Float[Tensor, "b n d"]]) -> float:
    """Mean cosine between a position's residual streams before and after a block."""
    return float(np.mean([torch.cosine_similarity(a, b, dim=-1).mean().item() for a, b in pairwise(layers)]))


@torch.no_grad()
def influence(model: torch.nn.Module, batch: Batch, offset: int = 0) -> float:
    """Mean of ||s - s'|| / ||s||, where s is the last position's final state and s' the same after the first token was
    replaced by the next one of the vocabulary that occurs."""
    model.eval()
    tokens = torch.from_numpy(batch.tokens[:INFLUENCE]).long()
    ids = torch.arange(tokens.shape[1]) + offset
    known = torch.from_numpy(np.unique(batch.tokens[:, 1:]))
    changed = tokens.clone()
    changed[:, 1] = known[(torch.searchsorted(known, tokens[:, 1].contiguous()) + 1) % len(known)]
    last, moved = (model.states(each, ids)[-1][:, -1] for each in (tokens, changed))
    return float(((last - moved).norm(dim=-1) / last.norm(dim=-1)).mean())


# W1, the bound, Lipschitz quotients, collapse ---------------------------------------------------------------------


def joint_cost(
    p: Float[ndarray, "s c"], y: Int[ndarray, " s"], q: Float[ndarray, "t c"], z: Int[ndarray, " t"]
) -> ndarray:
    """max(|p - q|_inf, 1[y != z]): the cost under which f(p, y) = 1 - p_y is 1-Lipschitz.

    >>> joint_cost(np.array([[1.0, 0.0]]), np.array([0]), np.array([[0.8, 0.2]]), np.array([0])).round(3).tolist()
    [[0.2]]
    """
    return np.maximum(marginal_cost(p, q), y[:, None] != z[None, :])


def marginal_cost(p: Float[ndarray, "s c"], q: Float[ndarray, "t c"]) -> Float[ndarray, "s t"]:
    """|p - q|_inf, labels left out: the marginal form of the bound, which fails."""
    return np.abs(p[:, None, :] - q[None, :, :]).max(-1)


def soft_risk(observation: Observation) -> Float[ndarray, " s"]:
    """f = 1 - p_y at each state."""
    return 1 - observation.predictions[np.arange(len(observation.labels)), observation.labels]


def lipschitz(first: Observation, second: Observation, scale: float) -> tuple[float, float]:
    """Greatest and 99 % quantile of |f - f'| / |z - z'| over pairs with the same label; z in units of ``scale``."""
    states = np.concatenate([first.states, second.states]) / scale
    labels, risks = np.concatenate([first.labels, second.labels]), np.concatenate([soft_risk(first), soft_risk(second)])
    i, j = np.nonzero(np.triu(labels[:, None] == labels[None, :], 1))
    distance = transport.euclidean(states, states)[i, j]
    apart = distance > 1e-9
    if not apart.any():
        return float("nan"), float("nan")
    quotient = np.abs(risks[i] - risks[j])[apart] / distance[apart]
    return float(quotient.max()), float(np.quantile(quotient, 0.99))


def effective_rank(states: Float[ndarray, "s d"]) -> float:
    """Participation ratio (sum of eigenvalues)^2 / sum of squares, of the covariance: between 1 and d.

    >>> round(effective_rank(np.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])), 6)
    2.0
    """
    covariance = np.cov(states.T)
    return float(np.trace(covariance) ** 2 / np.sum(covariance**2)) if np.any(covariance) else 1.0


def rms(states: Float[ndarray, "s d"]) -> float:
    """Root mean square of the states' norms, sqrt(E |z|^2): the unit of the representation W1."""
    return float(np.sqrt(np.mean(np.sum(states**2, 1))))


# All shifts of one run --------------------------------------------------------------------------------------------


def score(trained: Trained, run: Run, scoring: Scoring) -> list[dict]:
    """One row a shift: everything this module measures, and what training logged. Values are JSON numbers or None."""
    task = tasks.get(run.task, **dict(run.options))
    scored = [shift for shift in task.shifts() if _wanted(shift, scoring)]
    looks = {shift: observe(trained.model, draw(task, shift, scoring), shift.offset) for shift in scored}
    home, floor = looks[task.reference()], looks[task.floor()]
    scale = rms(home.states)
    rows = []
    for shift in scored:
        look, size = looks[shift], states_for(shift, scoring)
        free, free_floor = model_free(task, shift, scoring)
        cost = transport.euclidean(home.states[:size] / scale, look.states[:size] / scale)
        here, there = soft_risk(home)[:size], soft_risk(look)[:size]
        joint = joint_cost(home.predictions[:size], home.labels[:size], look.predictions[:size], look.labels[:size])
        largest, typical = lipschitz(_head(home, 256), _head(look, 256), scale)
        low, high = transport.interval_from_cost(cost, np.random.default_rng(0), draws=scoring.draws)
        rows.append(
            {
                "family": shift.family, "level": shift.level, "length": shift.length, "offset": shift.offset,
                "accuracy": look.accuracy(), "accuracy_hard": look.accuracy_hard(), "exact": look.exact(),
                "risk": home.accuracy(len(look.states)) - look.accuracy(),
                "risk_hard": home.accuracy_hard(len(look.states)) - look.accuracy_hard(),
                "w1_free": free, "w1_free_floor": free_floor,
                "w1": transport.w1_exact(cost), "w1_low": low, "w1_high": high,
                "w1_floor": transport.w1_exact(
                    transport.euclidean(home.states[:size] / scale, floor.states[:size] / scale)
                ),
                "soft_risk": float(there.mean() - here.mean()),
                "bound_joint": transport.w1_exact(joint),
                "bound_marginal": transport.w1_exact(marginal_cost(home.predictions[:size], look.predictions[:size])),
                "lipschitz": largest, "lipschitz_99": typical, "scale": scale,
                "token_cosine": list(look.token_cosine), "layer_cosine": look.layer_cosine,
                "effective_rank": effective_rank(look.states),
                "influence": influence(trained.model, draw(task, shift, scoring)) if shift.family in GROWING else None,
                "accuracy_id": home.accuracy(), "accuracy_id_hard": home.accuracy_hard(),
                "passed_gate": home.accuracy() >= GATE, **trained.summary(),
            }
        )  # fmt: skip
    return [{name: _json(value) for name, value in row.items()} for row in rows]


def draw(task: tasks.Task, shift: Shift, scoring: Scoring) -> Batch:
    """The fixed data of a shift: shared by all cells, so comparisons are paired."""
    return task.evaluation_batch(shift, max(scoring.sequences, states_for(shift, scoring)))


def states_for(shift: Shift, scoring: Scoring) -> int:
    """How many states a side the W1 of this shift uses."""
    long = shift.family in ("reference", "floor") or (shift.family == "length" and shift.level in LONG)
    return scoring.states_long if long else scoring.states


def _wanted(shift: Shift, scoring: Scoring) -> bool:
    chosen = not scoring.families or shift.family in (*scoring.families, "reference", "floor")
    return chosen and shift.length <= scoring.max_length


def _head(look: Observation, size: int) -> Observation:
    return Observation(
        **{
            **vars(look),
            "states": look.states[:size],
            "predictions": look.predictions[:size],
            "labels": look.labels[:size],
        }
    )


@lru_cache(maxsize=512)
def model_free(task: tasks.Task, shift: Shift, scoring: Scoring) -> tuple[float, float]:
    """Exact W1 between the trajectories of a shift and of the reference, and its noise floor; no model takes part."""
    size = states_for(shift, scoring)
    home, away, floor = (
        task.paths(draw(task, each, scoring))[:size] for each in (task.reference(), shift, task.floor())
    )
    return tuple(transport.w1_exact(transport.cityblock(home, other) / home.shape[1]) for other in (away, floor))


def _json(value: object) -> object:
    """NaN as None and NumPy scalars as Python's, for strict JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not np.isfinite(value) else value
