"""Training: the protocol's schedule and optimiser, its data, interruptions, and the same numbers for the same run."""

import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
import time

import numpy as np
import pytest
import safetensors.torch
import torch

from shiftbound import InputError, tasks, training
from shiftbound.optimiser import Optimiser
from shiftbound.runs import Run
from shiftbound.store import metadata
from shiftbound.training import Trained, build, dump, learning_rate, load, train
from shiftbound.transformer import Transformer

TINY = {"task": "dyck", "encoding": "rope", "depth": 1, "width": 16, "batch": 4, "length": 8, "steps": 130}


def weights(trained: Trained) -> str:
    """SHA-256 over the weights, in order of their names."""
    digest = hashlib.sha256()
    for name, value in sorted(trained.model.state_dict().items()):
        digest.update(name.encode() + value.numpy().tobytes())
    return digest.hexdigest()


def outcome(trained: Trained) -> tuple:
    return weights(trained), trained.steps, trained.log, trained.data_hash


# The protocol -----------------------------------------------------------------------------------------------------


def test_learning_rate_by_hand():
    run = Run(**TINY | {"steps": 1000, "lr": 2.0})
    rates = [learning_rate(run, step) for step in range(1000)]
    assert rates[:3] == pytest.approx([0.02, 0.04, 0.06])
    assert rates[99] == rates[100] == max(rates) == 2.0
    assert rates[325] == pytest.approx(2 * (0.05 + 0.95 * (1 + math.sqrt(0.5)) / 2))  # an eighth of the way round
    assert rates[550] == pytest.approx(2 * 0.525)
    assert 0.1 < rates[999] < 0.1001
    assert all(later < earlier for earlier, later in itertools.pairwise(rates[100:]))


@pytest.mark.parametrize("steps", [1, 2, 9, 30])
def test_short_runs_warm_up_in_a_tenth_of_their_steps(steps):
    rates = [learning_rate(Run(**TINY | {"steps": steps}), step) for step in range(steps)]
    assert max(rates) == 3e-3 and rates.index(3e-3) == max(1, steps // 10) - 1
    assert min(rates) > 0


def test_one_vector_takes_the_steps_of_torch_s_own_optimiser():
    torch.manual_seed(0)
    tokens, labels = torch.randint(5, (5, 4, 9)), torch.randint(3, (5, 4, 9))
    run = Run(**TINY)
    ours, theirs = build(run).double(), build(run).double()
    one = Optimiser(ours, decay=0.1)
    plain = torch.optim.AdamW(theirs.parameters(), betas=(0.9, 0.98), weight_decay=0.1, fused=False, foreach=False)
    for step in range(5):
        rate, losses = 0.01 * (step + 1), []
        for model in (ours, theirs):
            logits = 50 * model(tokens[step])  # a gradient to clip
            losses.append(torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels[step].flatten()))
        one.step(losses[0], rate)
        plain.zero_grad()
        losses[1].backward()
        assert torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0) > 1
        plain.param_groups[0]["lr"] = rate
        plain.step()
    one.release()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a, b, atol=1e-9)
        assert a.grad is None and a.untyped_storage().nbytes() == 8 * a.numel()


def test_batches_follow_the_protocol():
    run = Run(**TINY | {"steps": 960, "length": 32, "batch": 2})
    encoding = build(run).encoding
    seen = list(training._batches(run, tasks.get("dyck"), encoding, 0))
    lengths = np.array([tokens.shape[1] - 1 for tokens, _, _ in seen])
    assert len(seen) == 960 and set(lengths) <= set(range(8, 33, 2)) and set(lengths) >= {8, 32}
    # 120 groups of one length, of which half are long, and 1/13 of the rest too: within 4 standard errors.
    share = (1 + 1 / 13) / 2
    assert abs((lengths == 32).mean() - share) < 4 * math.sqrt(share * (1 - share) / 120)
    for tokens, labels, ids in seen[:50]:
        again = tasks.get("dyck").label(tokens)
        assert (labels == again.labels).all() and (tokens[:, 0] == 0).all() and labels[0, 0] == -1
        assert ids.tolist() == list(range(tokens.shape[1]))
    for start in (1, 95, 96, 500):
        later = next(training._batches(run, tasks.get("dyck"), encoding, start))
        assert all((a == b).all() for a, b in zip(later, seen[start], strict=True))
    first = next(training._batches(Run(**TINY | {"length": 32, "batch": 2, "seed": 1}), tasks.get("dyck"), encoding, 0))
    assert first[0].shape != seen[0][0].shape or (first[0] != seen[0][0]).any()


def test_shuffled_labels_keep_their_counts_and_nothing_else():
    run = Run(**TINY | {"batch": 64, "control": "shuffled-labels"})
    encoding, agreement = build(run).encoding, []
    for tokens, labels, _ in training._batches(run, tasks.get("dyck"), encoding, 0):
        true = tasks.get("dyck").label(tokens).labels
        assert ((labels >= 0) == (true >= 0)).all()
        assert (np.bincount(labels[labels >= 0], minlength=3) == np.bincount(true[true >= 0], minlength=3)).all()
        shares = np.bincount(true[true >= 0]) / (true >= 0).sum()
        agreement.append((labels[true >= 0] == true[true >= 0]).mean() - (shares**2).sum())
    error = np.std(agreement, ddof=1) / math.sqrt(len(agreement))
    assert abs(np.mean(agreement)) < 4 * error


@pytest.mark.parametrize("encoding", ["ape-offset", "ape-random"])
def test_random_positions_reach_the_model_in_training(encoding):
    run = Run(**TINY | {"encoding": encoding})
    ids = [ids for _, _, ids in training._batches(run, tasks.get("dyck"), build(run).encoding, 0)]
    assert ids[0].shape[0] == run.batch and (np.diff(ids[0]) >= 1).all()
    assert len({int(row[0]) for each in ids for row in each}) > 50
    assert train(Run(**TINY | {"encoding": encoding, "steps": 3})).steps == 3


# Looks and gates --------------------------------------------------------------------------------------------------


def looks(monkeypatch, *pairs):
    given = iter(pairs)
    monkeypatch.setattr(training, "LOOK", 10)
    monkeypatch.setattr(
        training, "_look", lambda model, task: dict(zip(("accuracy", "hard"), next(given), strict=True))
    )


def test_two_clean_looks_in_a_row_end_a_run(monkeypatch):
    looks(monkeypatch, (0.999, 0.997), (0.9979, 0.999), (0.94, 0.9), (0.999, 0.997), (0.999, 0.9959), (1, 1), (1, None))
    trained = train(Run(**TINY | {"steps": 2000, "batch": 2, "length": 2}))
    assert trained.steps == 70 and [row["step"] for row in trained.log] == list(range(10, 71, 10))
    assert trained.complete and trained.passed_gate and trained.steps_to_gate == 10


def test_a_run_without_early_stop_goes_on(monkeypatch):
    looks(monkeypatch, (1.0, 1.0), (1.0, 1.0), (0.5, 0.5))
    trained = train(Run(**TINY | {"steps": 25, "batch": 2, "length": 2, "early_stop": False}))
    assert trained.steps == 25 and [row["step"] for row in trained.log] == [10, 20, 25]
    assert not trained.passed_gate and trained.steps_to_gate == 10


def test_a_look_is_at_the_fixed_validation_set():
    trained = train(Run(**TINY | {"steps": 100}))
    assert len(trained.log) == 1 and trained.log[0]["step"] == 100
    batch = tasks.get("dyck").evaluation_batch(tasks.get("dyck").validation(), 256)
    assert batch.tokens.shape == (256, 33)
    trained.model.eval()
    with torch.no_grad():
        right = trained.model(torch.from_numpy(batch.tokens)).argmax(-1).numpy() == batch.labels
    assert trained.log[-1]["accuracy"] == right[batch.labels >= 0].mean()
    assert trained.log[-1]["hard"] == right[batch.hard].mean()


def test_a_short_run_learns_and_shuffled_labels_teach_nothing():
    settings = {"width": 32, "batch": 16, "steps": 200, "length": 16}
    learned, fooled = (train(Run(**TINY | settings | {"control": c})) for c in ("", "shuffled-labels"))
    batch = tasks.get("dyck").evaluation_batch(tasks.get("dyck").validation(), 256)
    majority = tasks.get("dyck").baselines(batch).majority
    assert learned.log[-1]["accuracy"] > majority + 0.25
    assert fooled.log[-1]["accuracy"] < majority + 0.1
    assert learned.log[1]["loss"] < learned.log[0]["loss"]
    assert fooled.log[1]["loss"] > 0.9


@pytest.mark.parametrize("task", ["search", "chain", "scoping", "arithmetic"])
def test_every_task_goes_through_the_same_loop(task):
    trained = train(Run(**TINY | {"task": task, "steps": 5}))
    assert trained.steps == 5 and 0 <= trained.log[0]["accuracy"] <= 1


# The same run, the same numbers ------------------------------------------------------------------------------------

CHILD = """
import json, pathlib, sys, torch
from shiftbound.runs import Run
from shiftbound.training import dump, train
torch.manual_seed(int(sys.argv[4]))
trained = train(Run(**json.loads(sys.argv[1])), checkpoint=sys.argv[2], every=20)
pathlib.Path(sys.argv[3]).write_bytes(dump(trained))
"""


def child(run: dict, checkpoint, result, threads: int) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(run), str(checkpoint), str(result), str(threads)],
        env=os.environ | {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)},
    )


def test_same_run_same_bits_in_another_process_and_after_kill_9(tmp_path):
    """One child is left alone, with two threads allowed; the other is killed at its first checkpoint. The parent takes
    the latter up and arrives at the same weights."""
    run = TINY | {"dropout": 0.1, "encoding": "ape-offset", "steps": 500, "batch": 32, "early_stop": False}
    path, other = tmp_path / "killed.safetensors", tmp_path / "alone.safetensors"
    with child(run, other, tmp_path / "result", 2) as alone:
        with child(run, path, tmp_path / "never", 1) as killed:
            while not path.exists() and killed.poll() is None:
                time.sleep(0.005)
            killed.kill()
        assert killed.returncode != 0 and path.exists() and not (tmp_path / "never").exists()
    steps = []
    resumed = train(Run(**run), checkpoint=path, watch=lambda so_far: steps.append(so_far.steps))
    assert steps[-1] == 500 and resumed.steps == 500
    assert not path.exists()
    assert alone.returncode == 0 and not other.exists()
    undisturbed = load((tmp_path / "result").read_bytes())
    assert outcome(resumed) == outcome(undisturbed)


def paper_run() -> Run:
    """The cheapest run of the profile paper."""
    from shiftbound import engine, plan, runs
    from shiftbound.store import root

    profile = runs.profile("paper", root() / "book" / "profiles")
    grids = plan.notebook_grids(root() / "notebooks" / "10_sweep.md", profile.parameters("10_sweep"))
    listed = runs.union(grid for grid in grids if not grid.published)
    assert len(listed) == 4 * 5 * 4 * 4 * 3  # encodings, depths, widths, tasks with search, seeds
    return min((run for run, _ in listed), key=engine.cost)


def test_a_run_of_the_profile_paper_starts_and_is_taken_up_after_kill_9(tmp_path):
    run, path = paper_run(), tmp_path / "paper.safetensors"
    fields = json.loads(run.canonical()) | {"options": []}
    with child(fields, path, tmp_path / "never", 1) as killed:
        while not path.exists() and killed.poll() is None:
            time.sleep(0.005)
        killed.kill()
    reached = json.loads(metadata(path.read_bytes())["record"])["steps"]
    assert reached == 20 and not (tmp_path / "never").exists()
    resumed = train(run, checkpoint=path, max_steps=22)
    assert resumed.steps == 22 and outcome(resumed) == outcome(train(run, max_steps=22))


def test_interruptions_anywhere_change_nothing(tmp_path):
    run, path = Run(**TINY | {"dropout": 0.2}), tmp_path / "c.safetensors"
    whole = train(run)
    for stop in (1, 37, 100, 101, 129):
        part = train(run, checkpoint=path, max_steps=stop)
        assert part.steps == stop and path.exists()
    resumed = train(run, checkpoint=path, every=7)
    assert outcome(resumed) == outcome(whole) and not path.exists()
    assert resumed.seconds_cpu > 0 and resumed.seconds_wall > 0


def test_another_seed_gives_other_numbers():
    one, two = (train(Run(**TINY | {"steps": 2, "seed": seed})) for seed in (0, 1))
    assert weights(one) != weights(two) and one.data_hash != two.data_hash


def test_training_leaves_torch_as_it_was():
    torch.manual_seed(5)
    before = torch.get_rng_state(), torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(2)
    train(Run(**TINY | {"steps": 2, "dropout": 0.1}))
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before[1])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert torch.are_deterministic_algorithms_enabled() == before[2]


@pytest.mark.parametrize("damage", ["truncated", "garbage", "foreign"])
def test_a_checkpoint_that_does_not_fit_is_not_used(tmp_path, damage):
    run, path = Run(**TINY | {"steps": 20}), tmp_path / "c.safetensors"
    train(run if damage != "foreign" else Run(**TINY | {"steps": 20, "seed": 9}), checkpoint=path, max_steps=10)
    if damage == "truncated":
        path.write_bytes(path.read_bytes()[:-100])
    if damage == "garbage":
        path.write_bytes(b"nothing of the kind")
    with pytest.warns(UserWarning, match="was not used, the run starts anew"):
        resumed = train(run, checkpoint=path)
    assert outcome(resumed) == outcome(train(run))


# On disk and at the door --------------------------------------------------------------------------------------------


def test_dump_and_load_are_inverse():
    run = Run(**TINY | {"task": "dyck", "options": (("k", 3),), "encoding": "t5", "steps": 3, "window": 5})
    trained = train(run)
    again = load(dump(trained))
    assert again.run == run and outcome(again) == outcome(trained)
    assert again.summary() == trained.summary()
    tokens = torch.randint(7, (2, 9))
    assert torch.equal(again.model.eval()(tokens), trained.model.eval()(tokens))
    assert again.summary()["parameters"] == sum(p.numel() for p in build(run).parameters())


@pytest.mark.parametrize("what", ["empty", "text", "cut", "another", "other sizes"])
def test_other_bytes_are_refused(what):
    run = Run(**TINY)
    whole = dump(Trained(build(run), run))
    data = {
        "empty": b"",
        "text": b"not safetensors at all",
        "cut": whole[:-4],
        "another": safetensors.torch.save({"x": torch.zeros(3)}),
        "other sizes": dump(Trained(Transformer(5, 3, 2, 16), run)),
    }[what]
    with pytest.raises(InputError, match="do not hold a trained run"):
        load(data)


def test_bad_arguments_are_refused():
    run = Run(**TINY)
    for options in ({"every": 0}, {"max_steps": 0}, {"device": "gpu"}):
        with pytest.raises(InputError, match="is not allowed; it must be"):
            train(run, **options)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="where torch sees one"):
            train(run, device="cuda")
    assert train(Run(**TINY | {"steps": 1}), device="auto").steps == 1
