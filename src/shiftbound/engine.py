"""Runs a grid on Dask: a local cluster by default, any Dask scheduler by its address.

A notebook asks ``run(grid)`` for a table. What the store has comes back at once; the rest goes to the cluster, longest
first, each run under its store key, so that two askers of one scheduler train one run once. The asker writes a result
as soon as it arrives: what is killed loses the runs in flight. A worker that dies is replaced and its run retried; a
run that raises is reported by its name after the others are done.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shiftbound import InputError, published
from shiftbound.runs import Grid, Run, Scoring, identity, union
from shiftbound.store import Store, rows_key, weights_key

if TYPE_CHECKING:
    import pandas as pd
    from distributed import Client

Pair = tuple[Run, Scoring]


class RunsFailed(RuntimeError):
    """Some runs raised; the others are in the store. ``failures`` maps a run's name to what it said."""

    def __init__(self, failures: dict[str, str]) -> None:
        self.failures = failures
        said = "; ".join(f"{name}: {message}" for name, message in failures.items())
        super().__init__(f"{len(failures)} of the runs failed, the others are stored: {said}")


@dataclass
class Progress:
    """How far a sweep is. ``remaining`` is in seconds, from the work done so far, None before the first run ends."""

    total: int
    reused: int
    trained: int = 0
    rescored: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    last: str = ""
    remaining: float | None = None

    @property
    def done(self) -> int:
        return self.reused + self.trained + self.rescored + len(self.failed)


def cost(run: Run) -> float:
    """Relative training time of a run: layers grow with the width and with the length, steps are counted in full."""
    return run.steps * run.batch * (run.length + 8) * run.depth * (run.width + 64) * (1 + run.length / 128)


def work(
    run: Run, scoring: Scoring, weights: bytes | None, key: str, checkpoint: str | None
) -> tuple[bytes, list[dict]]:
    """What a worker does: train (unless it is handed the weights), then score.

    ``SHIFTBOUND_DEVICE`` in the worker's environment names the device that it trains on (see `training.train`). Beside
    what is measured, a row says the CPU seconds that the scoring took and the most memory that the worker has used.
    """
    from shiftbound import training

    if key != rows_key(run, scoring):
        raise InputError(
            f"the worker's shiftbound or torch differs from the asker's, so {run.name} would not be the same run"
        )
    device = os.environ.get("SHIFTBOUND_DEVICE", "cpu")
    trained = training.load(weights) if weights else training.train(run, checkpoint=checkpoint, device=device)
    start = time.thread_time()
    rows = importlib.import_module(f"shiftbound.{scoring.measure}").score(trained, run, scoring)
    spent = {"seconds_scoring": time.thread_time() - start, "peak_mib": _peak_mib()}
    return weights or training.dump(trained), [row | spent for row in rows]


def _peak_mib() -> float | None:
    """The most memory that this process has used, in MiB; None where the system does not say."""
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


@contextlib.contextmanager
def cluster(scheduler: str | None = None, jobs: int | None = None) -> Iterator[Client]:
    """A Dask client: of ``scheduler`` or ``SHIFTBOUND_SCHEDULER``, else of a local cluster of one process a core."""
    import dask
    from distributed import Client, LocalCluster

    address = scheduler or os.environ.get("SHIFTBOUND_SCHEDULER")
    if address:
        try:
            client = Client(address, timeout="10s", set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise InputError(
                f"scheduler = {address!r} does not answer; it must be the address of a running Dask scheduler"
            ) from error
        with client:
            yield client
        return
    quiet = {
        "distributed.scheduler.worker-saturation": 1.0,
        "distributed.worker.memory.terminate": False,
        # Dask watches its workers closely; looking up a hundred times a second cost a tenth of the training.
        "distributed.worker.profile.enabled": False,
        "distributed.admin.tick.interval": "1s",
        "distributed.admin.tick.limit": "1h",
        "distributed.admin.system-monitor.interval": "10s",
        # Dask lets its workers hand freed memory back after every layer of a step: training takes twice as long.
        "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**30,
        "distributed.nanny.pre-spawn-environ.MALLOC_MMAP_THRESHOLD_": 2**25,
    }
    with (
        dask.config.set(quiet),
        LocalCluster(
            n_workers=jobs or len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else jobs or os.cpu_count(),
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            host="127.0.0.1",
            silence_logs=50,
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


def sweep(
    pairs: Iterable[Pair],
    *,
    scheduler: str | None = None,
    jobs: int | None = None,
    store: Store | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Bring every (run, scoring) into the store and report each that is done; a failed run is listed, not raised."""
    store = store or Store()
    pairs = list(dict.fromkeys(pairs))
    missing = [pair for pair in pairs if store.rows(*pair) is None]
    progress = Progress(total=len(pairs), reused=len(pairs) - len(missing))
    report(progress)
    if missing:
        with cluster(scheduler, jobs) as client:
            _drain(client, sorted(missing, key=lambda pair: -cost(pair[0])), store, progress, report)
    return progress


def _drain(client: Client, pairs: list[Pair], store: Store, progress: Progress, report: Callable) -> None:
    from distributed import as_completed

    asked = {}
    for index, (run, scoring) in enumerate(pairs):
        weights = store.weights(run)
        key = rows_key(run, scoring)
        checkpoint = str(store.checkpoint_path(run)) if weights is None else None
        future = client.submit(
            work,
            run,
            scoring,
            weights,
            key,
            checkpoint,
            key=f"{run.name}-{key}",
            priority=-index,
            retries=0,
            pure=False,
        )
        asked[future.key] = (run, scoring, weights is None, future)
    start, done, ahead = time.monotonic(), 0.0, sum(_effort(*entry[:3]) for entry in asked.values())
    for future in as_completed([entry[3] for entry in asked.values()], loop=client.loop):
        run, scoring, fresh, _ = asked.pop(future.key)
        try:
            weights, rows = future.result()
            store.save(run, scoring, weights, rows)
            progress.trained += fresh
            progress.rescored += not fresh
        except Exception as error:  # a failed run must not take the others with it; it is reported by name
            progress.failed[run.name] = f"{type(error).__name__}: {error}"
        future.release()
        done += _effort(run, scoring, fresh)
        ahead -= _effort(run, scoring, fresh)
        progress.last = run.name
        progress.remaining = (time.monotonic() - start) * ahead / done
        report(progress)


def _effort(run: Run, scoring: Scoring, fresh: bool) -> float:
    return cost(run) if fresh else cost(run) / 4


def run(
    grid: Grid, *, scheduler: str | None = None, jobs: int | None = None, store: Store | None = None
) -> pd.DataFrame:
    """The grid's tidy table, one row a run and shift: from the shipped file, from the store, or by training.

    Columns: the run's own (``task, encoding, depth, width, seed, ...``), then ``family, level, length`` and what
    `shiftbound.evaluation.score` measures. Raises `RunsFailed`, after the others are stored, where a run raised.
    """
    import pandas as pd

    if grid.published:
        return published.table(grid)
    store = store or Store()
    progress = sweep([(each, grid.scoring) for each in grid.runs], scheduler=scheduler, jobs=jobs, store=store)
    if progress.failed:
        raise RunsFailed(progress.failed)
    rows = []
    for each in grid.runs:
        for row in store.rows(each, grid.scoring):
            rows.append({**identity(each), **row, "key": weights_key(each)})
    return pd.DataFrame(rows)


def publish(
    grids: Iterable[Grid],
    about: dict[str, object],
    *,
    scheduler: str | None = None,
    jobs: int | None = None,
    store: Store | None = None,
    report: Callable[[Progress], None] = lambda progress: None,
) -> Progress:
    """Train the runs of ``grids`` that the shipped files lack and append their rows; ``about`` is said of them.

    What is done when the sweep is stopped is appended too; what a kill leaves in the store, the next call appends.
    """
    store = store or Store()
    lacking = {pair: grid.published for grid in grids for pair in union([grid]) if pair[0] in published.lacking(grid)}
    try:
        return sweep(lacking, scheduler=scheduler, jobs=jobs, store=store, report=report)
    finally:
        for name in dict.fromkeys(lacking.values()):
            there = [(pair, store.rows(*pair)) for pair, file in lacking.items() if file == name]
            published.append(name, [(*pair, rows) for pair, rows in there if rows is not None], about)


def span(seconds: float) -> str:
    """A length of time for people.

    >>> span(42), span(610), span(9000), span(500_000)
    ('42 s', '10 min', '2.5 h', '6 days')
    """
    for unit, size, digits in (("s", 1, 0), ("min", 60, 0), ("h", 3600, 1)):
        if seconds < 100 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86400:.0f} days"
