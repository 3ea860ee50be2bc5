"""The command line: ``shiftbound build / run / sweep / w1 / claims / doctor``. Exit 0, 1 for a failure, 2 for usage.

Nothing heavy is imported before a command needs it, so ``--help`` answers at once.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shiftbound import InputError

if TYPE_CHECKING:
    from shiftbound.engine import Progress

app = typer.Typer(
    help="A reproducible book on why reasoning models fail out of distribution: build it, re-run it, check it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COLUMNS = ("id", "source", "claim", "verdict", "evidence_kind", "chapter", "shown")


class ProfileName(StrEnum):
    smoke = "smoke"
    laptop = "laptop"
    published = "published"
    paper = "paper"


ProfileOption = Annotated[ProfileName, typer.Option("--profile", help="Which set of parameters and runs.")]
SchedulerOption = Annotated[
    str | None,
    typer.Option(metavar="ADDR", help="Address of a Dask scheduler, e.g. tcp://host:8786; else this machine."),
]


def main() -> None:
    """The program: what goes wrong is said in one sentence (a failing cell with its traceback), never as our own."""
    try:
        app(prog_name="shiftbound")
    except KeyboardInterrupt:
        _stop("stopped", 130)
    except Exception as error:
        from shiftbound.notebooks import UsageError
        from shiftbound.pages import BuildFailed

        if not isinstance(error, InputError | BuildFailed | OSError):
            raise
        _stop(error, 2 if isinstance(error, UsageError) else 1)


def _stop(said: object, code: int) -> None:
    print(f"shiftbound: {said}", file=sys.stderr)
    sys.exit(code)


@app.command()
def build(
    profile: ProfileOption = ProfileName.laptop,
    notebook: Annotated[
        list[str], typer.Option("--notebook", metavar="NAME", help="Re-execute only this one; may be repeated.")
    ] = [],  # noqa: B006
    scheduler: SchedulerOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time; by default one a core.")] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the book goes; by default build/html.")
    ] = None,
) -> None:
    """Train what is missing, execute the notebooks, and render the book."""
    from shiftbound import book

    with display() as report:
        folder = book.build(
            profile.value, notebook, scheduler=scheduler, jobs=jobs, output=output, say=say, report=report
        )
    say(f"the book is ready: open {folder / 'index.html'}")


@app.command()
def run(
    notebook: Annotated[str, typer.Argument(help="Its name, its number, or its path.")],
    parameter: Annotated[
        list[str],
        typer.Option("-p", metavar="NAME=VALUE", help="A parameter in place of the notebook's own; may be repeated."),
    ] = [],  # noqa: B006
    profile: ProfileOption = ProfileName.laptop,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.ipynb", help="Where the executed notebook goes; by default build/runs.")
    ] = None,
) -> None:
    """Execute one notebook with other parameters; values are read by the type of the notebook's own default."""
    from shiftbound import book
    from shiftbound.notebooks import UsageError

    given = {}
    for each in parameter:
        name, equals, value = each.partition("=")
        if not equals or not name.strip().isidentifier():
            raise UsageError(f"-p {each} is not allowed; it must be a name and a value, as in -p seed=1")
        given[name.strip()] = value
    if output is not None and output.suffix != ".ipynb":
        raise UsageError(f"--output {output} is not allowed; it must be a file that ends in .ipynb")
    with display() as report:
        path = book.run(notebook, given, profile=profile.value, output=output, report=report)
    say(f"executed: {path}")


@app.command()
def claims(
    as_json: Annotated[bool, typer.Option("--json", help="A list of objects, for programs.")] = False,
) -> None:
    """The claims ledger as the last build left it."""
    from shiftbound.book import Project
    from shiftbound.claims import counts

    path = Project.here().build / "claims.json"
    try:
        ledger = json.loads(path.read_text(encoding="utf-8"))["rows"]
    except FileNotFoundError:
        raise InputError("there is no ledger yet; it is made by 'shiftbound build'") from None
    if as_json:
        print(json.dumps([{key: row[key] for key in COLUMNS} for row in ledger], indent=1, ensure_ascii=False))
        return
    for row in ledger:
        print(f"{row['id']:4} {row['verdict'] if row['shown'] else 'not yet shown':32} {row['claim']}")
    print("; ".join(f"{count} {verdict}" for verdict, count in counts(ledger).items() if count))


@app.command()
def doctor() -> None:
    """What is installed, what is missing, and how long each profile should take on this machine."""
    from shiftbound.doctor import findings

    bad = 0
    for finding in findings():
        print(finding.line())
        bad += finding.needed and not finding.good
    if bad:
        raise InputError(f"{bad} of the things that a build needs are missing; each line above says what to do")


# What is shown while it works -------------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, flush=True)


@contextlib.contextmanager
def display() -> Iterator[Callable[[Progress], None]]:
    """The sweep's progress: one moving line in a terminal, a line a run elsewhere."""
    if not sys.stderr.isatty():
        yield lambda progress: print(_told(progress), file=sys.stderr, flush=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rest]}")
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("runs", total=None, rest="", visible=False)

        def report(progress: Progress) -> None:
            bar.update(task, total=progress.total, completed=progress.done, rest=_rest(progress), visible=True)

        yield report


def _told(progress: Progress) -> str:
    if not progress.last:
        return f"{progress.total} runs: {progress.reused} in the store, {progress.total - progress.reused} to do"
    return f"run {progress.done} of {progress.total}: {progress.last}; {_rest(progress)}"


def _rest(progress: Progress) -> str:
    failed = f"{len(progress.failed)} failed, " if progress.failed else ""
    if progress.remaining is None:
        return f"{failed}no estimate yet"
    return f"{failed}about {span(progress.remaining)} to go"


def span(seconds: float) -> str:
    """A length of time for people.

    >>> span(42), span(610), span(9000), span(500_000)
    ('42 s', '10 min', '2.5 h', '6 days')
    """
    for unit, size, digits in (("s", 1, 0), ("min", 60, 0), ("h", 3600, 1)):
        if seconds < 100 * size:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86400:.0f} days"
