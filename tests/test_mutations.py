"""A check that passes for a wrong formula is no check: every machine check of the book must notice its mutations.

``tests/mutations/NN_name.toml`` lists changes to the code cells of ``notebooks/NN_name.md``:

    [[mutation]]
    cell = "check-unique"    # the tag of the check that must notice
    find = "n - 1"           # occurs once in that cell, or else once in the code cells before it
    replace = "n"            # what it becomes: a sign flipped, a constant halved, a hypothesis dropped
    why = "one line"
    params = {n = 6}         # optional: other parameters for this mutation, smaller ones to save time

The chapter runs with the change; the cells before the tagged one must pass, and the tagged one must raise an
AssertionError. A chapter runs once a set of parameters, in a process of its own without a kernel: at the changed cell
the process forks, the child runs on with the change as far as the check, and the parent goes on without it.

A line ``params = {...}`` above the first entry holds for the whole table: a chapter on trained models names parameters
there under which it trains nothing.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import linecache
import os
import signal
import subprocess
import sys
import tomllib
import types
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
KINDS = {"symbolic", "exact", "exhaustive", "numeric"}
THEORY = sorted(ROOT.glob("notebooks/0[1-8]_*.md"))
TABLES = sorted(ROOT.glob("tests/mutations/*.toml"))
SECONDS = 300  # the longest that one mutation may take


@dataclass(frozen=True)
class Cell:
    source: str
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mutation:
    cell: str
    find: str
    replace: str
    why: str
    params: dict[str, object] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.cell}: {self.find!r} -> {self.replace!r} ({self.why})"


def code_cells(chapter: str, root: Path = ROOT) -> list[Cell]:
    """The code cells of one chapter, in order."""
    import jupytext

    notebook = jupytext.read(root / "notebooks" / f"{chapter}.md")
    return [
        Cell(cell.source, tuple(cell.metadata.get("tags", []))) for cell in notebook.cells if cell.cell_type == "code"
    ]


def mutations(chapter: str, root: Path = ROOT) -> list[Mutation]:
    """The chapter's table of mutations; a misspelt key raises TypeError."""
    common, entries = table(chapter, root)
    return [Mutation(**entry | {"params": common | entry.get("params", {})}) for entry in entries]


def table(chapter: str, root: Path = ROOT) -> tuple[dict[str, object], list[dict]]:
    """The parameters that hold for the whole table, and its entries as they are written."""
    data = tomllib.loads((root / "tests" / "mutations" / f"{chapter}.toml").read_text(encoding="utf-8"))
    assert set(data) <= {"params", "mutation"}, f"{chapter}.toml holds {', '.join(data)}"
    return data.get("params", {}), data["mutation"]


def place(cells: list[Cell], mutation: Mutation) -> tuple[int, int]:
    """(index of the cell that changes, index of the check that must notice)."""
    tagged = [index for index, cell in enumerate(cells) if mutation.cell in cell.tags]
    assert len(tagged) == 1, f"{len(tagged)} code cells carry the tag {mutation.cell}; it must be exactly one"
    check = tagged[0]
    assert mutation.find != mutation.replace, f"{mutation}: nothing changes"
    for candidates in ([check], range(check)):
        found = [(index, cells[index].source.count(mutation.find)) for index in candidates]
        total = sum(times for _, times in found)
        assert total <= 1, f"{mutation}: the text occurs {total} times; it must occur exactly once"
        if total == 1:
            return next(index for index, times in found if times), check
    raise AssertionError(f"{mutation}: the text occurs neither in the check nor in the code cells before it")


# --- the process that runs a chapter ---------------------------------------------------------------------------------


class Stopped(Exception):
    """A cell raised: which one, and what."""

    def __init__(self, index: int, tags: tuple[str, ...], error: BaseException) -> None:
        super().__init__(f"code cell {index} ({', '.join(tags) or 'untagged'}): {type(error).__name__}: {error}")
        self.index, self.error = index, error


def without_kernel() -> None:
    """Stand-ins for what a notebook's front end does: `display` and `glue` take a value and show nothing."""
    import IPython.display

    from shiftbound import figures

    def close(fig: object, name: str, *, title: str, alt: str, data: object) -> None:
        import matplotlib.pyplot as plt

        plt.close(fig)

    glue = types.ModuleType("myst_nb")
    glue.glue = lambda name, variable, display=True: None
    sys.modules["myst_nb"] = glue
    IPython.display.display = lambda *objects, **options: None
    figures.show = close


def warm_up(cells: list[Cell]) -> None:
    """Import what the chapter imports, once for all sets of parameters."""
    for node in (node for cell in cells for node in ast.walk(ast.parse(cell.source))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
        for name in names:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)


def execute(index: int, cell: Cell, namespace: dict, params: dict) -> None:
    """Run one cell in ``namespace``, and lay ``params`` over the parameters cell's own values."""
    name = f"<code cell {index}>"
    linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(keepends=True), name)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(cell.source, name, "exec"), namespace)
    except BaseException as error:
        raise Stopped(index, cell.tags, error) from error
    if "parameters" in cell.tags:
        unknown = sorted(set(params) - set(namespace))
        assert not unknown, f"the chapter has no parameter {', '.join(unknown)}"
        namespace.update(params)


def in_child(work) -> str:
    """What ``work()`` returns, computed in a forked child whose every side effect dies with it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            text = work()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        with os.fdopen(writer, "w", encoding="utf-8") as pipe:
            pipe.write(text)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else f"the process ended with status {status}"


def outcome(cells: list[Cell], mutation: Mutation, first: int, check: int, namespace: dict) -> str:
    """ "noticed", or a sentence that says what happened instead."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(1))
    signal.alarm(SECONDS)
    changed = Cell(cells[first].source.replace(mutation.find, mutation.replace), cells[first].tags)
    try:
        for index in range(first, check + 1):
            execute(index, changed if index == first else cells[index], namespace, mutation.params)
    except Stopped as stop:
        if stop.index == check and isinstance(stop.error, AssertionError):
            return "noticed"
        return f"stopped with something else than a failed assertion of the check: {stop}"
    return "the check passes with the change"


def walk(cells: list[Cell], params: dict, group: list[tuple[str, Mutation, int, int]], last: int) -> str:
    """Run cells 0..last unchanged, forking off each mutation of ``group`` at its place; JSON of all outcomes."""
    module = types.ModuleType("chapter")
    sys.modules["chapter"] = module
    namespace, results, unchanged = module.__dict__, {}, ""
    for index in range(last + 1):
        for key, mutation, first, check in group:
            if first == index:
                results[key] = in_child(lambda m=mutation, f=first, c=check: outcome(cells, m, f, c, namespace))
        try:
            execute(index, cells[index], namespace, params)
        except (Stopped, AssertionError) as stop:
            unchanged = str(stop)
            break
    return json.dumps({"results": results, "unchanged": unchanged})


def main(chapter: str, root: Path) -> None:
    """Run ``chapter`` for every set of parameters in its table; print one JSON object."""
    cells, entries = code_cells(chapter, root), mutations(chapter, root)
    without_kernel()
    warm_up(cells)
    placed = [(str(number), entry, *place(cells, entry)) for number, entry in enumerate(entries)]
    report: dict[str, dict[str, str]] = {"results": {}, "unchanged": {}}
    whole = json.dumps(table(chapter, root)[0], sort_keys=True)  # under these the chapter runs to its end
    for key in dict.fromkeys([whole, *(json.dumps(entry.params, sort_keys=True) for entry in entries)]):
        group = [item for item in placed if json.dumps(item[1].params, sort_keys=True) == key]
        last = len(cells) - 1 if key == whole else max(check for *_, check in group)
        params = json.loads(key)
        text = in_child(lambda g=group, n=last, p=params: walk(cells, p, g, n))
        part = json.loads(text) if text.startswith("{") else {"results": {}, "unchanged": text}
        report["results"] |= part["results"]
        report["unchanged"][key] = part["unchanged"]
    print(json.dumps(report))


# --- the tests -------------------------------------------------------------------------------------------------------


@cache
def report(chapter: str, root: Path = ROOT) -> dict:
    """What `main` prints for ``chapter``, run in a fresh interpreter on one thread and without an accelerator."""
    quiet = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, chapter, str(root)]
    run = subprocess.run(command, env=os.environ | quiet, capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("chapter", [path.stem for path in TABLES])
def test_every_mutation_is_noticed(chapter: str, subtests: pytest.Subtests) -> None:
    """The chapter passes as it stands, and each listed change makes the tagged check fail."""
    entries, cells = mutations(chapter), code_cells(chapter)
    for entry in entries:
        place(cells, entry)
    done = report(chapter)
    for params, stopped in done["unchanged"].items():
        with subtests.test("unchanged", params=params):
            assert not stopped, f"{chapter} with {params}: {stopped}"
    for number, entry in enumerate(entries):
        with subtests.test(str(entry)):
            assert done["results"].get(str(number), "not reached") == "noticed"


@pytest.mark.parametrize("chapter", [path.stem for path in TABLES])
def test_every_check_has_a_mutation(chapter: str) -> None:
    """A check names its kind and itself, asserts, and stands in the table of mutations."""
    checks = [cell for cell in code_cells(chapter) if "check" in cell.tags]
    assert checks, f"{chapter} has no machine check"
    listed = {entry.cell for entry in mutations(chapter)}
    for cell in checks:
        own = [tag for tag in cell.tags if tag.startswith("check-")]
        assert len(own) == 1, f"{chapter}: a check carries the tags {cell.tags}; it needs one check-... of its own"
        assert len(KINDS & set(cell.tags)) == 1, f"{chapter}: {own[0]} names no kind, or two"
        assert own[0] in listed, f"{chapter}: no mutation is listed for {own[0]}"


def test_the_eight_theory_chapters_are_all_under_test() -> None:
    assert [path.stem[:2] for path in THEORY] == [f"{number:02d}" for number in range(1, 9)]
    assert {path.stem for path in THEORY} <= {path.stem for path in TABLES}


HOLLOW = """---
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

```{code-cell} ipython3
:tags: [parameters]

n = 2  # a whole number
```

```{code-cell} ipython3
double = 2 * n
```

```{code-cell} ipython3
:tags: [check, exact, check-double]

assert double == n + n
assert n < 5
```
"""


def test_the_runner_tells_a_real_check_from_a_hollow_one(tmp_path: Path) -> None:
    """On a chapter of three cells: noticed, passed over, stopped for another reason, and other parameters."""
    told = {
        ("n + n", "n + n + 1", ""): "noticed",
        ("2 * n", "3 * n", ""): "noticed",
        ("n + n", "n * n", ""): "the check passes with the change",
        ("n + n", "n * n", "n = 3"): "noticed",
        ("2 * n", "2 / 0 * n", ""): "stopped with something else than a failed assertion of the check: code cell 1",
        ("n < 5", "n < 4", "n = 7"): "noticed",
        ("n + n", "n + m", ""): "stopped with something else than a failed assertion of the check: code cell 2",
    }
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "tests" / "mutations").mkdir(parents=True)
    (tmp_path / "notebooks" / "01_hollow.md").write_text(HOLLOW, encoding="utf-8")
    table = "".join(
        f'[[mutation]]\ncell = "check-double"\nfind = "{find}"\nreplace = "{replace}"\nwhy = "a test"\n'
        f"params = {{{params}}}\n"
        for find, replace, params in told
    )
    (tmp_path / "tests" / "mutations" / "01_hollow.toml").write_text(table, encoding="utf-8")
    done = report("01_hollow", tmp_path)
    for number, expected in enumerate(told.values()):
        assert done["results"].get(str(number), "not reached").startswith(expected)
    assert done["unchanged"]["{}"] == done["unchanged"]['{"n": 3}'] == ""
    # With n = 7 the check fails unchanged too, which the runner reports: that mutation proves nothing.
    assert "AssertionError" in done["unchanged"]['{"n": 7}']


@pytest.mark.parametrize(
    ("find", "replace", "check", "message"),
    [
        ("n", "m", "check-double", "occurs . times"),
        ("n - n", "n", "check-double", "neither"),
        ("n + n", "n + n", "check-double", "nothing changes"),
        ("n + n", "n", "check-absent", "0 code cells"),
    ],
)
def test_an_ambiguous_mutation_is_refused(find: str, replace: str, check: str, message: str) -> None:
    cells = [Cell("n = 2"), Cell("assert 2 * n == n + n", ("check-double",))]
    with pytest.raises(AssertionError, match=message):
        place(cells, Mutation(check, find, replace, "a test"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
