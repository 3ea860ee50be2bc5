"""What is measured on a model, each by a second, slower route, on small models and small data."""

import numpy as np
import pytest
import torch

from shiftbound import evaluation, tasks, transport
from shiftbound.runs import Scoring
from shiftbound.transformer import Transformer

DYCK = tasks.get("dyck")
SMALL = Scoring(sequences=32, states=32, states_long=32, draws=5, families=("length", "offset", "types"), max_length=64)


def model(encoding: str = "rope", width: int = 32, task: tasks.Task = DYCK) -> Transformer:
    torch.manual_seed(0)
    return Transformer(task.vocab, task.classes, depth=2, width=width, encoding=encoding)


@pytest.fixture(scope="module")
def batch() -> tasks.Batch:
    return DYCK.evaluation_batch(DYCK.reference(), 40)


@pytest.fixture(scope="module")
def looked(batch) -> evaluation.Observation:
    return evaluation.observe(model(), batch)


class Trained:
    """What `score` needs of a trained run."""

    def __init__(self, network: Transformer) -> None:
        self.model = network

    def summary(self) -> dict:
        return {"steps_taken": 7}


@torch.no_grad()
def test_accuracies_against_loops(batch, looked):
    network = model()
    right = total = right_hard = total_hard = whole = 0
    for tokens, labels, hard in zip(batch.tokens, batch.labels, batch.hard, strict=True):
        said = network(torch.from_numpy(tokens)[None].long())[0].argmax(-1).numpy()
        fine = True
        for position, label in enumerate(labels):
            if label < 0:
                continue
            total += 1
            right += said[position] == label
            fine &= said[position] == label
            if hard[position]:
                total_hard += 1
                right_hard += said[position] == label
        whole += fine
    assert looked.accuracy() == pytest.approx(right / total)
    assert looked.accuracy_hard() == pytest.approx(right_hard / total_hard)
    assert looked.exact() == whole / len(batch)


def test_the_batch_size_does_not_matter(batch, looked, monkeypatch):
    monkeypatch.setattr(evaluation, "TOKENS", 100)
    again = evaluation.observe(model(), batch)
    assert np.array_equal(again.counts, looked.counts) and np.array_equal(again.labels, looked.labels)
    np.testing.assert_allclose(again.states, looked.states, atol=1e-5)
    assert again.token_cosine == pytest.approx(looked.token_cosine, abs=1e-5)
    assert again.layer_cosine == pytest.approx(looked.layer_cosine, abs=1e-5)


def test_states_belong_to_their_labels(batch, looked):
    """The picked state, put through the head again, gives the picked prediction; picks are supervised positions."""
    network = model()
    with torch.no_grad():
        logits = network.head(torch.from_numpy(looked.states).float())
    np.testing.assert_allclose(logits.double().softmax(-1).numpy(), looked.predictions, atol=1e-5)
    assert (looked.labels >= 0).all()


def test_picks_are_uniform_over_supervised_positions():
    supervised = np.tile(np.array([0, 1, 0, 1, 1], bool), (30000, 1))
    counts = np.bincount(evaluation._picks(supervised, np.random.default_rng(0)), minlength=5)
    assert counts[[0, 2]].tolist() == [0, 0]
    assert np.abs(counts[[1, 3, 4]] - 10000).max() < 5 * np.sqrt(30000 * 2 / 9)


@torch.no_grad()
def test_cosines_against_loops(batch, looked):
    layers = model().states(torch.from_numpy(batch.tokens).long())
    values = []
    for layer in layers:
        unit = layer[:, 1:] / layer[:, 1:].norm(dim=-1, keepdim=True)
        n = unit.shape[1]
        pairs = [unit[:, i] @ unit[:, j].T for i in range(n) for j in range(n) if i != j]
        values.append(float(torch.stack([pair.diagonal().mean() for pair in pairs]).mean()))
    assert looked.token_cosine == pytest.approx(values, abs=1e-5)


def test_an_offset_changes_only_what_depends_on_absolute_positions(batch):
    for encoding, moves in (("rope", False), ("alibi", False), ("t5", False), ("nope", False), ("ape", True)):
        network = model(encoding)
        here, there = evaluation.observe(network, batch), evaluation.observe(network, batch, offset=96)
        assert (np.abs(here.states - there.states).max() > 1e-2) == moves, encoding


def test_influence_is_zero_without_attention(batch):
    """With attention switched off nothing of the first token reaches the last; with it on, something does."""
    network = model()
    assert evaluation.influence(network, batch) > 1e-4
    with torch.no_grad():
        for block in network.blocks:
            block.out.weight.zero_()
    assert evaluation.influence(network, batch) == 0


def test_effective_rank_counts_equal_directions():
    rng = np.random.default_rng(0)
    for rank in (1, 3, 7):
        states = rng.normal(size=(20000, rank)) @ np.linalg.qr(rng.normal(size=(10, rank)))[0].T
        assert evaluation.effective_rank(states) == pytest.approx(rank, rel=0.02)


def test_the_joint_bound_holds_and_is_a_bound_for_any_predictions():
    """|E_Q f - E_P f| <= W1(joint) for 200 random laws; with the labels left out it fails for some."""
    rng = np.random.default_rng(0)
    failed = 0
    for _ in range(200):
        p, q = (rng.dirichlet(np.full(3, 0.5), 12) for _ in range(2))
        y, z = (rng.integers(3, size=12) for _ in range(2))
        gap = abs((1 - p[range(12), y]).mean() - (1 - q[range(12), z]).mean())
        assert gap <= transport.w1_exact(evaluation.joint_cost(p, y, q, z)) + 1e-12
        failed += gap > transport.w1_exact(evaluation.marginal_cost(p, q)) + 1e-12
    assert failed > 0


def test_lipschitz_against_a_loop(looked):
    scale = evaluation.rms(looked.states)
    largest, typical = evaluation.lipschitz(looked, looked, scale)
    risk, quotients = evaluation.soft_risk(looked), []
    for i in range(len(risk)):
        for j in range(i):
            distance = np.linalg.norm(looked.states[i] - looked.states[j]) / scale
            if looked.labels[i] == looked.labels[j] and distance > 1e-9:
                quotients.append(abs(risk[i] - risk[j]) / distance)
    assert largest == pytest.approx(max(quotients)) and 0 < typical <= largest


def test_score_has_one_row_a_shift_and_strict_json():
    import json

    from shiftbound.runs import Run

    run = Run(task="dyck", encoding="rope", depth=2, width=32)
    rows = evaluation.score(Trained(model()), run, SMALL)
    names = [(row["family"], row["level"]) for row in rows]
    assert len(names) == len(set(names)) and names[0][0] == "reference"
    assert {family for family, _ in names} == {"reference", "floor", "length", "offset", "types"}
    assert max(row["length"] for row in rows) == 64 and all(row["steps_taken"] == 7 for row in rows)
    json.dumps(rows, allow_nan=False)
    for row in rows:
        assert abs(row["soft_risk"]) <= row["bound_joint"] + 1e-9
        if row["family"] == "offset":  # the tokens are the reference's own, and RoPE does not see the offset
            assert row["risk"] == 0 and row["w1_free"] == 0 and row["w1"] < 1e-3


def test_representation_w1_is_scale_free():
    """Ten times the states and a tenth of the head: the same predictions, and the same W1 in units of their RMS."""
    from shiftbound.runs import Run

    run, network = Run(task="dyck", encoding="rope", depth=2, width=32), model()
    before = evaluation.score(Trained(network), run, SMALL)
    with torch.no_grad():
        network.norm.weight.mul_(10)
        network.norm.bias.mul_(10)
        network.head.weight.div_(10)
    after = evaluation.score(Trained(network), run, SMALL)
    for one, two in zip(before, after, strict=True):
        assert two["w1"] == pytest.approx(one["w1"], abs=1e-4) and two["accuracy"] == one["accuracy"]
        assert two["scale"] == pytest.approx(10 * one["scale"], rel=1e-4)
