"""The build's speed: the smoke book from nothing, a second build with nothing changed, and ``shiftbound --help``.

Run by hand, on a machine with nothing else to do: python tests/benchmarks/bench_book.py [PROFILE]
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from time import perf_counter

PROGRAM = str(Path(sys.executable).with_name("shiftbound"))
GOALS = {"smoke": 5 * 60, "laptop": 35 * 60}


def timed(*arguments: str, **environment: str) -> float:
    start = perf_counter()
    subprocess.run([PROGRAM, *arguments], check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
    return perf_counter() - start


def line(what: str, seconds: float, goal: float) -> None:
    print(f"{what:45} {seconds:8.2f} s   goal {goal:7.1f} s   ratio {seconds / goal:.2f}")


def main() -> None:
    profile = sys.argv[1] if len(sys.argv) > 1 else "smoke"
    timed("--help")
    line("shiftbound --help, median of 9", median(timed("--help") for _ in range(9)), 0.5)
    with tempfile.TemporaryDirectory() as folder:
        told = {"SHIFTBOUND_BUILD": folder, "SHIFTBOUND_STORE": str(Path(folder) / "store")}
        line(f"the {profile} book from an empty store", timed("build", "--profile", profile, **told), GOALS[profile])
        line("a second build with nothing changed", timed("build", "--profile", profile, **told), 120)


if __name__ == "__main__":
    main()
