"""Every notebook's form, and parameters: what a user types means what it says."""

import ast
import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest

from shiftbound import InputError, notebooks
from shiftbound.notebooks import NotebookFailed, Parameter, UsageError

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.md"))
KINDS = {"symbolic", "exact", "exhaustive", "numeric"}


@pytest.fixture(scope="module", params=SOURCES, ids=lambda path: path.stem)
def source(request):
    return request.param


@pytest.fixture(scope="module")
def notebook(source):
    return notebooks.read(source)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


# The form of every notebook ---------------------------------------------------------------------------------------


def test_notebook_has_a_kernel_and_no_outputs(notebook):
    assert notebook.metadata.kernelspec.name == "python3"
    assert all(not cell.outputs and cell.execution_count is None for cell in code_cells(notebook))


def test_parameters_are_literals_with_a_comment(notebook):
    found = notebooks.parameters(notebook)
    assert found, "no parameters cell"
    assert len(notebooks.tagged(notebook, "parameters")) == 1
    assert [name for name, parameter in found.items() if not parameter.comment] == []


def test_every_parameter_is_read_by_a_later_cell(notebook):
    """In the syntax tree: loaded as a name, or inside an f-string, in a cell after the parameters cell."""
    cells = code_cells(notebook)
    start = next(i for i, cell in enumerate(cells) if "parameters" in cell.metadata.get("tags", []))
    read = {
        node.id
        for cell in cells[start + 1 :]
        for node in ast.walk(ast.parse(re.sub(r"(?m)^\s*[%!].*$", "", cell.source)))
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    assert set(notebooks.parameters(notebook)) - read == set()


def test_checks_say_their_kind_and_have_a_tag_of_their_own(notebook):
    tags = [set(cell.metadata.get("tags", [])) for cell in code_cells(notebook)]
    checks = [each for each in tags if "check" in each]
    assert [each for each in checks if len(each & KINDS) != 1] == []
    own = Counter(tag for each in checks for tag in each if tag.startswith("check-"))
    assert sum(own.values()) == len(checks) and set(own.values()) <= {1}
    asserting = ["assert" in cell.source for cell in code_cells(notebook) if "check" in cell.metadata.get("tags", [])]
    assert all(asserting)


def test_glued_names_carry_the_chapter(source, notebook):
    glued = {name for cell in code_cells(notebook) for name in re.findall(r'\bglue\(\s*f?"([^"]*)"', cell.source)}
    assert [name for name in glued if not name.startswith(f"ch{source.stem[:2]}-")] == []


def test_labels_are_unique_in_the_book():
    labels = Counter()
    for path in [*SOURCES, *(ROOT / "book").glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        labels.update(re.findall(r"^:label: (\S+)", text, re.MULTILINE))
        labels.update(re.findall(r"^\$\$ \(([^)]+)\)", text, re.MULTILINE))
        labels.update(re.findall(r"^ +name: (fig-\S+|tab-\S+)", text, re.MULTILINE))
        labels.update(re.findall(r"^\(([a-zA-Z0-9_-]+)\)=$", text, re.MULTILINE))
    assert [label for label, count in labels.items() if count > 1] == []


def test_contents_list_every_notebook_in_order():
    listed = re.findall(r"file: notebooks/(\S+)", (ROOT / "book" / "_toc.yml").read_text(encoding="utf-8"))
    assert listed == [path.stem for path in SOURCES]


# Parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("default", "text", "value"),
    [
        (True, "false", False),
        (False, "True", True),
        (1, "7", 7),
        (1, "-3", -3),
        (1, "1_000", 1000),
        (0.5, "1e-3", 0.001),
        (0.5, "2", 2.0),
        ("a", "true", "true"),
        ("a", "007", "007"),
        ("a", "none", "none"),
        (None, "none", None),
        (None, "3", 3),
        (None, "1e-3", 0.001),
        (None, "rope", "rope"),
        ([1], "[2,4,8]", [2, 4, 8]),
        ([1.0], "[1, 2.5]", [1.0, 2.5]),
        (["a"], "['rope', 'ape']", ["rope", "ape"]),
        ([True], "[true, false]", [True, False]),
        ([1, 2], "(3, 4)", [3, 4]),
        ([], "[1, 'a']", [1, "a"]),
    ],
)
def test_a_value_means_what_it_says(default, text, value):
    parsed = Parameter("p", default).parse(text)
    assert parsed == value and type(parsed) is type(value)
    if isinstance(value, list):
        assert [type(item) for item in parsed] == [type(item) for item in value]


@pytest.mark.parametrize(
    ("default", "text", "kind"),
    [
        (1, "2.5", "a whole number"),
        (1, "true", "a whole number"),
        (1, "none", "a whole number"),
        (1, "two", "a whole number"),
        (0.5, "fast", "a number"),
        (0.5, "true", "a number"),
        (True, "1", "true or false"),
        (True, "yes", "true or false"),
        ([1], "3", "a list of whole numbers"),
        ([1], "[1.5]", "a whole number"),
        ([1], "[1", "a list of whole numbers"),
    ],
)
def test_a_value_of_another_type_is_refused_in_one_sentence(default, text, kind):
    with pytest.raises(UsageError, match=f"^p = .* is not allowed; it must be {kind}") as caught:
        Parameter("p", default).parse(text)
    assert "\n" not in str(caught.value)


def test_none_is_allowed_where_the_comment_says_so():
    assert Parameter("cap", 6, "largest height, or none").parse("none") is None
    assert Parameter("cap", 6, "largest height, or none").parse("4") == 4


def test_a_misspelt_parameter_is_refused_with_the_nearest_ones_and_the_list():
    found = notebooks.read(ROOT / "notebooks" / "10_sweep.md")
    with pytest.raises(UsageError, match=r"no parameter 'dephts' \(did you mean depths.*it has tasks, encodings"):
        notebooks.typed(found, {"dephts": "[1]"}, where="10_sweep")


def test_parameters_must_be_literals():
    cell = nbformat.v4.new_code_cell("n = 4\nm = n + 1", metadata={"tags": ["parameters"]})
    with pytest.raises(InputError, match=r"holds 'm = n \+ 1'; it must hold literals only"):
        notebooks.parameters(nbformat.v4.new_notebook(cells=[cell]))


def test_only_what_differs_from_the_defaults_is_injected():
    cell = nbformat.v4.new_code_cell("n = 4  # length\nlr = 1.0  # rate", metadata={"tags": ["parameters"]})
    book = nbformat.v4.new_notebook(cells=[cell])
    assert notebooks.settle(book, {"n": 4, "lr": 2}, where="x") == {"lr": 2.0}


@pytest.mark.parametrize(("given", "found"), [("16", "16_claims"), ("notebooks/16_claims.md", "16_claims")])
def test_a_notebook_is_named_by_number_or_path(given, found):
    assert notebooks.resolve(given, ROOT / "notebooks") == found


def test_an_unknown_notebook_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"no notebook '16_claim' \(did you mean 16_claims"):
        notebooks.resolve("16_claim", ROOT / "notebooks")


# Outputs ----------------------------------------------------------------------------------------------------------


def executed_cell(output):
    cell = nbformat.v4.new_code_cell("x", outputs=[output], execution_count=3, metadata={"tags": ["check", "check-x"]})
    return nbformat.v4.new_notebook(cells=[cell])


def test_output_on_stderr_is_refused():
    book = executed_cell(nbformat.v4.new_output("stream", name="stderr", text="UserWarning: no\n"))
    with pytest.raises(NotebookFailed, match=r"^01_x, code cell 3 \(check, check-x\) wrote to stderr.*UserWarning: no"):
        notebooks.refuse("01_x", book, ())


def test_a_default_repr_is_refused():
    book = executed_cell(
        nbformat.v4.new_output("execute_result", data={"text/plain": "<function f at 0x7f00aa11bb22>"})
    )
    with pytest.raises(NotebookFailed, match="shows <function f at 0x7f00aa11bb22>"):
        notebooks.refuse("01_x", book, ())


def test_a_path_is_refused():
    book = executed_cell(nbformat.v4.new_output("stream", name="stdout", text="saved to /home/me/book/x.npy"))
    with pytest.raises(NotebookFailed, match="a path of this machine"):
        notebooks.refuse("01_x", book, ("/home/me/book",))
    notebooks.refuse("01_x", book, ("/elsewhere",))


def test_normalising_drops_time_and_chance():
    book = executed_cell(nbformat.v4.new_output("stream", name="stdout", text="same"))
    other = executed_cell(nbformat.v4.new_output("stream", name="stdout", text="same"))
    book.cells[0].metadata["execution"] = {"iopub.execute_input": "2026-01-01T00:00:00Z"}
    book.cells[0].metadata["papermill"] = {"duration": 1.5}
    book.metadata["papermill"] = {"input_path": "/somewhere"}
    for each in (book, other):
        notebooks.normalise(each)
    assert nbformat.writes(book) == nbformat.writes(other)
    assert book.cells[0].metadata["tags"] == ["check", "check-x"]


def test_a_text_that_came_in_pieces_is_one_text():
    def stream(name, text):
        return nbformat.v4.new_output("stream", name=name, text=text)

    cell = nbformat.v4.new_code_cell("print()")
    cell.outputs = [stream("stdout", "a"), stream("stdout", "\n"), stream("stderr", "b"), stream("stdout", "c")]
    made = nbformat.v4.new_notebook(cells=[cell])
    notebooks.normalise(made)
    assert [(each.name, each.text) for each in made.cells[0].outputs] == [
        ("stdout", "a\n"),
        ("stderr", "b"),
        ("stdout", "c"),
    ]
