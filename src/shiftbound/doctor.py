"""What a build needs, what is there, and how long each profile should take on this machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shiftbound import InputError, plan
from shiftbound.book import Edition, Project
from shiftbound.runs import PROFILES, union

# Measured on one core of the machine that made the printed edition: a float32 product of two 512 x 512 matrices, the
# units of `engine.cost` trained and scored in a second, and the notebooks of one build.
REFERENCE_PRODUCT = 2.9e-3
COST_PER_SECOND = 1.5e7
NOTEBOOK_SECONDS = 240


@dataclass(frozen=True)
class Finding:
    """One line of the report; ``needed`` says whether a build cannot do without."""

    good: bool
    what: str
    advice: str = ""
    needed: bool = True

    def line(self) -> str:
        mark = "ok  " if self.good else "MISS" if self.needed else "note"
        return f"{mark}  {self.what}" + (f": {self.advice}" if not self.good and self.advice else "")


def findings() -> Iterator[Finding]:
    """The report, line by line."""
    new_enough = sys.version_info >= (3, 11)
    yield Finding(new_enough, f"Python {platform.python_version()}", "install Python 3.11 or newer")
    try:
        project = Project.here()
    except InputError as error:
        yield Finding(False, "the checkout", str(error))
        return
    yield Finding(True, f"the checkout {project.root}")
    yield from packages(project.root / "requirements.lock")
    yield _writable(project.build, "built things go to")
    yield _writable(project.store, "results are kept in")
    git = shutil.which("git")
    yield Finding(git is not None, "git", "install git, or the pages cannot say their commit", needed=False)
    yield _chromium()
    yield _fonts()
    cores, gpu = len(_cores()), _gpu()
    yield Finding(True, f"{cores} cores{', with AMX' if _amx() else ''}; {gpu or 'no GPU'}")
    speed = core_speed()
    yield Finding(True, f"one core has {speed:.1f} times the speed of the printed edition's")
    for name in PROFILES:
        yield _duration(project, name, speed, cores)


def packages(lock: Path) -> Iterator[Finding]:
    """What is installed against what the lock says."""
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", lock.read_text(encoding="utf-8"), re.MULTILINE)
    missing, other = [], []
    for name, wanted in pins:
        try:
            found = version(name).split("+")[0]
        except PackageNotFoundError:
            missing.append(name)
            continue
        if found != wanted:
            other.append(f"{name} {found} (the lock has {wanted})")
    advice = f"{', '.join(missing)}; run 'pip install -r {lock.name}'"
    yield Finding(not missing, f"{len(pins) - len(missing)} of {len(pins)} packages of the lock", advice)
    if other:
        advice = f"{', '.join(other)}; the book may build all the same"
        yield Finding(False, "packages in other versions", advice, needed=False)


def _writable(folder: Path, what: str) -> Finding:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        return Finding(False, f"{what} {folder}", f"it cannot be written ({error.strerror}); set SHIFTBOUND_BUILD")
    return Finding(True, f"{what} {folder}")


def chromium() -> str | None:
    """The system's Chromium or Chrome, which the browser tests drive."""
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


def _chromium() -> Finding:
    advice = "only the browser tests need it: apt-get install chromium"
    return Finding(chromium() is not None, "Chromium", advice, needed=False)


def _fonts() -> Finding:
    import matplotlib

    cache = Path(matplotlib.get_cachedir())
    return Finding(
        any(cache.glob("fontlist-*.json")), "matplotlib's font cache", "the first build makes it", needed=False
    )


def _cores() -> set[int]:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))


def _amx() -> bool:
    try:
        return "amx_tile" in Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return False


def _gpu() -> str | None:
    if shutil.which("nvidia-smi") is None:
        return None
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    done = subprocess.run(asked, capture_output=True, text=True, check=False)
    return done.stdout.strip().replace("\n", ", ") or None


def core_speed() -> float:
    """The speed of one core, relative to the machine that made the printed edition."""
    code = (
        "import numpy as np, time; a = np.ones((512, 512), np.float32); best = 9.0\n"
        "for _ in range(20):\n start = time.perf_counter(); a @ a; best = min(best, time.perf_counter() - start)\n"
        "print(best)"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    return REFERENCE_PRODUCT / float(done.stdout)


def _duration(project: Project, name: str, speed: float, cores: int) -> Finding:
    """How long a build of this profile should take: what it must train, what the store has, and the notebooks."""
    from shiftbound.engine import cost, span
    from shiftbound.store import Store

    start = time.monotonic()
    edition, store = Edition(project, name), Store(project.store)
    built = plan.grids(edition.settings, project.notebooks)
    pairs = union(grid for grids in built.values() for grid in grids if not grid.published)
    missing = [pair for pair in pairs if not store.rows_path(*pair).is_file()]
    training = sum(cost(run) for run, _ in missing) / (COST_PER_SECOND * speed * cores)
    executing = NOTEBOOK_SECONDS / (speed * min(2, cores))
    spent = time.monotonic() - start
    told = f"{len(pairs)} runs, {len(pairs) - len(missing)} of them in the store"
    return Finding(True, f"profile {name:9} about {span(training + executing + spent)} ({told})")
