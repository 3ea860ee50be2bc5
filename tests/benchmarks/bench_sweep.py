"""The sweep's speed: two workers against one, scoring against training, early stopping against fixed steps, memory.

Run by hand, on a machine with nothing else to do: python tests/benchmarks/bench_sweep.py
"""

import tempfile
from pathlib import Path
from time import perf_counter

from shiftbound import engine
from shiftbound.runs import Grid, grid
from shiftbound.store import Store

GOAL, SHARE, MEMORY = 1.7, 0.5, 2048
AXES = {"tasks": ["dyck"], "encodings": ["ape", "rope"]}


def sweep(asked: Grid, folder: Path, jobs: int) -> float:
    """Wall seconds of a sweep into an empty store, the start of the workers left out."""
    with engine.cluster(jobs=jobs) as client:
        start = perf_counter()
        pairs = [(run, asked.scoring) for run in asked.runs]
        engine.sweep(pairs, scheduler=client.scheduler.address, store=Store(folder))
        return perf_counter() - start


def main() -> None:
    short = grid(**AXES, depths=[1, 2], widths=[32, 64], step_factor=0.3)
    whole, fixed = (grid(**AXES, depths=[2], widths=[64], early_stop=stop) for stop in (True, False))
    every = grid(tasks=["dyck", "chain", "scoping"], encodings=AXES["encodings"], depths=[2], widths=[64])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one, two = (sweep(short, folder / str(jobs), jobs) for jobs in (1, 2))
        print(f"{len(short)} runs: one worker {one:.1f} s, two {two:.1f} s, ratio {one / two:.2f}, goal {GOAL}")
        half = Grid(short.runs[::2], short.scoring)
        part = sweep(half, folder / "half", 1)
        per_run = [sum(map(engine.cost, each.runs)) / spent for each, spent in ((short, one), (half, part))]
        print(f"cost units a second: {per_run[0]:.3g} over {len(short)} runs, {per_run[1]:.3g} over {len(half)}")
        tables = []
        for asked in (whole, fixed, every):
            sweep(asked, folder / "early", 2)
            table = engine.run(asked, store=Store(folder / "early"))
            tables.append(table[table.family == "reference"])
        early, late, mixed = tables
        ratio = early.seconds_cpu.sum() / late.seconds_cpu.sum()
        print(
            f"early stopping takes {ratio:.2f} of the CPU seconds of fixed steps, "
            f"accuracy in distribution {early.accuracy_id.mean():.4f} against {late.accuracy_id.mean():.4f}"
        )
        share = mixed.seconds_scoring.sum() / mixed.seconds_cpu.sum()
        print(f"scoring takes {share:.2f} of the training time over the grid's tasks, goal {SHARE}")
        print(f"peak memory of a worker {mixed.peak_mib.max():.0f} MiB, goal {MEMORY}")


if __name__ == "__main__":
    main()
