"""Executed notebooks and the book's own pages become a static book: provenance, Jupyter Book, and the final rename."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shiftbound import InputError
from shiftbound.runs import Profile

STATED = ("shiftbound", "torch", "numpy", "scipy", "sympy", "POT", "matplotlib", "dask", "jupyter-book")
MARK = "provenance.json"  # what says that a folder holds a book, so that the next build may replace it


class BuildFailed(RuntimeError):
    """The build stopped; the message says where and why. The last good book is untouched."""


# Provenance -------------------------------------------------------------------------------------------------------


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def commit(folder: Path) -> str:
    """The commit of the checkout, and whether files differ from it."""
    try:
        git = ["git", "-C", str(folder)]
        head = subprocess.run([*git, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        dirty = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "not known (no git)"
    return head.stdout.strip() + (" with changes" if dirty.stdout.strip() else "")


def machine() -> str:
    processor = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                processor = line.split(":", 1)[1].strip()
                break
    return f"{platform.system()} {platform.machine()}, {processor}, {os.cpu_count()} cores"


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in STATED:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def listed(values: Mapping[str, object]) -> str:
    """Versions or parameters on one line.

    >>> listed({"k": 2, "depths": [1, 2]}), listed({"numpy": "2.4.6"})
    ('k = 2, depths = [1, 2]', 'numpy 2.4.6')
    """
    return ", ".join(
        f"{key} {value}" if isinstance(value, str) else f"{key} = {value}" for key, value in values.items()
    )


# Rendering --------------------------------------------------------------------------------------------------------


def render(
    sources: Path, executed: Mapping[str, Path], records: Mapping[str, dict], settings: Profile, folder: Path
) -> Path:
    """Lay the pages in ``sources`` and the ``executed`` notebooks together in ``folder``, and let Jupyter Book render.

    ``records`` says how each notebook was made. Returns the folder of the pages; raises `BuildFailed` with what Jupyter
    Book refused: a warning is an error.
    """
    stage = folder / "book"
    shutil.copytree(sources, stage, ignore=shutil.ignore_patterns("profiles", "results", "__pycache__", "_build"))
    (stage / "notebooks").mkdir()
    for name, path in executed.items():
        shutil.copyfile(path, stage / "notebooks" / f"{name}.ipynb")
    (stage / MARK).write_text(json.dumps(_provenance(sources, records, settings), indent=1), encoding="utf-8")
    (stage / "_status.md").write_text(_status(records), encoding="utf-8")
    command = [sys.executable, "-c", "from jupyter_book.cli.main import main; main()", "build", str(stage)]
    command += ["--warningiserror", "--keep-going", "--quiet", "--path-output", str(folder)]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr).replace(f"{stage}{os.sep}", "").splitlines()
        told = [line for line in said if "WARNING" in line or "ERROR" in line]
        raise BuildFailed("Jupyter Book refused the pages:\n" + "\n".join(told or said[-40:]))
    html = folder / "_build" / "html"
    shutil.copyfile(stage / MARK, html / MARK)
    index = html / "index.html"  # it only leads on; a browser asks the server for an icon where a page names none
    index.write_text('<!DOCTYPE html><link rel="icon" href="data:,">' + index.read_text(encoding="utf-8"), "utf-8")
    return html


def _provenance(sources: Path, records: Mapping[str, dict], settings: Profile) -> dict[str, object]:
    """What every page ends with, and what each notebook's page adds."""
    book = {
        "commit": commit(sources),
        "profile": f"{settings.name}: {settings.about}",
        "rendered": now(),
        "machine": machine(),
        "versions": listed(versions()),
        "trained runs, summed over pages": sum(record["runs"] for record in records.values()),
    }
    pages = {
        f"notebooks/{name}": {
            "executed": f"{record['executed']}, in {record['seconds']} s, at commit {record['commit']}",
            "parameters": listed({key: repr(value) for key, value in record["parameters"].items()}) or "none",
            "machine": record["machine"],
            "versions": listed(record["versions"]),
            "trained runs on this page": record["runs"],
        }
        for name, record in records.items()
    }
    return {"profile": settings.name, "book": book, "pages": pages}


def _status(records: Mapping[str, dict]) -> str:
    """The table of the status page, as MyST Markdown."""
    lines = ["| notebook | seconds | runs | parameters | executed | at commit |", "|---|---:|---:|---|---|---|"]
    for name, record in records.items():
        told = listed(record["parameters"]).replace("|", "\\|") or "none"
        lines.append(
            f"| {{doc}}`notebooks/{name}` | {record['seconds']} | {record['runs']} | `{told}` "
            f"| {record['executed']} | {record['commit']} |"
        )
    total = sum(record["seconds"] for record in records.values())
    used = sorted({listed(record["versions"]) for record in records.values()})
    made = sorted({record["machine"] for record in records.values()})
    told = [f"All notebooks together took {total:.0f} s of one core.", f"Made on: {'; '.join(made)}."]
    return "\n\n".join(["\n".join(lines), *told, f"With: {'; '.join(used)}.", ""])


# Folders ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def temporary(parent: Path, prefix: str) -> Iterator[Path]:
    """A folder of one's own in ``parent``, gone at the end."""
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def replaceable(output: Path) -> None:
    """Refuse an output folder that holds something else than a book."""
    if output.exists() and not output.is_dir():
        raise InputError(f"output = {str(output)!r} is not allowed; it must be a folder, and a file is in its place")
    if output.is_dir() and any(output.iterdir()) and not (output / MARK).is_file():
        raise InputError(f"output = {str(output)!r} is not allowed; it must be absent, empty, or a book built before")


def swap(new: Path, output: Path) -> None:
    """Put the folder ``new`` in the place of ``output`` by renames; what was there comes back if that fails."""
    from filelock import FileLock

    with temporary(output.parent, f".{output.name}-") as beside, FileLock(output.parent / f".{output.name}.lock"):
        ready, old = beside / "new", beside / "old"
        shutil.move(new, ready)
        if output.exists():
            os.replace(output, old)
        try:
            os.replace(ready, output)
        except OSError:
            if old.exists():
                os.replace(old, output)
            raise
