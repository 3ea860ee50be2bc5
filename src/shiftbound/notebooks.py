"""One notebook: its typed parameters, its execution, and its outputs made the same to the byte from run to run.

A chapter is MyST Markdown with one cell tagged ``parameters``, literals only, one a line. Whoever sets a parameter, on
the command line or in a profile, is held to the type of the notebook's own default.
"""

from __future__ import annotations

import ast
import difflib
import io
import os
import re
import tempfile
import tokenize
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from shiftbound import InputError
from shiftbound.store import write

if TYPE_CHECKING:
    from nbformat import NotebookNode

CELL_SECONDS = 900  # a cell of a build that runs longer than this has hung: what is long belongs in the sweep


class UsageError(InputError):
    """A notebook or a parameter that does not exist, or a value of another type: the command was typed wrongly."""


class NotebookFailed(RuntimeError):
    """A cell raised, wrote to stderr, or left an output that differs from run to run."""


@dataclass(frozen=True)
class Parameter:
    """A parameter as the notebook declares it: its name, its default, and the comment that says what is allowed."""

    name: str
    default: object
    comment: str = ""

    @property
    def optional(self) -> bool:
        return self.default is None or re.search(r"\bnone\b", self.comment, re.IGNORECASE) is not None

    @property
    def kind(self) -> str:
        names = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list"}
        kind = names.get(type(self.default), "a number, true or false, a list or a text")
        if isinstance(self.default, list) and len({type(item) for item in self.default}) == 1:
            item = {int: " of whole numbers", float: " of numbers", str: " of texts"}
            kind += item.get(type(self.default[0]), "")
        return kind + (" or none" if self.optional else "")

    def parse(self, text: str) -> object:
        """The value that ``text`` means for a parameter of this type.

        >>> Parameter("lr", 0.1).parse("1e-3"), Parameter("n", [1]).parse("[2,4,8]")
        (0.001, [2, 4, 8])
        """
        stripped = text.strip()
        if self.optional and stripped.lower() in ("none", "null"):
            return None
        if isinstance(self.default, str):
            return text
        value = {"true": True, "false": False}.get(stripped.lower(), stripped)
        if isinstance(value, str):
            try:
                value = ast.literal_eval(re.sub(r"\b(true|false)\b", lambda match: match[0].capitalize(), stripped))
            except (ValueError, SyntaxError):
                value = text
        return self.check(value)

    def check(self, value: object) -> object:
        """``value`` as this parameter holds it (a whole number serves as a float), else `InputError`."""
        if value is None or (self.optional and isinstance(value, str) and value.lower() == "none"):
            if self.optional:
                return None
        elif self.default is None:
            return value
        elif isinstance(self.default, list):
            if isinstance(value, list | tuple):
                kinds = {type(item) for item in self.default}
                each = Parameter(self.name, self.default[0]) if len(kinds) == 1 else None
                return [each.check(item) if each else item for item in value]
        elif isinstance(self.default, float):
            if isinstance(value, int | float) and not isinstance(value, bool):
                return float(value)
        elif type(value) is type(self.default):
            return value
        raise UsageError(
            f"{self.name} = {value!r} is not allowed; it must be {self.kind} (the default is {self.default!r})"
        )


# Reading ----------------------------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    """The names of the notebooks in ``folder``, in the book's order."""
    return sorted(path.stem for path in folder.glob("[0-9][0-9]_*.md"))


def resolve(given: str, folder: Path) -> str:
    """The one notebook that ``given`` names: its name, its number, or a path to it."""
    known = names(folder)
    stem = Path(given).name.removesuffix(".md").removesuffix(".ipynb")
    found = [name for name in known if name == stem] or [name for name in known if name.split("_")[0] == stem]
    if len(found) != 1:
        raise UsageError(f"there is no notebook {given!r}{_nearest(stem, known)}; there are {', '.join(known)}")
    return found[0]


def _nearest(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=3, cutoff=0.5)
    return f" (did you mean {' or '.join(close)}?)" if close else ""


def read(path: Path) -> NotebookNode:
    """The notebook that the MyST Markdown at ``path`` is, with cell ids that do not depend on chance."""
    import jupytext

    notebook = jupytext.read(path)
    _number(notebook)
    return notebook


def _number(notebook: NotebookNode) -> None:
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for index, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{index:03d}"


def tagged(notebook: NotebookNode, tag: str) -> list[str]:
    """The sources of the code cells tagged ``tag``."""
    return [cell.source for cell in notebook.cells if cell.cell_type == "code" and tag in cell.metadata.get("tags", [])]


def imports(notebook: NotebookNode) -> list[str]:
    """The modules of this package that the notebook's cells import, without the leading ``shiftbound.``."""
    found = set()
    for cell in notebook.cells:
        for node in ast.walk(ast.parse(cell.source)) if cell.cell_type == "code" else ():
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return sorted(name.removeprefix("shiftbound.") for name in found if name.startswith("shiftbound."))


def parameters(notebook: NotebookNode) -> dict[str, Parameter]:
    """The parameters that ``notebook`` declares, by name; `InputError` where one is not a literal."""
    found: dict[str, Parameter] = {}
    for source in tagged(notebook, "parameters"):
        comments = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        for node in ast.parse(source).body:
            target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
            try:
                value = ast.literal_eval(node.value)
            except (AttributeError, ValueError) as error:
                raise InputError(
                    f"the parameters cell holds {ast.unparse(node)!r}; it must hold literals only"
                ) from error
            found[target.id] = Parameter(target.id, value, comments.get(node.end_lineno, ""))
    return found


def settle(notebook: NotebookNode, given: Mapping[str, object], *, where: str) -> dict[str, object]:
    """``given`` values held to the notebook's own types; only what differs from the defaults is returned.

    An unknown name is refused with the nearest ones and the list.
    """
    known = parameters(notebook)
    settled = {name: _known(name, known, where).check(value) for name, value in given.items()}
    return {name: value for name, value in settled.items() if repr(value) != repr(known[name].default)}


def typed(notebook: NotebookNode, given: Mapping[str, str], *, where: str) -> dict[str, object]:
    """``given`` texts as a user types them, each read by the type of the notebook's own default."""
    known = parameters(notebook)
    return {name: _known(name, known, where).parse(text) for name, text in given.items()}


def _known(name: str, known: Mapping[str, Parameter], where: str) -> Parameter:
    if name not in known:
        listed = ", ".join(known) or "none at all"
        raise UsageError(f"{where} has no parameter {name!r}{_nearest(name, known)}; it has {listed}")
    return known[name]


# Executing --------------------------------------------------------------------------------------------------------


def execute(
    source: Path, output: Path, values: Mapping[str, object], environment: Mapping[str, str], seconds: int | None
) -> None:
    """Execute the notebook at ``source`` with ``values`` and write it, normalised, to ``output``: whole or not at all.

    For a process of its own: it sets the ``environment`` of the kernel in its own. Raises `NotebookFailed`.
    """
    import nbformat
    import papermill
    from nbclient.exceptions import CellTimeoutError, DeadKernelError
    from papermill.exceptions import PapermillExecutionError

    os.environ.update(environment)
    notebook = read(source)
    with tempfile.TemporaryDirectory(prefix="shiftbound-") as folder:
        os.environ["IPYTHONDIR"] = str(Path(folder) / "ipython")
        start, end = Path(folder) / "start.ipynb", Path(folder) / "end.ipynb"
        nbformat.write(notebook, start)
        try:
            papermill.execute_notebook(
                start, end, dict(values), kernel_name="python3", cwd=folder, progress_bar=False, log_output=False,
                execution_timeout=seconds, request_save_on_cell_execute=False,
                extra_arguments=["--Application.log_level=50"],  # a kernel calls its own shutdown an error
            )  # fmt: skip
        except PapermillExecutionError as error:
            raise NotebookFailed(_failure(source.stem, nbformat.read(end, as_version=4), error)) from None
        except CellTimeoutError as error:
            raise NotebookFailed(
                f"{source.stem}: a cell ran for more than {seconds} s and was stopped: {error}"
            ) from None
        except DeadKernelError:
            raise NotebookFailed(f"{source.stem}: the kernel died; it may have run out of memory") from None
        result = nbformat.read(end, as_version=4)
    normalise(result)
    refuse(source.stem, result, (folder, str(source.parents[1])))
    write(output, (nbformat.writes(result) + "\n").encode())


def _failure(name: str, notebook: NotebookNode, error: object) -> str:
    """What a reader of the terminal needs: notebook, cell, tags, and the one sentence or the traceback."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    cell = next((c for c in cells if any(o.output_type == "error" for o in c.outputs)), None)
    where = f"{name}, code cell {error.exec_count}{_tags(cell)}"
    if error.ename == "InputError":
        return f"{where}: {error.evalue}"
    trace = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(error.traceback))
    return f"{where} failed with {error.ename}: {error.evalue}\n{trace}"


def _tags(cell: NotebookNode | None) -> str:
    tags = ", ".join(cell.metadata.get("tags", [])) if cell else ""
    return f" ({tags})" if tags else ""


def normalise(notebook: NotebookNode) -> None:
    """Drop what differs from run to run and says nothing about the numbers: timings, ids, how a text came in pieces."""
    kept = {key: notebook.metadata[key] for key in ("kernelspec", "language_info") if key in notebook.metadata}
    notebook.metadata.clear()
    notebook.metadata.update(kept)
    for cell in notebook.cells:
        for key in ("papermill", "execution", "ExecuteTime"):
            cell.metadata.pop(key, None)
        if "outputs" in cell:
            cell.outputs = _joined(cell.outputs)
    _number(notebook)


def _joined(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """The outputs with neighbouring pieces of one stream put together: where a kernel cuts its text is chance."""
    joined: list[NotebookNode] = []
    for output in outputs:
        last = joined[-1] if joined else {}
        if output["output_type"] == last.get("output_type") == "stream" and output["name"] == last["name"]:
            last["text"] += output["text"]
        else:
            joined.append(output)
    return joined


def refuse(name: str, notebook: NotebookNode, places: Iterable[str]) -> None:
    """Raise `NotebookFailed` for output on stderr, a default object repr, or a path of this machine."""
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            where = f"{name}, code cell {cell.execution_count}{_tags(cell)}"
            if output.output_type == "stream" and output.name == "stderr":
                raise NotebookFailed(f"{where} wrote to stderr, which the book does not show: {output.text.strip()}")
            text = str(output.get("text", "")) + str(output.get("data", {}).get("text/plain", ""))
            if found := re.search(r"<[^<>]* at 0x[0-9a-f]{6,}>", text):
                raise NotebookFailed(f"{where} shows {found[0]}, which differs from run to run")
            if place := next((place for place in places if place in text), None):
                raise NotebookFailed(f"{where} shows {place}, a path of this machine")
