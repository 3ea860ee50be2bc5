"""The store: two layers, whole files only, nothing executed, nothing overwritten that is not understood."""

import json
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from safetensors.numpy import save

from shiftbound import InputError
from shiftbound import store as module
from shiftbound.runs import Run, Scoring
from shiftbound.store import Store, StoreWarning

RUN = Run(task="dyck", encoding="rope", depth=1, width=16, steps=10)
SCORING = Scoring()
ROWS = [{"family": "length", "level": 40, "accuracy": 0.5, "w1": None}]


def weights(run: Run = RUN) -> bytes:
    return save({"a": np.arange(12.0).reshape(3, 4), "b": np.ones(2)}, {"run": run.canonical()})


@pytest.fixture
def store(tmp_path):
    store = Store(tmp_path)
    store.save(RUN, SCORING, weights(), ROWS)
    return store


def test_round_trip(store):
    assert store.weights(RUN) == weights()
    assert store.rows(RUN, SCORING) == ROWS
    assert not list(store.folder.rglob("*.part"))


def test_what_is_missing_is_none(store):
    other = Run(task="dyck", encoding="ape", depth=1, width=16, steps=10)
    assert store.weights(other) is None and store.rows(other, SCORING) is None
    assert store.rows(RUN, Scoring(sequences=300)) is None


@pytest.mark.parametrize("cut", [0, 5, 40, -1])
def test_truncated_weights_are_set_aside(store, cut):
    path = store.weights_path(RUN)
    path.write_bytes(weights()[:cut])
    with pytest.warns(StoreWarning, match="not whole"):
        assert store.weights(RUN) is None
    assert not path.exists() and path.with_name(path.name + ".aside").exists()


def test_weights_of_another_run_are_set_aside(store):
    store.weights_path(RUN).write_bytes(weights(Run(task="search", encoding="rope", depth=1, width=16)))
    with pytest.warns(StoreWarning, match="another run"):
        assert store.weights(RUN) is None


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda text: text[: len(text) // 2], "not whole"),
        (lambda text: "[]", "not whole"),
        (lambda text: text.replace("0.5", "0.9"), "checksum"),
        (lambda text: json.dumps({**json.loads(text), "format": 99}), "another format"),
        (lambda text: json.dumps({**json.loads(text), "key": "0" * 24}), "another run"),
    ],
)
def test_rows_that_were_cut_or_edited_are_set_aside(store, edit, said):
    path = store.rows_path(RUN, SCORING)
    path.write_text(edit(path.read_text()))
    with pytest.warns(StoreWarning, match=said):
        assert store.rows(RUN, SCORING) is None


def test_bytes_that_are_no_text_are_set_aside(store):
    store.rows_path(RUN, SCORING).write_bytes(b"\xff\xfe\x00junk")
    with pytest.warns(StoreWarning, match="not whole"):
        assert store.rows(RUN, SCORING) is None


def test_a_write_that_fails_leaves_the_old_file(store, monkeypatch):
    monkeypatch.setattr(module.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        store.save(RUN, SCORING, weights(), ROWS)
    monkeypatch.undo()
    assert store.rows(RUN, SCORING) == ROWS and not list(store.folder.rglob("*.part"))


def test_foreign_weights_are_never_saved(store):
    with pytest.raises(InputError, match="another run"):
        store.save(Run(task="dyck", encoding="ape", depth=1, width=16), SCORING, weights(), ROWS)


def test_readers_never_see_half_a_file(store):
    """One thread rewrites, another reads: every read is whole (a warning would be an error)."""
    stop = threading.Event()

    def rewrite() -> None:
        while not stop.is_set():
            store.save(RUN, SCORING, weights(), ROWS)

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        for _ in range(300):
            assert store.rows(RUN, SCORING) == ROWS and store.weights(RUN) == weights()
    finally:
        stop.set()
        thread.join()


KEYS = """
from shiftbound.runs import Run, Scoring
from shiftbound.store import rows_key, weights_key
run = Run(task="dyck", encoding="rope", depth=1, width=16, steps=10)
print(weights_key(run), rows_key(run, Scoring()))
"""
CHANGES = {  # module changed: (weights key changes, rows key changes)
    "training.py": (True, True), "transformer.py": (True, True), "positions.py": (True, True), "words.py": (True, True),
    "tasks/dyck.py": (True, True), "evaluation.py": (False, True), "transport/__init__.py": (False, True),
    "cli.py": (False, False), "book.py": (False, False), "figures.py": (False, False), "tasks/chain.py": (False, False),
    "engine.py": (False, False), "runs.py": (False, False),
}  # fmt: skip


def _keys(folder) -> list[str]:
    environment = {**module.os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", KEYS], env=environment, capture_output=True, text=True, check=True
    ).stdout.split()


def test_which_code_makes_which_layer_stale(tmp_path):
    """Training code retrains, evaluation code only scores again, all other code does neither."""
    package = tmp_path / "shiftbound"
    shutil.copytree(module.PACKAGE, package, ignore=shutil.ignore_patterns("__pycache__"))
    before = _keys(tmp_path)
    for name, expected in CHANGES.items():
        path = package / name
        text = path.read_text(encoding="utf-8")
        path.write_text(text + "\n# changed\n", encoding="utf-8")
        after = _keys(tmp_path)
        path.write_text(text, encoding="utf-8")
        assert (after[0] != before[0], after[1] != before[1]) == expected, name
