"""The sweep's speed: how much faster two workers are than one, and what share of a run is scoring.

Run by hand, on a machine with nothing else to do: python tests/benchmarks/bench_sweep.py
"""

import tempfile
from pathlib import Path
from time import perf_counter

from shiftbound import engine
from shiftbound.runs import Scoring, grid
from shiftbound.store import Store

GOAL, SHARE = 1.7, 0.5


def main() -> None:
    asked = grid(tasks=["dyck"], encodings=["ape", "rope"], depths=[1, 2], widths=[32, 64], step_factor=0.3)
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        for jobs in (1, 2):
            with engine.cluster(jobs=jobs) as client:
                store, start = Store(Path(folder) / str(jobs)), perf_counter()
                pairs = [(run, asked.scoring) for run in asked.runs]
                engine.sweep(pairs, scheduler=client.scheduler.address, store=store)
                seconds[jobs] = perf_counter() - start
        full = grid(tasks=["dyck"], encodings=["rope"], depths=[2], widths=[64], scoring=Scoring())
        from shiftbound import evaluation, training

        start = perf_counter()
        trained = training.train(full.runs[0])
        middle = perf_counter()
        evaluation.score(trained, full.runs[0], full.scoring)
        share = (perf_counter() - middle) / (middle - start)
    print(f"{len(asked)} runs: one worker {seconds[1]:.1f} s, two {seconds[2]:.1f} s, "
          f"ratio {seconds[1] / seconds[2]:.2f}, goal {GOAL}")  # fmt: skip
    print(f"scoring one run takes {share:.2f} of its training time, goal {SHARE}")


if __name__ == "__main__":
    main()
