"""Chapter 15: the hand-set form is exact, with the margin of its theorem; soft counters drift; training anneals."""

import math

import numpy as np
import pytest
import torch

from shiftbound import InputError, tasks, training, words
from shiftbound.constructions import UniformDyck
from shiftbound.exact_form import descend, exact_form, tensors
from shiftbound.positions import Counter
from shiftbound.runs import Run


def answers(model, task, trace):
    """Labels and answers on words of one length."""
    batch = task.label(task.rows(trace))
    with torch.no_grad():
        return batch.labels, model(torch.from_numpy(batch.tokens)).argmax(-1).numpy()


@pytest.mark.parametrize("log_scale", [False, True])
@pytest.mark.parametrize(("name", "k", "longest"), [("dyck", 1, 12), ("dyck", 2, 8), ("dyck", 3, 6), ("search", 3, 6)])
def test_the_hand_set_form_is_right_on_all_short_words(name, k, longest, log_scale):
    task = tasks.get(name, k=k)
    options = {"strength": 2.0, "penalty": 6.0} if log_scale else {}
    model = exact_form(task, log_scale=log_scale, **options)
    for n in range(2, longest + 1, 2):
        labels, said = answers(model, task, words.all_words(k, n))
        assert ((said == labels) | (labels < 0)).all()


def test_the_matching_layer_finds_the_true_match_in_ten_thousand_words():
    task = tasks.get("dyck")
    model, rng = exact_form(task), np.random.default_rng(0)
    for n, size in ((16, 4000), (32, 4000), (64, 2000)):
        trace = words.sample(rng, size, n, 2)
        with torch.no_grad():
            found = model.attention(torch.from_numpy(task.rows(trace)), 0)[:, 0]
        path = words.heights(trace, 2)
        for i in range(1, n + 1):
            same = (path[:, 1 : i + 1] == path[:, [i]]) & (trace[:, :i] < 2)
            last = i - same[:, ::-1].argmax(1)  # index in the sequence with BOS; the last open at this height
            has = path[:, i] > 0
            assert (found[has, i].argmax(-1).numpy() == last[has]).all()
            assert (found[has, i].amax(-1) > 0.99).all() and (found[~has, i].sum(-1) < 0.01).all()


@pytest.mark.parametrize("m", [1, 10, 200])
def test_the_weight_of_the_match_on_a_flat_word_is_the_formula(m):
    """( ()()...() at the last token: m opens one higher, m closes of the same height."""
    task, strength, penalty = tasks.get("dyck", k=1), 3.0, 8.0
    model = exact_form(task, strength=strength, penalty=penalty).double()
    word = np.array([[0] + [0, 1] * m])
    weight = model.attention(torch.from_numpy(task.rows(word)), 0)[0, 0, -1, 1].item()
    sigmoid = lambda z: 1 / (1 + math.exp(-z))  # noqa: E731
    expected = sigmoid(strength) * (sigmoid(penalty - strength) ** (2 * m))
    assert weight == pytest.approx(expected, rel=1e-4)


def test_fixed_weights_fail_at_some_length_and_log_scaled_ones_do_not():
    task = tasks.get("dyck", k=1)
    word = np.array([[0] + [0, 1] * 1000])
    fixed, scaled = (exact_form(task, strength=2.0, penalty=6.0, log_scale=flag) for flag in (False, True))
    assert answers(fixed, task, word)[1][0, -1] == 0 and answers(scaled, task, word)[1][0, -1] == 1


def test_a_soft_counter_drifts_with_the_distance_and_a_rounded_one_does_not():
    counter = Counter(3, heads=1)
    with torch.no_grad():
        counter.weight.copy_(torch.tensor([[0.0, 1.5, -1.2]]))
        up, down = math.tanh(1.5), math.tanh(1.2)
        for d in (2, 64, 1000):
            x = torch.eye(3)[torch.tensor([[0, 1] + [1, 2] * (d // 2)])].double()
            counts = counter.double().counts(x)[0, 0]
            assert (counts[-1] - counts[1]).item() == pytest.approx(d / 2 * (up - down), rel=1e-5)
            counter.rounded.fill_(True)
            assert counter.counts(x)[0, 0, -1] == counter.counts(x)[0, 0, 1] == 1
            counter.rounded.fill_(False)


@pytest.mark.parametrize("bad", [{"penalty": 1.0}, {"strength": 0.0}, {"width": 10}, {"width": 16, "task": 8}])
def test_bad_sizes_are_refused(bad):
    task = tasks.get("search", k=bad.pop("task", 2))
    with pytest.raises(InputError, match="is not allowed; it must be"):
        exact_form(task, **bad)
    with pytest.raises(InputError, match="rate = 0 "):
        descend(torch.nn.Linear(1, 1), lambda call, step: call(torch.ones(1)).sum(), rate=0, steps=1)


def test_descent_leaves_the_network_alone_and_zeros_at_zero():
    network = UniformDyck(2)
    before = tensors(network)
    word = torch.tensor([[0, 1, 3, 2], [0, 1, 2, 3]])

    def loss(call, step):
        return call(word).square().mean()

    after = descend(network, loss, rate=1e-4, steps=2, relative=True)
    assert all(torch.equal(value, tensors(network)[name]) for name, value in before.items())
    assert all(((after[name] == 0) >= (before[name] == 0)).all() for name in before)
    raw = descend(network, loss, rate=1e-4, steps=1)
    leaves = {name: value.clone().requires_grad_() for name, value in before.items()}
    loss(lambda *inputs: torch.func.functional_call(network, leaves, inputs), 0).backward()
    for name, leaf in leaves.items():
        slope = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
        assert torch.allclose(raw[name], before[name] - 1e-4 * slope)


# In training ------------------------------------------------------------------------------------------------------

SMALL = {"task": "search", "depth": 1, "width": 16, "batch": 4, "length": 8, "steps": 200, "early_stop": False}


def test_training_anneals_and_a_stored_model_stays_rounded(tmp_path):
    run = Run(**SMALL, encoding="counter", attention="stick-breaking")
    states = []
    trained = training.train(run, watch=lambda t: states.append((t.steps, t.model.encoding.gain.item())))
    assert [step for step, _ in states] == [100, 200] and states[0][1] == pytest.approx(1 + 5 * 99 / 100)
    assert trained.model.encoding.rounded and trained.model.encoding.gain == 6
    again = training.load(training.dump(trained)).model
    tokens = torch.from_numpy(tasks.get("search").sample(np.random.default_rng(0), 3, 12).tokens)
    with torch.no_grad():
        assert torch.equal(again(tokens), trained.model(tokens))
    part = training.train(run, checkpoint=tmp_path / "c.safetensors", max_steps=130)
    assert part.steps == 130
    resumed = training.train(run, checkpoint=tmp_path / "c.safetensors").model
    assert all(torch.equal(a, b) for a, b in zip(resumed.parameters(), trained.model.parameters(), strict=True))


def test_runs_without_the_new_fields_are_the_runs_they_were():
    """Loss and data of a default run as they were before there were counters and sticks."""
    run = Run(task="dyck", encoding="rope", depth=2, width=32, steps=100)
    trained = training.train(run)
    assert trained.data_hash.startswith("db9d9b68944b8cb2")
    assert trained.log[0]["loss"] == pytest.approx(0.3913397, abs=2e-3)
    assert "softmax" not in run.name and Run(**SMALL, encoding="nope", log_scale=True).name != run.name
