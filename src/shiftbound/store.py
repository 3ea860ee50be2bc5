"""Results on disk: one file a run, in two layers, each written whole or not at all.

    weights/NAME-KEY.safetensors   the trained model and its log; KEY: the run, torch's version, the code that trains
    rows/NAME-KEY.json             its scores, one row a shift;   KEY: the above, the scoring, the code that scores

Changed training code gives a new weights key, so the run is trained again; changed evaluation code gives a new rows key
only, so the weights are scored again; code of the other modules changes neither. A file is written under a temporary
name and renamed, and checked when it is read: what is truncated or foreign is set aside with a warning, and the run
counts as missing. Neither format can execute code.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import tempfile
import warnings
from functools import cache
from importlib.metadata import version
from pathlib import Path

from shiftbound import InputError
from shiftbound.runs import Run, Scoring

PACKAGE = Path(__file__).parent
FORMAT = 1


class StoreWarning(UserWarning):
    """A file of the store was set aside."""


def root() -> Path:
    """The checkout that this package is installed from; the book's sources and ``build`` lie there."""
    folder = PACKAGE.parents[1]
    if not (folder / "notebooks").is_dir():
        raise InputError(
            f"shiftbound is installed in {folder.name}, outside of its checkout; "
            "install it from a clone with 'pip install -e .', which holds the notebooks"
        )
    return folder


# Which code decides a result --------------------------------------------------------------------------------------


def sources(*modules: str) -> list[Path]:
    """The files of ``modules`` of this package (``"tasks.dyck"``) and of all they import from it.

    ``runs`` and the package's own ``__init__`` are left out: a run's fields are part of the key themselves.

    >>> [path.name for path in sources("words")]
    ['words.py']
    """
    found: dict[str, Path] = {}
    queue = list(modules)
    while queue:
        name = queue.pop()
        if name in found or name in ("", "runs"):
            continue
        base = PACKAGE.joinpath(*name.split("."))
        path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
        if path.is_file():
            found[name] = path
            queue += _imports(path)
    return [found[name] for name in sorted(found)]


def _imports(path: Path) -> list[str]:
    """The modules of this package that the file at ``path`` imports, without the leading ``shiftbound.``."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name.removeprefix("shiftbound").removeprefix(".") for name in names if name.startswith("shiftbound")]


@cache
def source_hash(layer: str, task: str) -> str:
    """SHA-256 over the code that decides ``layer`` ("training", or the module that scores) for a task."""
    digest = hashlib.sha256()
    for path in sources(layer, f"tasks.{task}"):
        digest.update(str(path.relative_to(PACKAGE)).replace(os.sep, "/").encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def weights_key(run: Run) -> str:
    return _digest(run.canonical(), version("torch").split("+")[0], source_hash("training", run.task))


def rows_key(run: Run, scoring: Scoring) -> str:
    return _digest(weights_key(run), scoring.canonical(), source_hash(scoring.measure, run.task))


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]


# The store --------------------------------------------------------------------------------------------------------


class Store:
    """The results under ``folder`` (by default ``SHIFTBOUND_STORE``, else ``build/store`` of the checkout)."""

    def __init__(self, folder: Path | str | None = None) -> None:
        self.folder = Path(folder or os.environ.get("SHIFTBOUND_STORE") or root() / "build" / "store")

    def weights_path(self, run: Run) -> Path:
        return self.folder / "weights" / f"{run.name}-{weights_key(run)}.safetensors"

    def rows_path(self, run: Run, scoring: Scoring) -> Path:
        return self.folder / "rows" / f"{run.name}-{rows_key(run, scoring)}.json"

    def checkpoint_path(self, run: Run) -> Path:
        return self.folder / "checkpoints" / f"{run.name}-{weights_key(run)}.safetensors"

    def weights(self, run: Run) -> bytes | None:
        """The trained model as safetensors bytes, or None where there is none that is whole."""
        return _read(self.weights_path(run), lambda data: _check_weights(data, run))

    def rows(self, run: Run, scoring: Scoring) -> list[dict] | None:
        """The scores, one row a shift, or None where there are none that are whole."""
        data = _read(self.rows_path(run, scoring), lambda data: _check_rows(data, rows_key(run, scoring)))
        return None if data is None else json.loads(data)["rows"]

    def save(self, run: Run, scoring: Scoring, weights: bytes, rows: list[dict]) -> None:
        """Write both layers; readers see each file whole or not at all."""
        _check_weights(weights, run)
        write(self.weights_path(run), weights)
        record = {"format": FORMAT, "key": rows_key(run, scoring), "run": json.loads(run.canonical()), "rows": rows}
        record["sha256"] = _rows_digest(rows)
        write(self.rows_path(run, scoring), json.dumps(record, indent=0, allow_nan=False).encode())


def write(path: Path, data: bytes) -> None:
    """Write ``data`` under a temporary name beside ``path``, flush it to the disk, and rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:60]}-", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _read(path: Path, check) -> bytes | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        check(data)
    except (InputError, ValueError, KeyError, TypeError, AttributeError) as error:
        aside = path.with_name(f"{path.name}.aside")
        os.replace(path, aside)
        warnings.warn(
            f"{path.name} is not whole ({error}); it was set aside as {aside.name}", StoreWarning, stacklevel=3
        )
        return None
    return data


def metadata(weights: bytes) -> dict[str, str]:
    """The text metadata of a safetensors file, read without torch; raises `InputError` where the file is not whole."""
    size = int.from_bytes(weights[:8], "little")
    if len(weights) < 8 or size > len(weights) - 8:
        raise InputError("the file is truncated")
    header = json.loads(weights[8 : 8 + size])
    end = max((entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"), default=0)
    if 8 + size + end != len(weights):
        raise InputError("the file is truncated")
    return header.get("__metadata__", {})


def _check_weights(data: bytes, run: Run) -> None:
    if metadata(data).get("run") != run.canonical():
        raise InputError("the file holds another run")


def _check_rows(data: bytes, key: str) -> None:
    record = json.loads(data)
    if record.get("format") != FORMAT or record.get("key") != key:
        raise InputError("the file holds another run or another format")
    if record.get("sha256") != _rows_digest(record["rows"]):
        raise InputError("the rows do not match their checksum")


def _rows_digest(rows: list[dict]) -> str:
    return hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
