"""The engine on real processes: resumed after kill -9, retried when a worker dies, shared by two askers."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from shiftbound import InputError, engine, published
from shiftbound.runs import Grid, Run, Scoring
from shiftbound.store import Store

TINY = Scoring(sequences=16, states=16, states_long=16, draws=4, families=("length",), max_length=48)


def pair(seed: int = 0, steps: int = 20, **changes: object) -> engine.Pair:
    return Run(
        **{"task": "dyck", "encoding": "rope", "depth": 1, "width": 16, "seed": seed, "steps": steps, **changes}
    ), TINY


@pytest.fixture(scope="module")
def scheduler(tmp_path_factory):
    """A real ``dask scheduler`` and two real ``dask worker`` processes; yields its address and the workers."""
    folder = tmp_path_factory.mktemp("dask")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"tcp://127.0.0.1:{port}"
    with contextlib.ExitStack() as stack:

        def start(*arguments: str) -> subprocess.Popen:
            log = stack.enter_context((folder / f"{arguments[0]}-{len(stack._exit_callbacks)}.log").open("w"))
            process = subprocess.Popen(
                [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]],
                stdout=log,
                stderr=log,
                cwd=folder,
                start_new_session=True,
            )
            stack.callback(lambda: (_kill(process), process.wait()))
            return process

        start("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard", "--no-show")
        options = (address, "--nthreads", "1", "--no-dashboard", "--host", "127.0.0.1")
        workers = [start("worker", *options) for _ in range(2)]
        yield address, workers


def _kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def measured(rows: list[dict]) -> list[dict]:
    """The rows without what they cost, which differs from time to time."""
    spent = {"seconds_cpu", "seconds_wall", "seconds_scoring", "peak_mib"}
    assert spent <= set(rows[0])
    return [{name: value for name, value in row.items() if name not in spent} for row in rows]


def test_train_once_then_reuse_then_only_rescore(tmp_path, scheduler):
    store, pairs = Store(tmp_path), [pair(0), pair(1)]
    first = engine.sweep(pairs, store=store, scheduler=scheduler[0])
    assert (first.trained, first.reused, first.failed) == (2, 0, {})
    rows = store.rows(*pairs[0])
    assert {row["family"] for row in rows} >= {"reference", "length"}
    again = engine.sweep(pairs, store=store, scheduler=scheduler[0])
    assert (again.trained, again.reused) == (0, 2)
    store.rows_path(*pairs[0]).unlink()
    rescored = engine.sweep(pairs, store=store, scheduler=scheduler[0])
    assert (rescored.trained, rescored.rescored, rescored.reused) == (0, 1, 1)
    assert measured(store.rows(*pairs[0])) == measured(rows)


def test_a_local_cluster_gives_the_same_numbers(tmp_path, scheduler):
    run, scoring = pair(5)
    for name, where in (("local", {"jobs": 1}), ("remote", {"scheduler": scheduler[0]})):
        engine.sweep([(run, scoring)], store=Store(tmp_path / name), **where)
    local, remote = (Store(tmp_path / name).rows(run, scoring) for name in ("local", "remote"))
    assert measured(local) == measured(remote)


def test_a_run_that_raises_is_named_and_alone(tmp_path, scheduler):
    good, bad = pair(2), pair(3, options=(("no_such_option", 1),))
    progress = engine.sweep([bad, good], store=Store(tmp_path), scheduler=scheduler[0])
    assert progress.trained == 1 and list(progress.failed) == [bad[0].name]
    assert "no_such_option" in progress.failed[bad[0].name]
    from shiftbound.runs import Grid

    with pytest.raises(engine.RunsFailed, match="no_such_option"):
        engine.run(Grid((good[0], bad[0]), TINY), store=Store(tmp_path), scheduler=scheduler[0])


def test_two_askers_train_one_run_once(tmp_path, scheduler):
    asked = pair(4, steps=150)
    stores = [Store(tmp_path / name) for name in "ab"]
    threads = [
        threading.Thread(target=engine.sweep, args=([asked],), kwargs={"store": store, "scheduler": scheduler[0]})
        for store in stores
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # The seconds are measured while training, so equal seconds mean that one training served both.
    first, second = (store.rows(*asked) for store in stores)
    assert first == second


def test_a_worker_that_dies_is_retried(tmp_path, scheduler):
    address, workers = scheduler
    store, pairs = Store(tmp_path), [pair(seed, steps=300) for seed in (10, 11)]
    thread = threading.Thread(target=lambda: done.append(engine.sweep(pairs, store=store, scheduler=address)))
    done: list[engine.Progress] = []
    thread.start()
    time.sleep(4)
    _kill(workers[0])
    thread.join(timeout=240)
    assert done and done[0].trained == 2 and not done[0].failed


def test_a_scheduler_that_does_not_answer_is_named():
    with pytest.raises(InputError, match=r"tcp://127\.0\.0\.1:9"), engine.cluster("tcp://127.0.0.1:9"):
        pass


SWEEP = """
import json, sys
from shiftbound import engine
from shiftbound.runs import Grid, Run, Scoring
from shiftbound.store import Store

if __name__ == "__main__":
    scoring = Scoring(sequences=16, states=16, states_long=16, draws=4, families=("length",), max_length=48)
    pairs = [(Run(task="dyck", encoding="rope", depth=1, width=16, seed=s, steps=60), scoring) for s in range(8)]
    progress = engine.sweep(pairs, store=Store(sys.argv[1]), jobs=2)
    print(json.dumps([progress.trained, progress.reused]))
"""


def test_kill_9_in_mid_sweep_loses_only_runs_in_flight(tmp_path):
    script, folder = tmp_path / "sweep.py", tmp_path / "store"
    script.write_text(SWEEP)
    command = [sys.executable, str(script), str(folder)]
    process = subprocess.Popen(command, cwd=tmp_path, start_new_session=True, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while len(list(folder.glob("rows/*.json"))) < 2:
        assert time.monotonic() < deadline and process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    _kill(process)
    process.wait()
    process.stderr.close()
    kept = list(folder.glob("rows/*.json"))
    assert 2 <= len(kept) < 8
    for path in kept:
        json.loads(path.read_text())
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=240)
    trained, reused = json.loads(result.stdout)
    assert trained + reused == 8 and reused >= len(kept)
    assert not list(Path(folder).glob("rows/*.aside"))


def page_faults() -> int:
    """How many pages the kernel hands out while arrays of 256 pages come and go, 100 times."""
    import resource

    start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(100):
        np.ones(2**17)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator in question is glibc's")
def test_workers_keep_the_memory_that_they_free():
    with engine.cluster(jobs=1) as client:
        assert client.submit(page_faults).result() < 100 * 256 / 10


def test_publish_trains_what_the_shipped_file_lacks_and_appends(tmp_path, monkeypatch):
    monkeypatch.setattr(published, "root", lambda: tmp_path)
    runs = tuple(pair(seed)[0] for seed in range(3))
    one, all_three = (Grid(some, TINY, published="published") for some in (runs[:1], runs))
    store = Store(tmp_path / "store")
    with pytest.raises(InputError, match="none of these"):
        engine.run(one)
    assert engine.publish([one], {"date": "a"}, store=store).trained == 1
    assert engine.publish([all_three, one], {"date": "b"}, store=store).trained == 2
    shipped, trained = engine.run(all_three), engine.run(Grid(runs, TINY), store=store)
    assert shipped.seed.tolist() == trained.seed.tolist()
    np.testing.assert_allclose(shipped.w1, trained.w1, rtol=1e-6)
    [made] = published.provenance()["sources"].values()
    assert [(batch["date"], batch["runs"]) for batch in made] == [("a", 1), ("b", 2)]
    assert engine.publish([all_three], {}, store=store).total == 0
