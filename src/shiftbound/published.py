"""The per-seed rows behind the printed edition: ``book/results/published.csv.gz`` and its provenance.

One row a run and shift, looked up by the `Run` alone. Each row carries the hash of the code that made it, so the file
may hold rows made by older code; ``published.json`` lists which, together with versions, machines and dates, and seals
the table with its SHA-256. A file of another version, truncated or edited is refused with the reason and never
overwritten.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from shiftbound import InputError
from shiftbound.runs import Run
from shiftbound.store import root, write

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
LISTS = ("token_cosine",)  # columns that hold a list, kept as numbers joined by semicolons


def run_id(run: Run) -> str:
    """The name under which a run's rows are found: 16 hex digits of the SHA-256 of the run."""
    return hashlib.sha256(run.canonical().encode()).hexdigest()[:16]


def path(name: str = "published") -> Path:
    return root() / "book" / "results" / f"{name}.csv.gz"


def read(file: Path | None = None) -> pd.DataFrame:
    """The whole table; empty where the file does not exist yet. Raises `InputError` where it cannot be trusted."""
    import pandas as pd

    file = file or path()
    if not file.exists():
        return pd.DataFrame({"run_id": pd.Series(dtype=str)})
    text, seal = _unpack(file), provenance(file)
    if hashlib.sha256(text).hexdigest() != seal.get("sha256"):
        raise InputError(
            f"{file.name} does not match the SHA-256 in its provenance; it was edited or mixed with another version"
        )
    table = pd.read_csv(io.BytesIO(text), float_precision="round_trip", keep_default_na=False, na_values=["nan"])
    for name in LISTS:
        if name in table:
            table[name] = [[float(x) for x in str(value).split(";") if x] for value in table[name]]
    return table


def provenance(file: Path | None = None) -> dict:
    """What ``published.json`` says: format, SHA-256 of the table, and for each source hash its versions and dates."""
    file = file or path()
    beside = file.with_name(file.name.removesuffix(".csv.gz") + ".json")
    try:
        data = json.loads(beside.read_text(encoding="utf-8"))
        version = data["format"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{file.name} has no readable provenance {beside.name} ({type(error).__name__})") from error
    if version != FORMAT:
        raise InputError(f"{beside.name} is of format {version}; this version of shiftbound reads format {FORMAT}")
    return data


def lookup(runs: Iterable[Run], file: Path | None = None) -> tuple[pd.DataFrame, list[Run]]:
    """The published rows of ``runs`` in their order, and the runs that the file lacks."""
    import pandas as pd

    table = read(file)
    parts = dict(iter(table.groupby("run_id", sort=False)))
    runs = list(runs)
    found = [parts[run_id(run)] for run in runs if run_id(run) in parts]
    return pd.concat(found, ignore_index=True) if found else table.iloc[:0], [r for r in runs if run_id(r) not in parts]


def append(rows: pd.DataFrame, about: dict, file: Path | None = None) -> int:
    """Add the rows of runs that the file lacks; ``about`` (versions, machine, date) is kept for their source hashes.

    Rows need the columns ``run_id`` and ``source_hash``. Returns how many runs were added. Both files are written
    whole, the table first.
    """
    import pandas as pd

    file = file or path()
    table = read(file)
    fresh = rows[~rows.run_id.isin(set(table.run_id))].copy()
    if fresh.empty:
        return 0
    for name in LISTS:
        if name in fresh:
            fresh[name] = [";".join(f"{x:.6g}" for x in value) for value in fresh[name]]
        if name in table:
            table[name] = [";".join(f"{x:.6g}" for x in value) for value in table[name]]
    whole = pd.concat([table, fresh], ignore_index=True) if len(table) else fresh
    text = whole.to_csv(index=False, float_format="%.7g", na_rep="nan", lineterminator="\n").encode()
    seal = provenance(file) if file.exists() else {"format": FORMAT, "sources": {}}
    for source in fresh.source_hash.unique():
        seal["sources"].setdefault(source, []).append(
            {**about, "runs": int(fresh[fresh.source_hash == source].run_id.nunique())}
        )
    home = whole.drop_duplicates("run_id")
    seal["runs"] = len(home)
    seal["rows"] = len(whole)
    seal["below_gate"] = int((home.passed_gate.astype(str) != "True").sum())
    seal["sha256"] = hashlib.sha256(text).hexdigest()
    write(file, gzip.compress(text, 9, mtime=0))
    write(
        file.with_name(file.name.removesuffix(".csv.gz") + ".json"), json.dumps(seal, indent=1, sort_keys=True).encode()
    )
    return int(fresh.run_id.nunique())


def _unpack(file: Path) -> bytes:
    try:
        return gzip.decompress(file.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{file.name} is truncated or is no gzip file ({error})") from error
