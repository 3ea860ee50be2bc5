"""The claims ledger: a notebook records a verdict with its evidence, the build collates.

``claims.csv`` holds the rows: a sentence, where it is from, the verdict that the book argues for, the kind of evidence
it needs and the chapters that give it. A row is *shown* once a chapter's check ran and the chapter then recorded the
verdict with what the check computed. The record travels in the executed notebook, beside what the reader sees, so a
verdict can never outlive its check.
"""

from __future__ import annotations

import csv
import html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path

from shiftbound import InputError, require

MIME = "application/vnd.shiftbound.claim+json"
ARGUED = ("proved", "proved under stated hypotheses", "refuted as worded", "ill-posed", "not implied")
MEASURED = ("supported by measurement", "contradicted by measurement", "inconclusive")
OPEN = "to be measured"
VERDICTS = (*ARGUED, OPEN, *MEASURED)
UNSHOWN = "not yet shown"
SOURCES = {"A": "abstract", "C": "commentary", "N": "notes on the second paper", "S": "this book"}

recorded: list[dict[str, object]] = []  # what this process has recorded; the ledger's own notebook adds it to the rest


@cache
def rows() -> dict[str, dict[str, str]]:
    """The ledger's rows by id, as they stand in ``claims.csv``.

    >>> rows()["L1"]["verdict"]
    'proved'
    """
    with (files("shiftbound") / "claims.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row for row in csv.DictReader(file)}


def record(
    claim: str, verdict: str, evidence: Mapping[str, object], *, check: str | Sequence[str], theorem: str
) -> None:
    """Record ``verdict`` on the ledger row ``claim``, with the ``evidence`` that the cells tagged ``check`` computed.

    ``evidence`` maps a short description to a value (number, Fraction, string); ``check`` names the tags of the check
    cells of the same notebook; ``theorem`` is the label of the statement that the row links to. An unknown id, a
    verdict outside the vocabulary, or one that contradicts the ledger raises `InputError`.
    """
    _allowed(claim, verdict)
    require(bool(evidence), "evidence", evidence, "what the check computed, as a mapping that is not empty")
    from IPython.display import display

    row = rows()[claim]
    entry = {
        "id": claim,
        "verdict": verdict,
        "evidence": {key: _plain(value) for key, value in evidence.items()},
        "check": [check] if isinstance(check, str) else list(check),
        "theorem": theorem,
    }
    shown = "".join(
        f"<dt>{html.escape(key)}</dt><dd>{html.escape(str(value))}</dd>" for key, value in entry["evidence"].items()
    )
    card = (
        f'<div class="sb-claim sb-{verdict.replace(" ", "-")}" id="claim-{claim}"><p><b>{claim}</b> '
        f'<span class="sb-verdict">{verdict}</span><br>{html.escape(row["claim"])}</p><dl>{shown}</dl></div>'
    )
    text = f"{claim} {verdict}: {row['claim']} {entry['evidence']}"
    display({MIME: entry, "text/html": card, "text/plain": text}, raw=True)
    recorded[:] = [each for each in recorded if each["id"] != claim] + [entry]  # a cell that runs twice records once


def _allowed(claim: str, verdict: str) -> None:
    known = rows()
    require(claim in known, "claim", claim, f"one of the ledger's rows {', '.join(known)}")
    require(verdict in VERDICTS, "verdict", verdict, f"one of: {'; '.join(VERDICTS)}")
    declared = known[claim]["verdict"]
    allowed = (OPEN, *MEASURED) if declared == OPEN else (declared,)
    # A row argued in a theory chapter may be measured later on: the measured verdict is recorded as further evidence.
    if declared != OPEN and "trained-model" in known[claim]["evidence_kind"]:
        allowed = (declared, *MEASURED)
    require(verdict in allowed, "verdict", verdict, f"{' or '.join(allowed)}, as the ledger says of {claim}")


def _plain(value: object) -> object:
    """A value as JSON holds it: fractions and expressions as text, floats to six significant digits."""
    if isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0:
        return _plain(value.item())
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    return str(value)


def collate(
    notebooks: Iterable[Path], *, smoke: bool = False, also: Mapping[str, Sequence[Mapping[str, object]]] | None = None
) -> list[dict[str, object]]:
    """The ledger as the executed ``notebooks`` leave it, one object a row.

    Keys: ``id, source, claim, verdict, evidence_kind, chapter, shown`` and, for rows that are shown, ``records`` (each
    with notebook, theorem, check and evidence). Raises `InputError` for an unknown id, a verdict outside the
    vocabulary, one row with two verdicts, or a record whose check cell is missing or did not run before it.
    Under ``smoke`` the empirical rows stay "to be measured". ``also`` maps a notebook that is still running to what it
    has `recorded`.
    """
    ledger = {claim: {**row, "shown": False, "records": []} for claim, row in rows().items()}
    for path in sorted(notebooks):
        for entry in _records(path):
            ledger[entry["id"]]["records"].append(_kept(path.stem, entry))
    for name, entries in (also or {}).items():
        for entry in entries:
            ledger[entry["id"]]["records"].append(_kept(name, entry))
    for row in ledger.values():
        verdicts = {entry["verdict"] for entry in row["records"]} - {OPEN}
        argued, measured = verdicts - set(MEASURED), verdicts & set(MEASURED)
        if len(argued) > 1 or len(measured) > 1:
            where = "; ".join(f"{entry['notebook']}: {entry['verdict']}" for entry in row["records"])
            raise InputError(f"{row['id']} is recorded with different verdicts ({where}); they must agree")
        row["shown"] = bool(row["records"])
        if row["verdict"] == OPEN and measured and not smoke:
            row["verdict"] = measured.pop()
    return list(ledger.values())


def _kept(notebook: str, entry: Mapping[str, object]) -> dict[str, object]:
    """A record as the ledger keeps it."""
    return {"notebook": notebook, **{key: entry[key] for key in ("verdict", "theorem", "check", "evidence")}}


def _records(path: Path) -> Iterable[dict]:
    """The records in one executed notebook, each checked."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    ran: set[str] = set()
    for cell in notebook["cells"]:
        if cell["cell_type"] != "code":
            continue
        for output in cell["outputs"]:
            entry = output.get("data", {}).get(MIME)
            if entry is None:
                continue
            _allowed(entry["id"], entry["verdict"])
            missing = [tag for tag in entry["check"] if tag not in ran | set(cell["metadata"].get("tags", []))]
            if missing:
                raise InputError(
                    f"{path.stem} records {entry['id']} but its check {', '.join(missing)} did not run before it"
                )
            yield entry
        if cell.get("execution_count") is not None and not any(o["output_type"] == "error" for o in cell["outputs"]):
            ran |= set(cell["metadata"].get("tags", []))


def counts(ledger: Iterable[Mapping[str, object]]) -> dict[str, int]:
    """How many rows carry each verdict; rows not shown count under "not yet shown"."""
    result = dict.fromkeys((*VERDICTS, UNSHOWN), 0)
    for row in ledger:
        result[standing(row)] += 1
    return result


def standing(row: Mapping[str, object]) -> str:
    """The verdict of a row, or that it is not yet shown."""
    return str(row["verdict"]) if row["shown"] else UNSHOWN


def executed(notebook: str) -> list[Path]:
    """The executed notebooks that the ledger reads, ``notebook`` itself left out.

    The build names their folder in ``SHIFTBOUND_EXECUTED``; by hand, they are those of the last build under ``laptop``.
    """
    from shiftbound.store import root

    folder = Path(os.environ.get("SHIFTBOUND_EXECUTED") or root() / "build" / "notebooks" / "laptop")
    return sorted(path for path in folder.glob("*.ipynb") if path.stem != notebook)


def show(ledger: Iterable[Mapping[str, object]]) -> None:
    """Display the ledger as a table; each row links to its statements and to the cards with what was computed."""
    from IPython.display import display

    body, text = [], []
    for row in ledger:
        verdict = standing(row)
        links = []
        for entry in row["records"]:
            page, label = f"{entry['notebook']}.html", html.escape(str(entry["theorem"]))
            statement = f'{int(entry["notebook"][:2])}: <a href="{page}#{label}">statement</a>'
            links.append(f'{statement}, <a href="{page}#claim-{row["id"]}">evidence</a>')
        body.append(
            f'<tr id="row-{row["id"]}" data-source="{row["source"]}" data-verdict="{verdict}"><td>{row["id"]}</td>'
            f'<td>{row["source"]}</td><td>{html.escape(str(row["claim"]))}</td><td><span class="sb-verdict '
            f'sb-{verdict.replace(" ", "-")}">{verdict}</span></td><td>{html.escape(str(row["evidence_kind"]))}</td>'
            f"<td>{'<br>'.join(links) or 'chapter ' + html.escape(str(row['chapter']))}</td></tr>"
        )
        text.append(f"{row['id']} ({row['source']}) {verdict}: {row['claim']}")
    head = "".join(f"<th>{name}</th>" for name in ("id", "source", "sentence", "verdict", "kind of evidence", "where"))
    table = f'<div class="sb-ledger"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'
    display({"text/html": table, "text/plain": "\n".join(text)}, raw=True)
