"""The per-seed rows behind the printed edition: ``book/results/<name>.csv.gz`` and ``<name>.json``, their provenance.

One row a run and level. Its first columns are the fields of the `Run`, and a run is looked up by them alone; ``source``
is the hash of the code that made the row, so a file may hold rows of older code. The provenance says for every such
hash the versions, machines and dates, names the runs below the gate, and seals the table with its SHA-256. A file of
another format, truncated or edited is refused with the reason and never overwritten.
"""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from shiftbound import InputError, require
from shiftbound.runs import PUBLISHED, Grid, Run, Scoring, identity
from shiftbound.store import PACKAGE, root, source_hash, write

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
HEX = 16  # digits kept of a source hash
# The column of each field of a run; a row's own ``length`` is that of the test sequences.
COLUMNS = {field.name: field.name for field in dataclasses.fields(Run)} | {"length": "train_length"}
Result = tuple[Run, Scoring, list[dict]]


def path(name: str = "published", folder: Path | None = None) -> Path:
    """Where the rows called ``name`` lie."""
    require(name in PUBLISHED, "name", name, f"one of {', '.join(map(repr, PUBLISHED))}")
    return (folder or root() / "book" / "results") / f"{name}.csv.gz"


def table(grid: Grid, folder: Path | None = None) -> pd.DataFrame:
    """The shipped rows of the grid's runs, in their order, with the columns that trained rows have and ``source``.

    Runs that the file lacks are not in the table (see `lacking`); raises `InputError` where it has none of them.
    """
    import pandas as pd

    kept = _rows(path(grid.published, folder))
    found = [(run, row) for run in grid.runs for row in kept.get(run, ())]
    if not found:
        raise InputError(
            f"{grid.published}.csv.gz holds none of these {len(grid)} runs; train them here, or with 'shiftbound sweep'"
        )
    return pd.DataFrame([{**identity(run), **row} for run, row in found])


def lacking(grid: Grid, folder: Path | None = None) -> list[Run]:
    """The runs of ``grid`` that its shipped file does not hold."""
    kept = _rows(path(grid.published, folder))
    return [run for run in grid.runs if run not in kept]


def provenance(name: str = "published", folder: Path | None = None) -> dict:
    """What ``<name>.json`` says: format, seal, counts, runs below the gate, and how each source's rows were made."""
    return _provenance(path(name, folder))


def append(name: str, results: Iterable[Result], about: dict[str, object], folder: Path | None = None) -> int:
    """Add the rows of runs that the file lacks and return how many runs were added; ``about`` is said of them.

    Rows that another checkout made say so in a ``source`` of their own; the others are taken to be this code's.

    The table is written first, then its provenance, each whole; a table whose provenance was not written is refused by
    readers, and then `git checkout` brings both back.
    """
    file = path(name, folder)
    kept = dict(_rows(file))
    fresh = [(run, scoring, rows) for run, scoring, rows in results if run not in kept and rows]
    if not fresh:
        return 0
    told = _provenance(file) if file.exists() else {"format": FORMAT, "sources": {}}
    for run, scoring, rows in fresh:
        source = rows[0].get("source") or source_hash(scoring.measure, run.task)[:HEX]
        kept[run] = tuple({**row, "source": source} for row in rows)
        made = {**about, "scoring": json.loads(scoring.canonical())}
        batches = told["sources"].setdefault(source, [])
        batch = next((each for each in batches if {**made, "runs": 0} == {**each, "runs": 0}), None)
        if batch is None:
            batches.append(batch := {**made, "runs": 0})
        batch["runs"] += 1
    text = _text(kept)
    told |= {
        "runs": len(kept),
        "rows": sum(map(len, kept.values())),
        "below_gate": sorted({run.name for run, rows in kept.items() if rows[0].get("passed_gate") is False}),
        "data_hashes": hashlib.sha256((PACKAGE / "data_hashes.csv").read_bytes()).hexdigest(),
        "sha256": hashlib.sha256(text).hexdigest(),
    }
    write(file, gzip.compress(text, 9, mtime=0))
    write(_beside(file), (json.dumps(told, indent=1, sort_keys=True) + "\n").encode())
    _parsed.cache_clear()
    return len(fresh)


# The file ---------------------------------------------------------------------------------------------------------


def _rows(file: Path) -> dict[Run, tuple[dict, ...]]:
    """The file's rows by run; none where there is no file yet."""
    if not file.exists():
        return {}
    try:
        text = gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file.name} is truncated or is no gzip file ({error})") from error
    if hashlib.sha256(text).hexdigest() != _provenance(file).get("sha256"):
        raise InputError(
            f"{file.name} does not match the SHA-256 in {_beside(file).name}: one of them was edited or is of another "
            "version; nothing was read or overwritten"
        )
    return _parsed(text)


def _provenance(file: Path) -> dict:
    beside = _beside(file)
    try:
        told = json.loads(beside.read_text(encoding="utf-8"))
        version = told["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file.name} has no readable provenance {beside.name} ({type(error).__name__})") from error
    if version != FORMAT:
        raise InputError(f"{beside.name} is of format {version}; this version of shiftbound reads format {FORMAT}")
    return told


def _beside(file: Path) -> Path:
    return file.with_name(file.name.removesuffix(".csv.gz") + ".json")


@lru_cache(maxsize=3)
def _parsed(text: bytes) -> dict[Run, tuple[dict, ...]]:
    import pandas as pd

    frame = pd.read_csv(io.BytesIO(text), dtype=str, keep_default_na=False)
    fields = [name for name, column in COLUMNS.items() if column in frame]
    columns = [COLUMNS[name] for name in fields]
    every = [name for name in frame if name not in columns]
    kept = {}
    for values, rows in frame.groupby(columns, sort=False):
        given = {name: _value(value) for name, value in zip(fields, values, strict=True)}
        run = Run(**given | {"options": tuple(tuple(pair) for pair in given["options"])})
        measured = rows[every].to_dict("records")
        kept[run] = tuple({name: _value(value) if value else None for name, value in row.items()} for row in measured)
    return kept


def _text(kept: dict[Run, tuple[dict, ...]]) -> bytes:
    """The table as CSV: a run's fields in full, then what was measured, floats to 7 significant digits."""
    import pandas as pd

    rows = []
    for run, each in kept.items():
        given = json.loads(run.canonical())
        fields = {COLUMNS[name]: "" if value == "" else _cell(value) for name, value in given.items()}
        rows += [fields | {name: _cell(_short(value)) for name, value in row.items()} for row in each]
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n").encode()


def _cell(value: object) -> str:
    """JSON, but nothing for None, and text without quotes where it cannot be taken for anything else."""
    if value is None:
        return ""
    plain = isinstance(value, str) and value and _value(value) == value
    return value if plain else json.dumps(value)


def _value(cell: str) -> object:
    """What `_cell` wrote."""
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _short(value: object) -> object:
    if isinstance(value, list):
        return [_short(each) for each in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value
