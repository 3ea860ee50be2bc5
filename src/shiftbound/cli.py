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


class MetricName(StrEnum):
    euclidean = "euclidean"
    cityblock = "cityblock"
    dyck = "dyck"
    dyck_path = "dyck-path"


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
        from shiftbound.engine import RunsFailed
        from shiftbound.notebooks import UsageError
        from shiftbound.pages import BuildFailed

        if not isinstance(error, InputError | BuildFailed | RunsFailed | OSError):
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
def sweep(
    profile: ProfileOption = ProfileName.laptop,
    scheduler: SchedulerOption = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time; by default one a core.")] = None,
    status: Annotated[
        bool, typer.Option("--status", help="Train nothing; say what is there and what is missing.")
    ] = False,
) -> None:
    """Train and score every run that the profile's notebooks ask for and the store lacks.

    Under the profile published, also the runs that the shipped files of book/results lack; their rows are appended.
    """
    from shiftbound import engine, pages, plan, published
    from shiftbound.book import Edition, Project
    from shiftbound.runs import union
    from shiftbound.store import Store

    project = Project.here()
    edition, store = Edition(project, profile.value, scheduler), Store(project.store)
    grids = plan.grids(edition.settings, project.notebooks)
    if status:
        for name, each in grids.items():
            here = union(grid for grid in each if not grid.published)
            missing = [run.name for run, scoring in here if store.rows(run, scoring) is None]
            if here:
                say(f"{name}: {len(here) - len(missing)} of {len(here)} runs are in the store" + _listed(missing))
            for grid in (grid for grid in each if grid.published):
                lacking = [run.name for run in published.lacking(grid)]
                file = f"{grid.published}.csv.gz"
                say(f"{name}: {len(grid) - len(lacking)} of {len(grid)} runs are in {file}" + _listed(lacking))
        return
    every = [grid for each in grids.values() for grid in each]
    failed = {}
    with display() as report:
        trained = union(grid for grid in every if not grid.published)
        sweeps = [engine.sweep(trained, scheduler=scheduler, jobs=jobs, store=store, report=report)]
        if profile is ProfileName.published:
            shipped = [grid for grid in every if grid.published]
            made = {"commit": pages.commit(project.root), "machine": pages.machine(), "versions": pages.versions()}
            about = {**made, "date": pages.now()[:10]}
            sweeps.append(engine.publish(shipped, about, scheduler=scheduler, jobs=jobs, store=store, report=report))
    for progress in sweeps:
        say(f"{progress.trained} runs trained, {progress.rescored} scored again, {progress.reused} were there")
        failed |= progress.failed
    if failed:
        raise engine.RunsFailed(failed)


@app.command()
def w1(
    a: Annotated[Path, typer.Argument(metavar="A", help="A sample: .npy or .csv of points, or a text of Dyck words.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="The other sample.")],
    metric: Annotated[
        MetricName, typer.Option(help="The distance between two points, or two words.")
    ] = MetricName.euclidean,
    weights: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="WA WB", help="Two files with one weight a row.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the noise floor and the interval.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="An object, for programs.")] = False,
) -> None:
    """The certified W1 distance between two samples of your own, with its noise floor."""
    from shiftbound import samples

    found = samples.measure(a, b, metric.value, weights, seed)
    if as_json:
        print(json.dumps(found))
        return
    lower, value, upper = found["lower"], found["w1"], found["upper"]
    say(f"W1     {value:.6g}   certified between {lower:.6g} and {upper:.6g}")
    if found["floor"] is not None:
        floor, spread = found["floor"], found["interval"]
        say(f"floor  {floor[0]:.4g} and {floor[1]:.4g}   between halves of one sample; a shift below cannot be seen")
        say(f"spread {spread[0]:.4g} to {spread[1]:.4g}")
    sizes = f"{found['n'][0]} and {found['n'][1]} points of dimension {found['dimension']}"
    say(f"{sizes}, {found['metric']}; {found['method']}")


def _listed(names: list[str], most: int = 5) -> str:
    """The first few of what is missing."""
    shown = ", ".join(names[:most])
    return f"; missing: {shown}{', ...' if len(names) > most else ''}" if names else ""


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
    from shiftbound.engine import span

    return f"{failed}about {span(progress.remaining)} to go"
