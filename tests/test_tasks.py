"""The tasks of the grid: labels against slow references, exact laws, shifts, streams, hashes, baselines, bad input."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
import math

import numpy as np
import pytest

from shiftbound import InputError, tasks, words
from shiftbound.tasks import Batch, DataChanged, Shift

STACK = ("dyck", "search")
GRID = (*STACK, "chain", "scoping")
SAMPLES = 10_000


def drawn(name: str, size: int = SAMPLES, length: int = 32, **options) -> Batch:
    return tasks.get(name).sample(np.random.default_rng(2), size, length, **options)


def rows(batch: Batch):
    return zip(batch.tokens.tolist(), batch.labels.tolist(), batch.hard.tolist(), strict=True)


@pytest.mark.parametrize("module", ["", *(f".{name}" for name in tasks.NAMES)])
def test_examples(module):
    assert doctest.testmod(importlib.import_module(f"shiftbound.tasks{module}")).failed == 0


# Labels, by the slow and obvious way ------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "length"), [(2, 32), (1, 8), (3, 48)])
def test_dyck_labels_are_the_top_of_a_real_stack(k, length):
    batch = tasks.get("dyck", k=k).sample(np.random.default_rng(0), SAMPLES, length)
    for tokens, labels, hard in rows(batch):
        assert tokens[0] == 0 and labels[0] == -1 and not hard[0]
        stack = []
        for token, label, is_hard in zip(tokens[1:], labels[1:], hard[1:], strict=True):
            closes = token > k
            if closes:
                assert stack.pop() == token - k
            else:
                stack.append(token)
            assert label == (stack[-1] if stack else 0)
            assert is_hard == (closes and bool(stack))
        assert not stack


@pytest.mark.parametrize(("k", "length"), [(8, 32), (3, 48)])
def test_search_labels_are_the_node_that_a_real_search_comes_back_to(k, length):
    batch = tasks.get("search", k=k).sample(np.random.default_rng(0), SAMPLES, length)
    for tokens, labels, hard in rows(batch):
        path = [0]  # the nodes from the root to where the search is
        for token, label, is_hard in zip(tokens[1:], labels[1:], hard[1:], strict=True):
            if token <= k:
                path.append(token)
                assert label == -1 and not is_hard
            else:
                path.pop()
                assert label == path[-1] and is_hard == (len(path) > 1)
        assert path == [0]


def test_chain_labels_follow_a_real_dictionary():
    sources = 8
    for tokens, labels, hard in rows(drawn("chain")):
        facts = {}
        for token, label, is_hard in zip(tokens[1:], labels[1:], hard[1:], strict=True):
            target, source = divmod(token - 1, sources)
            facts[target] = (source, 0) if source < 4 else (facts[source - 4][0], facts[source - 4][1] + 1)
            assert (label, is_hard) == (facts[target][0], facts[target][1] >= 2)


def test_scoping_labels_follow_a_real_stack_of_dictionaries():
    for tokens, labels, hard in rows(drawn("scoping")):
        environments, last = [{}], {}
        for position, (token, label, is_hard) in enumerate(zip(tokens[1:], labels[1:], hard[1:], strict=True)):
            if token == 1:
                environments.append({})
            elif token == 2:
                environments.pop()
            elif token < 15:
                variable, value = divmod(token - 3, 4)
                environments[-1][variable] = last[variable] = (value, position)
            else:
                variable = token - 15
                seen = next((scope[variable] for scope in reversed(environments) if variable in scope), None)
                assert label == (0 if seen is None else seen[0] + 1)
                assert is_hard == (seen is not None and seen != last[variable])
                continue
            assert label == -1 and not is_hard
        assert environments  # no scope closed that was not open


@pytest.mark.parametrize("name", GRID)
def test_every_row_has_a_label_and_labels_fit(name):
    task = tasks.get(name)
    batch = drawn(name, 2_000)
    assert (batch.labels >= 0).any(axis=1).all()
    assert batch.labels.min() == -1 and batch.labels.max() == task.classes - 1
    assert batch.tokens[:, 0].max() == 0 and batch.tokens[:, 1:].min() >= 1 and batch.tokens.max() == task.vocab - 1
    assert not batch.hard[batch.labels < 0].any() and batch.hard.any()
    assert np.array_equal(task.label(batch.tokens).labels, batch.labels)


def test_short_programs_still_have_a_use():
    batch = drawn("scoping", 2_000, 8)
    assert (batch.labels >= 0).any(axis=1).all()
    natural = (batch.labels[:, 1:-1] >= 0).any(axis=1)
    assert not natural.all()  # the rule was needed
    assert (batch.tokens[~natural, -1] >= 15).all()


# Laws -------------------------------------------------------------------------------------------------------------


def assert_share(hits: int, trials: int, share: float, deviations: float = 5.0) -> None:
    assert abs(hits / trials - share) < deviations * math.sqrt(share * (1 - share) / trials)


@pytest.mark.parametrize("name", STACK)
def test_rows_are_exactly_sampled_words(name):
    task = tasks.get(name)
    batch = drawn(name)
    expected = words.sample(np.random.default_rng(2), SAMPLES, 32, task.k)
    assert np.array_equal(task.words(batch.tokens), expected)
    assert all(words.is_dyck(word, task.k) for word in task.words(batch.tokens).tolist())


def test_type_mix_and_cap_are_those_asked_for():
    for name, first in (("dyck", 0.9), ("search", 0.6)):
        task = tasks.get(name)
        opens = drawn(name, 2_000, first=first).tokens[:, 1:]
        opens = opens[opens <= task.k]
        counts = np.bincount(opens, minlength=task.k + 1)[1:]
        assert_share(counts[0], len(opens), first)
        for other in counts[1:]:
            assert_share(other, len(opens), (1 - first) / (task.k - 1))
    capped = tasks.get("dyck").words(drawn("dyck", 2_000, 128, cap=6).tokens)
    assert words.heights(capped, 2).max() == 6


def test_harmless_prefix_is_read_but_not_scored():
    for name, pair in (("dyck", [1, 3]), ("search", [1, 9])):
        batch, plain = drawn(name, 500, 48, prefix=16), drawn(name, 500, 32)
        assert (batch.tokens[:, 1:17] == pair * 8).all()
        assert (batch.labels[:, :17] == -1).all() and not batch.hard[:, :17].any()
        for with_prefix, without in (
            (batch.tokens, plain.tokens),
            (batch.labels, plain.labels),
            (batch.hard, plain.hard),
        ):
            assert np.array_equal(with_prefix[:, 17:], without[:, 1:])


def test_chain_follows_its_law():
    for axiom in (0.25, 0.6):
        batch = drawn("chain", 4_000, 32, axiom=axiom)
        target, source = np.divmod(batch.tokens[:, 1:] - 1, 8)
        assert (source[:, 0] < 4).all()
        later = source[:, 1:]
        assert_share(int((later < 4).sum()), later.size, axiom)
        for value in range(4):
            assert_share(int((target == value).sum()), target.size, 0.25)
            assert_share(int((later == value).sum()), int((later < 4).sum()), 0.25)
        second = source[:, 1]  # the second step may read only the variable that the first one bound
        assert (second[second >= 4] - 4 == target[:, 0][second >= 4]).all()


@pytest.mark.parametrize("beta", [0.0, -1.0, 2.5])
def test_scoping_follows_its_law(beta):
    batch = drawn("scoping", 4_000, 32, closing=beta)
    tokens = batch.tokens[:, 1:]
    inner = tokens[:, :-1]  # the last token may be forced
    assert_share(int((inner <= 2).sum()), inner.size, 0.4)
    assert_share(int((inner >= 15).sum()), inner.size, 0.35)
    before = np.pad(tasks.get("scoping").depths(batch.tokens), ((0, 0), (1, 0)))[:, :-1]
    free = (tokens <= 2) & (before > 0)
    assert_share(int((tokens[free] == 2).sum()), int(free.sum()), 1 / (1 + math.exp(beta)))
    assert (tokens[(tokens <= 2) & (before == 0)] == 1).all()


def test_training_lengths_follow_the_rule(monkeypatch):
    rng = np.random.default_rng(1000)
    task = tasks.get("dyck")
    lengths = []
    empty = drawn("dyck", 1)
    with monkeypatch.context() as patched:  # the rule alone, without drawing words
        patched.setattr(tasks.Task, "sample", lambda self, rng, size, length: lengths.append(length) or empty)
        patched.delattr(type(task), "sample")
        for _ in range(3_000):
            task.train_batch(rng, 1)
    lengths = np.array(lengths)
    assert set(lengths) == set(range(8, 33, 2))
    assert_share(int((lengths == 32).sum()), 3_000, 0.5 + 0.5 / 13)
    for length in range(8, 32, 2):
        assert_share(int((lengths == length).sum()), 3_000, 0.5 / 13)
    assert task.train_batch(rng, 4, longest=6).tokens.shape == (4, 7)


# Baselines --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "majority", "majority_hard"),
    # the exact values where there is one: the empty stack has probability 2/n+2 · ..., see below; else None
    [("dyck", 0.5 * (1 - 1 / 12), 0.5), ("search", 1 / 6, 1 / 8), ("chain", 0.25, 0.25), ("scoping", 0.5, None)],
)
def test_majority_and_chance(name, majority, majority_hard):
    """A random Dyck word of n tokens returns to height 0 on average 3n / (n + 4) times: 8/3 of 32 tokens or 16 pops."""
    task = tasks.get(name)
    batch = drawn(name, 20_000)
    guessed = task.baselines(batch)
    assert guessed.chance == 1 / task.classes
    returns = (words.heights(words.sample(np.random.default_rng(0), 20_000, 32, 1), 1)[:, 1:] == 0).sum(axis=1)
    assert abs(returns.mean() - 8 / 3) < 5 * returns.std() / math.sqrt(20_000)
    assert guessed.majority == pytest.approx(majority, abs=0.01)
    if majority_hard is not None:
        assert guessed.majority_hard == pytest.approx(majority_hard, abs=0.01)
    supervised = batch.labels[batch.labels >= 0].tolist()
    assert guessed.majority == max(supervised.count(label) for label in set(supervised)) / len(supervised)
    on_hard = batch.labels[batch.hard].tolist()
    assert guessed.majority_hard == max(on_hard.count(label) for label in set(on_hard)) / len(on_hard)


def test_guessing_unbound_would_be_too_easy_on_restored_values():
    """Why an unbound value that comes back is not hard: on all restored values, "unbound" is right most of the time."""
    restored = unbound = 0
    for tokens, labels, hard in rows(drawn("scoping", 3_000)):
        depth, last = 0, {}
        for token, label, is_hard in zip(tokens[1:], labels[1:], hard[1:], strict=True):
            depth += (token == 1) - (token == 2)
            if 3 <= token < 15:
                last[(token - 3) // 4] = True
            elif token >= 15 and (token - 15) in last:
                gone = label == 0
                restored += gone or is_hard
                unbound += gone
    assert 0.65 < unbound / restored < 0.85


# Shifts and streams -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GRID)
def test_shifts_cover_the_protocol(name):
    task = tasks.get(name)
    shifts = task.shifts()
    assert len(set(shifts)) == len(shifts)
    assert shifts[:2] == (task.reference(), task.floor())
    families = {shift.family for shift in shifts}
    own = {"capped", "tilt", "types", "prefix"} if name in STACK else {"axioms"} if name == "chain" else {"closing"}
    assert families == {"reference", "floor", "length", "offset", *own}
    assert [s.level for s in shifts if s.family == "length"] == [40, 48, 64, 96, 128, 192, 256]
    offsets = [s for s in shifts if s.family == "offset"]
    assert offsets[0].level == 1 and offsets[-1].level == 192 and all(s.offset == s.level for s in offsets)
    for shift in shifts:
        assert task.shift(shift.family, shift.level) == shift
        batch = task.evaluation_batch(shift, 64)
        assert batch.tokens.shape == (64, 1 + shift.length)
        assert batch.hard.any()
        paths = task.paths(batch)
        assert paths.shape[0] == 64 and paths.shape[1] % 32 == 0 and np.isfinite(paths).all()


def test_streams_are_the_documented_ones_and_differ():
    assert [Shift("length", n, n).stream for n in (40, 256)] == [540, 756]
    assert [tasks.get("dyck").shift("tilt", b).stream for b in (-0.15, 0.4)] == [29_850, 30_400]
    for name in tasks.NAMES:
        task = tasks.get(name)
        streams = [s.stream for s in (*task.shifts(), task.validation()) if s.family != "offset"]
        assert len(set(streams)) == len(streams)
        assert not any(1000 <= stream < 20_000 for stream in streams)  # left to training seeds


@pytest.mark.parametrize("name", GRID)
def test_an_offset_leaves_the_tokens_alone(name):
    task = tasks.get(name)
    home = task.evaluation_batch(task.reference(), 40)
    moved = task.evaluation_batch(task.shift("offset", 32), 40)
    assert np.array_equal(home.tokens, moved.tokens) and np.array_equal(home.labels, moved.labels)


@pytest.mark.parametrize("name", tasks.NAMES)
def test_the_first_rows_do_not_depend_on_how_many_are_drawn(name):
    task = tasks.get(name)
    for shift in (task.reference(), task.shifts()[-1]):
        few = task.evaluation_batch(shift, 30)
        many = task.evaluation_batch(shift, tasks.GUARDED + 100)
        assert len(few) == 30 and len(many) == tasks.GUARDED + 100
        assert few.sha256 == many.head(30).sha256


@pytest.mark.parametrize("name", STACK)
def test_paths_are_those_of_the_words(name):
    task = tasks.get(name)
    for length in (32, 64):
        batch = drawn(name, 20, length)
        expected = words.typed_paths(words.sample(np.random.default_rng(2), 20, length, task.k), task.k)
        assert np.array_equal(task.paths(batch), expected)


@pytest.mark.parametrize("name", ["chain", "scoping"])
def test_depth_paths_by_counting(name):
    task = tasks.get(name)
    batch = drawn(name, 50, 64)
    for row, path in zip(batch.tokens.tolist(), task.paths(batch).tolist(), strict=True):
        depths, facts, depth = [], {}, 0
        for token in row[1:]:
            if name == "chain":
                target, source = divmod(token - 1, 8)
                facts[target] = depth = 0 if source < 4 else facts[source - 4] + 1
            else:
                depth += (token == 1) - (token == 2)
            depths.append(depth)
        assert path == [depths[math.floor((i + 0.5) * 64 / 32)] for i in range(32)]


# Hashes -----------------------------------------------------------------------------------------------------------


def test_the_data_are_the_published_ones():
    expected = tasks._expected()
    seen = set()
    for task in (*(tasks.get(name) for name in GRID), *(tasks.get("arithmetic", **o) for o in tasks.ARITHMETIC)):
        for data_set, digest in task.data_hashes().items():
            key = (tasks._task_name(task), data_set)
            assert expected[key] == digest, key
            seen.add(key)
    assert seen == set(expected)
    assert len(set(expected.values())) > 100


def test_the_hash_covers_every_array_and_ignores_memory_layout():
    batch = drawn("dyck", 8)
    same = Batch(np.asfortranarray(batch.tokens), batch.labels.astype(np.int32), batch.hard.copy())
    assert same.sha256 == batch.sha256
    for field in ("tokens", "labels", "hard"):
        changed = getattr(batch, field).copy()
        changed[3, 3] = 1 - changed[3, 3] if field != "hard" else ~changed[3, 3]
        assert dataclasses.replace(batch, **{field: changed}).sha256 != batch.sha256
    flat = Batch(*(getattr(batch, field).reshape(4, -1) for field in ("tokens", "labels", "hard")))
    assert flat.sha256 != batch.sha256


def test_other_data_are_refused_loudly(monkeypatch):
    task = tasks.get("dyck")
    shift = task.shift("length", 40)
    wrong = dict(tasks._expected()) | {("dyck", "length 40"): "0" * 64}
    tasks._fixed.cache_clear()
    monkeypatch.setattr(tasks, "_expected", lambda: wrong)
    with pytest.raises(DataChanged, match=r"the data set 'length 40' of 'dyck' has SHA-256 .* where 0{12}"):
        task.evaluation_batch(shift, 16)
    home_made = dataclasses.replace(shift, options=(("cap", 2),))  # not a published set: nothing to compare with
    assert len(task.evaluation_batch(home_made, 16)) == 16
    assert len(tasks.get("dyck", k=3).evaluation_batch(shift, 16)) == 16
    tasks._fixed.cache_clear()


def test_hashes_are_written_as_they_are_read(tmp_path, monkeypatch):
    published = tasks.HASHES.read_text(encoding="utf-8")
    monkeypatch.setattr(tasks, "HASHES", tmp_path / "data_hashes.csv")
    tasks._expected.cache_clear()
    with pytest.raises(DataChanged, match="missing from the package"):
        tasks._expected()
    tasks.write_hashes()
    assert (tmp_path / "data_hashes.csv").read_text(encoding="utf-8") == published
    tasks._expected.cache_clear()


# Bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: tasks.get("dick"),
            "task = 'dick' is not allowed; it must be one of 'dyck', 'search', 'chain', 'scoping', 'arithmetic'",
        ),
        (lambda: tasks.get("dyck", n=3), "option of dyck = 'n' is not allowed; it must be one of 'k'"),
        (lambda: tasks.get("dyck", k=0), "k = 0 is not allowed; it must be a whole number, at least 1"),
        (lambda: tasks.get("dyck", k=2.5), "k = 2.5 is not allowed; it must be a whole number"),
        (lambda: tasks.get("dyck", k=True), "k = True is not allowed; it must be a whole number"),
        (lambda: tasks.get("chain", axioms=1), "axioms = 1 is not allowed; it must be a whole number, at least 2"),
        (lambda: tasks.get("scoping", values=1), "values = 1 is not allowed; it must be a whole number, at least 2"),
        (
            lambda: tasks.get("chain").shift("tilt", 0.1),
            "family = 'tilt' is not allowed; it must be one of 'reference', 'floor', 'length', 'offset', 'axioms'",
        ),
        (
            lambda: tasks.get("chain").shift("axioms", 0.5),
            "level = 0.5 is not allowed; for 'axioms' it must be one of [0.6, 0.4, 0.18, 0.12, 0.06]",
        ),
        (lambda: drawn("dyck", 1, 31), "length = 31 is not allowed; it must be an even whole number, at least 0"),
        (lambda: drawn("dyck", 1, 8, prefix=3), "prefix = 3 is not allowed; it must be an even whole number up to 8"),
        (lambda: drawn("chain", 1, 8, axiom=1.5), "axiom = 1.5 is not allowed; it must be a probability"),
        (
            lambda: tasks.get("dyck").train_batch(np.random.default_rng(0), 2, 31),
            "longest = 31 is not allowed; it must be an even whole number, at least 2",
        ),
        (
            lambda: tasks.get("chain").label(np.array([[0, 5]])),
            "tokens = 'a row' is not allowed; it must be rows that read no variable before it is bound",
        ),
        (
            lambda: tasks.get("scoping").label(np.array([[0, 2, 15]])),
            "tokens = 'a row' is not allowed; it must be rows in which no } stands without its {",
        ),
        (
            lambda: tasks.get("scoping").label(np.array([[0, 1, 2]])),
            "tokens = 'a row' is not allowed; it must be rows with at least one use",
        ),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, says):
    with pytest.raises(InputError) as refused:
        call()
    assert str(refused.value) == says
