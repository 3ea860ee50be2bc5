"""Builds the book: sweep, execute every notebook from the store, render; each step fails loudly.

A notebook is executed again when its source, its parameters, the package or the shipped results have changed; the
ledger comes last and reads the others. Rendering happens in a folder of its own, and the finished book takes the old
one's place by a rename, so a failure at any point leaves the last good book where it was.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from shiftbound import InputError, claims, notebooks, pages, plan
from shiftbound.pages import BuildFailed
from shiftbound.runs import MEASURES, Profile, profile, union
from shiftbound.store import PACKAGE, Store, root, sources, write

LEDGER = "16_claims"  # executed last: it reads what the others recorded

Say = Callable[[str], None]


@dataclass(frozen=True)
class Project:
    """The checkout and the folder of built things."""

    root: Path
    build: Path

    @classmethod
    def here(cls) -> Project:
        """The checkout that the package is installed from; ``SHIFTBOUND_BUILD`` moves the built things elsewhere."""
        folder = root()
        return cls(folder, Path(os.environ.get("SHIFTBOUND_BUILD") or folder / "build").resolve())

    @property
    def notebooks(self) -> Path:
        return self.root / "notebooks"

    @property
    def store(self) -> Path:
        return Path(os.environ.get("SHIFTBOUND_STORE") or self.build / "store").resolve()

    def profile(self, name: str) -> Profile:
        return profile(name, self.root / "book" / "profiles")

    def read(self, name: str):
        return notebooks.read(self.notebooks / f"{name}.md")


class Edition:
    """The notebooks of a project under one profile: what each is to be executed with, and what is there already."""

    def __init__(self, project: Project, profile: str, scheduler: str | None = None) -> None:
        self.project, self.settings, self.scheduler = project, project.profile(profile), scheduler
        self.names = notebooks.names(project.notebooks)
        strays = sorted(set(self.settings.notebooks) - set(self.names))
        if strays:
            raise InputError(f"profile {profile!r} sets parameters of {', '.join(strays)}; there is no such notebook")
        self.values, self.parameters = {}, {}
        for name in self.names:
            notebook, given = project.read(name), self.settings.parameters(name)
            try:
                changed = notebooks.settle(notebook, given, where=name)
            except notebooks.UsageError as error:
                raise InputError(f"profile {profile!r}: {error}") from error
            declared = {key: parameter.default for key, parameter in notebooks.parameters(notebook).items()}
            self.values[name], self.parameters[name] = changed, declared | changed

    def executed(self, name: str) -> Path:
        return self.project.build / "notebooks" / self.settings.name / f"{name}.ipynb"

    def record(self, name: str) -> dict | None:
        """How the last good execution of ``name`` was made, or None where there is none that is whole."""
        path = self.executed(name)
        try:
            record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
            whole = hashlib.sha256(path.read_bytes()).hexdigest() == record["sha256"]
        except (OSError, ValueError, KeyError):
            return None
        return record if whole else None

    def key(self, name: str) -> str:
        """What decides an executed notebook: its source, parameters, the modules that it imports and all they import,
        the shipped results, and for the ledger the others."""
        told = [self.settings.name, name, self.parameters[name], sys.version, pages.versions()]
        digest = hashlib.sha256(json.dumps(told).encode())
        files = [self.project.notebooks / f"{name}.md", PACKAGE / "__init__.py", PACKAGE / "runs.py"]
        files += sources(*notebooks.imports(self.project.read(name))) + sorted(PACKAGE.glob("*.csv"))
        if any(path.parent.name == "tasks" for path in files):  # tasks are imported by their names
            files += sorted((PACKAGE / "tasks").glob("*.py"))
        if PACKAGE / "engine.py" in files:  # what scores is imported by its name too
            files += sources(*MEASURES) + sorted((self.project.root / "book" / "results").glob("*.*"))
            files += (self.project.root / "book" / "profiles").glob("paper.toml")  # chapter 12 says what it would cost
        files += [self.executed(each) for each in self.names if each != LEDGER] if name == LEDGER else []
        for path in files:
            digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()

    def stale(self, name: str) -> bool:
        record = self.record(name)
        return record is None or record["key"] != self.key(name)

    def environment(self) -> dict[str, str]:
        """What a kernel of this edition is told."""
        told = {
            "OMP_NUM_THREADS": "1",
            "JUPYTER_PREFER_ENV_PATH": "1",
            "PYDEVD_DISABLE_FILE_VALIDATION": "1",
            "SHIFTBOUND_PROFILE": self.settings.name,
            "SHIFTBOUND_STORE": str(self.project.store),
        }
        return told | ({"SHIFTBOUND_SCHEDULER": self.scheduler} if self.scheduler else {})


def build(
    profile: str = "laptop",
    chosen: Iterable[str] = (),
    *,
    scheduler: str | None = None,
    jobs: int | None = None,
    output: Path | None = None,
    project: Project | None = None,
    say: Say = print,
    report: Callable = lambda progress: None,
) -> Path:
    """Build the book of ``profile`` and return its folder.

    ``chosen`` notebooks are executed whether they changed or not, and the others' last good execution is taken; without
    any, all are executed that changed. ``jobs`` bounds the workers of the sweep (one a core by default) and the
    notebooks at a time (two by default). ``report`` hears of the sweep's progress. Raises `BuildFailed`, `InputError`.
    """
    project = project or Project.here()
    output = (output or project.build / "html").resolve()
    pages.replaceable(output)
    edition = Edition(project, profile, scheduler)
    due = sorted({notebooks.resolve(each, project.notebooks) for each in chosen})
    if due:
        missing = [name for name in edition.names if name not in due and edition.record(name) is None]
        if missing:
            told = f"{', '.join(missing)} cannot be taken from the last build of {profile!r}, which has none"
            raise InputError(f"{told}; build once without --notebook")
    else:
        due = [name for name in edition.names if name != LEDGER and edition.stale(name)]
        due += [LEDGER] if LEDGER in edition.names else []
    counts = sweep(edition, edition.names, due, jobs=jobs, report=report)
    first = [name for name in due if name != LEDGER]
    execute(edition, first, counts, edition.environment(), jobs=jobs or 2, say=say)
    if LEDGER in due and (chosen or edition.stale(LEDGER)):
        with pages.temporary(project.build, ".ledger-") as folder:
            for name in edition.names:
                if name != LEDGER:
                    shutil.copyfile(edition.executed(name), folder / f"{name}.ipynb")
            told = {**edition.environment(), "SHIFTBOUND_EXECUTED": str(folder)}
            execute(edition, [LEDGER], counts, told, jobs=1, say=say)
    records = {name: edition.record(name) for name in edition.names}
    if gone := [name for name, record in records.items() if record is None]:
        raise BuildFailed(f"{', '.join(gone)} changed on disk while this build ran; build again")
    executed = {name: edition.executed(name) for name in edition.names}
    ledger = claims.collate(executed.values(), smoke=profile == "smoke")
    say("rendering the pages")
    with pages.temporary(project.build, ".render-") as folder:
        html = pages.render(project.root / "book", executed, records, edition.settings, folder)
        pages.swap(html, output)
    write(project.build / "claims.json", json.dumps({"profile": profile, "rows": ledger}, indent=1).encode())
    return output


def sweep(
    edition: Edition, names: Iterable[str], due: Iterable[str], *, jobs: int | None, report: Callable
) -> dict[str, int]:
    """Bring every run that the notebooks ``due`` ask for into the store; how many runs each of ``names`` uses."""
    project, due = edition.project, set(due)
    grids = {
        name: plan.notebook_grids(project.notebooks / f"{name}.md", edition.values.get(name, {})) for name in names
    }
    pairs = union(grid for name, each in grids.items() if name in due for grid in each if not grid.published)
    if pairs:
        from shiftbound import engine

        progress = engine.sweep(
            pairs, scheduler=edition.scheduler, jobs=jobs, store=Store(project.store), report=report
        )
        if progress.failed:
            said = "\n".join(f"  {name}: {message}" for name, message in progress.failed.items())
            raise BuildFailed(f"{len(progress.failed)} runs failed; the others are in the store:\n{said}")
    return {name: len(union(grid for grid in each if not grid.published)) for name, each in grids.items()}


def execute(
    edition: Edition,
    due: list[str],
    counts: Mapping[str, int],
    environment: Mapping[str, str],
    *,
    jobs: int,
    say: Say,
) -> None:
    """Execute the notebooks ``due``, ``jobs`` at a time, each in a process of its own; record how each was made."""
    if not due:
        return
    _warm_fonts()
    made = {"commit": pages.commit(edition.project.root), "machine": pages.machine(), "versions": pages.versions()}
    with ProcessPoolExecutor(min(jobs, len(due)), mp_context=multiprocessing.get_context("spawn")) as pool:
        asked = {}
        for name in due:
            source, target = edition.project.notebooks / f"{name}.md", edition.executed(name)
            future = pool.submit(timed, source, target, edition.values[name], dict(environment), notebooks.CELL_SECONDS)
            asked[future] = (name, edition.key(name))
        failures = []
        for future in as_completed(asked):
            if future.cancelled():
                continue
            name, key = asked[future]
            try:
                seconds, digest = future.result()
            except (notebooks.NotebookFailed, InputError) as error:
                failures.append(str(error))
                for other in asked:  # what runs already may finish and be kept, the rest does not start
                    other.cancel()
                continue
            record = {"key": key, "sha256": digest, "seconds": round(seconds, 1), "executed": pages.now(), **made}
            record |= {"parameters": edition.parameters[name], "runs": counts.get(name, 0)}
            write(edition.executed(name).with_suffix(".json"), json.dumps(record, indent=1).encode())
            say(f"executed {name} in {seconds:.0f} s")
    if failures:
        raise BuildFailed("\n".join(failures))


def timed(source: Path, target: Path, values: dict, environment: dict, seconds: int | None) -> tuple[float, str]:
    """Execute one notebook; the seconds that it took and the SHA-256 of what it left."""
    start = time.monotonic()
    notebooks.execute(source, target, values, environment, seconds)
    return time.monotonic() - start, hashlib.sha256(target.read_bytes()).hexdigest()


def _warm_fonts() -> None:
    """Let matplotlib write its font cache: on a fresh machine its first import says so on stderr."""
    subprocess.run([sys.executable, "-c", "import matplotlib.font_manager"], check=True, capture_output=True)


def run(
    name: str,
    given: Mapping[str, str],
    *,
    profile: str = "laptop",
    output: Path | None = None,
    project: Project | None = None,
    report: Callable = lambda progress: None,
) -> Path:
    """Execute one notebook with the profile's parameters and then the ``given`` ones, texts as typed by a user."""
    project = project or Project.here()
    name = notebooks.resolve(name, project.notebooks)
    edition = Edition(project, profile)
    typed = notebooks.typed(project.read(name), given, where=name)
    edition.values[name] = edition.values[name] | typed
    output = (output or project.build / "runs" / f"{name}.ipynb").resolve()
    sweep(edition, [name], [name], jobs=None, report=report)
    _warm_fonts()
    told = {**edition.environment(), "SHIFTBOUND_EXECUTED": str(edition.executed(name).parent)}
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            pool.submit(timed, project.notebooks / f"{name}.md", output, edition.values[name], told, None).result()
        except notebooks.NotebookFailed as error:
            raise BuildFailed(str(error)) from None
    return output
