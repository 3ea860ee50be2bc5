"""The build under test: on a small project of its own where it must fail, and on the whole book under smoke."""

import html.parser
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
import yaml
from packaging.requirements import Requirement

from shiftbound import InputError, book, claims, notebooks, pages
from shiftbound.book import Edition, Project
from shiftbound.pages import BuildFailed

ROOT = Path(__file__).parents[1]
NAMES = notebooks.names(ROOT / "notebooks")
HEAD = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

# A small chapter

"""
GOOD = """```{code-cell} ipython3
:tags: [parameters]

k = 2  # at least 1
```

```{code-cell} ipython3
:tags: [check, exact, check-small]

from shiftbound import require

require(k >= 1, "k", k, "a whole number of at least 1")
assert REPLACED
print(f"checked at k = {k}")
```
"""


@pytest.fixture
def project(tmp_path) -> Project:
    """A checkout with one small notebook, and with an old book in its place."""
    root = tmp_path / "checkout"
    shutil.copytree(ROOT / "book", root / "book", ignore=shutil.ignore_patterns("results", "*.md", "__pycache__"))
    (root / "book" / "intro.md").write_text("# A small book\n\n```{include} _status.md\n```\n")
    toc = {"format": "jb-book", "root": "intro", "chapters": [{"file": "notebooks/01_small"}]}
    (root / "book" / "_toc.yml").write_text(yaml.safe_dump(toc))
    for name in ("smoke", "laptop"):
        (root / "book" / "profiles" / f"{name}.toml").write_text('about = "a test"\n')
    (root / "notebooks").mkdir()
    write(root, "k * (k + 1) % 2 == 0")
    old = tmp_path / "build" / "html"
    old.mkdir(parents=True)
    (old / "index.html").write_text("the old book")
    (old / "provenance.json").write_text("{}")
    return Project(root, tmp_path / "build")


def write(root: Path, condition: str) -> None:
    (root / "notebooks" / "01_small.md").write_text(HEAD + GOOD.replace("REPLACED", condition))


def old_book_stays(project: Project) -> bool:
    left = {path.name for path in project.build.iterdir() if not path.name.endswith(".lock")}
    return (project.build / "html" / "index.html").read_text() == "the old book" and left <= {"html", "notebooks"}


def silent(text: str) -> None:
    pass


# Where it must fail -----------------------------------------------------------------------------------------------


def test_a_failing_cell_stops_the_build_and_the_old_book_stays(project):
    write(project.root, "1/0")
    with pytest.raises(BuildFailed) as caught:
        book.build("smoke", project=project, say=silent)
    said = str(caught.value)
    assert said.startswith("01_small, code cell 2 (check, exact, check-small) failed with ZeroDivisionError")
    assert "Traceback" in said and "assert 1/0" in said and "\x1b" not in said
    assert old_book_stays(project)
    assert not list((project.build / "notebooks").rglob("*.ipynb"))


def test_a_hypothesis_that_does_not_hold_is_one_sentence_and_no_file_is_left(project):
    target = project.build / "out.ipynb"
    with pytest.raises(BuildFailed) as caught:
        book.run("01", {"k": "0"}, profile="smoke", output=target, project=project)
    where = "01_small, code cell 3 (check, exact, check-small)"
    assert str(caught.value) == f"{where}: k = 0 is not allowed; it must be a whole number of at least 1"
    assert not target.exists()


def test_pages_with_a_warning_are_refused_and_the_old_book_stays(project):
    with open(project.root / "notebooks" / "01_small.md", "a") as file:
        file.write("\nSee {prf:ref}`thm-nowhere` and {cite}`nobody1900`.\n")
    with pytest.raises(BuildFailed, match=r"refused the pages:\n(.|\n)*01_small.ipynb(.|\n)*nobody1900"):
        book.build("smoke", project=project, say=silent)
    assert old_book_stays(project)


def test_others_are_taken_only_from_an_execution_that_is_there(project):
    (project.root / "notebooks" / "02_other.md").write_text(HEAD + GOOD.replace("REPLACED", "k"))
    with pytest.raises(InputError, match="01_small cannot be taken from the last build of 'smoke', which has none"):
        book.build("smoke", ["02"], project=project, say=silent)
    assert old_book_stays(project)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('about = "x"\n[notebooks.01_small]\nkk = 1\n', "profile 'smoke': 01_small has no parameter 'kk'"),
        ('about = "x"\n[notebooks.01_small]\nk = 1.5\n', "profile 'smoke': k = 1.5 is not allowed"),
        ('about = "x"\n[notebooks.09_gone]\nk = 1\n', "profile 'smoke' sets parameters of 09_gone; there is no such"),
        ("[notebooks]\n", "profile 'smoke' must hold a line 'about'"),
    ],
)
def test_a_profile_is_held_to_the_notebooks(project, text, said):
    (project.root / "book" / "profiles" / "smoke.toml").write_text(text)
    with pytest.raises(InputError, match=re.escape(said)):
        Edition(project, "smoke")


def test_a_folder_that_holds_something_else_is_not_overwritten(project, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(InputError, match="must be absent, empty, or a book built before"):
        book.build("smoke", output=mine, project=project, say=silent)
    with pytest.raises(InputError, match="a file is in its place"):
        book.build("smoke", output=mine / "thesis.txt", project=project, say=silent)
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_a_rename_that_fails_brings_the_old_book_back(project, tmp_path, monkeypatch):
    new = tmp_path / "new"
    new.mkdir()
    rename = os.replace

    def fails(source, target):
        if Path(source).name == "new":
            raise OSError("no")
        rename(source, target)

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="no"):
        pages.swap(new, project.build / "html")
    assert old_book_stays(project)


def test_books_finished_at_once_leave_one_whole_book(project, tmp_path):
    threads = []
    for index in range(8):
        new = tmp_path / f"new{index}"
        new.mkdir()
        for name in ("a.html", "b.html"):
            (new / name).write_text(str(index))
        threads.append(threading.Thread(target=pages.swap, args=(new, project.build / "html")))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = project.build / "html"
    assert sorted(path.name for path in found.iterdir()) == ["a.html", "b.html"]
    assert (found / "a.html").read_text() == (found / "b.html").read_text()
    assert [path.name for path in project.build.iterdir() if path.is_dir()] == ["html"]


def test_what_decides_an_executed_notebook(project):
    edition = Edition(project, "smoke")
    key = edition.key("01_small")
    assert Edition(project, "smoke").key("01_small") == key
    assert Edition(project, "laptop").key("01_small") != key
    (project.root / "book" / "results").mkdir()
    (project.root / "book" / "results" / "published.csv.gz").write_bytes(b"rows")
    assert edition.key("01_small") == key  # it reads no rows
    write(project.root, "k")
    assert edition.key("01_small") != key
    path = project.root / "notebooks" / "01_small.md"
    path.write_text(path.read_text().replace("import require", "import engine, require"))
    reading = edition.key("01_small")
    (project.root / "book" / "results" / "published.csv.gz").write_bytes(b"other rows")
    assert edition.key("01_small") != reading


# The set-up -------------------------------------------------------------------------------------------------------


def test_conda_has_the_bounds_of_pyproject():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = declared["optional-dependencies"]
    wanted = {str(Requirement(text)) for text in [*declared["dependencies"], *extras["test"], *extras["lab"]]}
    conda = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    listed = conda["dependencies"][-1]["pip"]
    assert f"python{declared['requires-python']}" in conda["dependencies"]
    assert {str(Requirement(text)) for text in listed if not text.startswith("-")} == wanted
    assert listed[-1] == "-e ."


def test_the_lock_pins_what_pyproject_asks_for():
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    normal = {re.sub(r"[-_.]+", "-", name).lower(): pin for name, pin in pins.items()}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = [text for extra in declared["optional-dependencies"].values() for text in extra]
    for text in [*declared["dependencies"], *extras]:
        asked = Requirement(text)
        assert asked.specifier.contains(normal[re.sub(r"[-_.]+", "-", asked.name).lower()]), text
    assert not [pin for pin in pins.values() if "+" in pin or "/" in pin]


def test_continuous_integration_calls_the_test_command_of_the_readme():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    text = script.read_text(encoding="utf-8")
    assert "SHIFTBOUND_REQUIRE_BROWSER=1" in text and text.rstrip().endswith("make test")
    assert "make test" in (ROOT / "README.md").read_text(encoding="utf-8")


# The whole book under smoke ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_every_notebook_runs_under_smoke(smoke_book):
    assert sorted(path.stem for path in smoke_book.executed.glob("*.ipynb")) == NAMES
    for path in smoke_book.executed.glob("*.ipynb"):
        found = nbformat.read(path, as_version=4)
        nbformat.validate(found)
        cells = [cell for cell in found.cells if cell.cell_type == "code"]
        assert all(cell.execution_count for cell in cells)
        assert not [o for cell in cells for o in cell.outputs if o.output_type == "error"]
        record = json.loads(path.with_suffix(".json").read_text())
        assert record["seconds"] > 0 and record["versions"]["numpy"]


@pytest.mark.slow
def test_a_second_build_executes_nothing_and_changes_no_byte(smoke_book, tmp_path):
    before = {path.name: path.read_bytes() for path in smoke_book.executed.iterdir()}
    done = smoke_book.call("build", "--profile", "smoke", "--output", str(tmp_path / "html"), seconds=240)
    assert done.returncode == 0, done.stderr
    assert "executed" not in done.stdout
    assert {path.name: path.read_bytes() for path in smoke_book.executed.iterdir()} == before


def again(name: str, values: dict, folder: Path, environment: dict) -> bytes:
    target = folder / f"{name}.ipynb"
    notebooks.execute(ROOT / "notebooks" / f"{name}.md", target, values, environment, 600)
    return target.read_bytes()


def edition_of(smoke_book) -> Edition:
    return Edition(Project(ROOT, smoke_book.html.parent), "smoke")


@pytest.mark.slow
def test_executing_again_gives_the_same_bytes(smoke_book, tmp_path):
    """Every notebook once more, from the store that the build left."""
    edition = edition_of(smoke_book)
    told = {**edition.environment(), "SHIFTBOUND_EXECUTED": str(smoke_book.executed)}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        asked = {name: pool.submit(again, name, edition.values[name], tmp_path, told) for name in NAMES}
        different = [
            n for n, each in asked.items() if each.result() != (smoke_book.executed / f"{n}.ipynb").read_bytes()
        ]
    assert different == []


PERTURBED = {
    "01_kantorovich_duality": {"seed": "1"},
    "02_ood_bound": {"seed": "1"},
    "03_absolute_positions": {"seed": "1"},
    "04_rotary_positions": {"seed": "1"},
    "05_dyck_depth": {"seed": "1"},
    "06_width_depth_barron": {"seed": "1"},
    "07_two_collapses": {"seed": "1"},
    "08_arithmetic": {"modulus": "55"},
    "09_tasks_and_shifts": {"seed": "1"},
    "10_sweep": {"encodings": "['ape']"},
    "11_positions": {"extended_depths": "[2]"},
    "12_depth_width": {"deep_depths": "[1, 2]"},
    "13_w1_monitor": {"seed": "1"},
    "14_arithmetic_generalisation": {"modulus": "27"},
    "15_learning_the_solution": {"seed": "1"},
    "16_claims": {"sources": "['A']"},
}


def outputs(path: Path) -> list:
    cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]
    return [cell.outputs for cell in cells if "injected-parameters" not in cell.metadata.get("tags", [])]


@pytest.mark.slow
def test_another_parameter_changes_the_outputs(smoke_book, tmp_path):
    """One perturbed run a notebook; the static test sees that every parameter is read."""
    assert sorted(PERTURBED) == NAMES
    edition = edition_of(smoke_book)
    told = {**edition.environment(), "SHIFTBOUND_EXECUTED": str(smoke_book.executed)}
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        asked = {}
        for name, given in PERTURBED.items():
            typed = notebooks.typed(edition.project.read(name), given, where=name)
            asked[name] = pool.submit(again, name, edition.values[name] | typed, tmp_path, told)
        for each in asked.values():
            each.result()
    same = [
        name for name in NAMES if outputs(tmp_path / f"{name}.ipynb") == outputs(smoke_book.executed / f"{name}.ipynb")
    ]
    assert same == []


def test_every_page_carries_stamp_and_provenance(smoke_book):
    found = [
        path for path in smoke_book.html.rglob("*.html") if "_static" not in path.parts and path.name != "index.html"
    ]
    assert len(found) > len(NAMES) + 5
    for path in found:
        text = path.read_text(encoding="utf-8")
        assert text.count("smoke: the numbers mean nothing") >= 1, path
        for key in ("commit", "profile", "rendered", "machine", "versions", "trained runs, summed over pages"):
            assert f"<dt>{key}</dt>" in text, (path, key)
    for name in NAMES:
        text = (smoke_book.html / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
        assert "<dt>parameters</dt>" in text and "<dt>executed</dt>" in text


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.links, self.outside = set(), [], []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        for key in ("href", "src"):
            if found.get(key):
                loaded = tag in ("script", "img", "iframe", "source", "link")
                self.links.append((tag, found[key]))
                if loaded and urlsplit(found[key]).scheme in ("http", "https"):
                    self.outside.append(found[key])


def test_every_link_inside_the_book_leads_somewhere(smoke_book):
    parsed = {}
    for path in smoke_book.html.rglob("*.html"):
        if "_static" not in path.parts:
            parsed[path.resolve()] = Links()
            parsed[path.resolve()].feed(path.read_text(encoding="utf-8"))
    broken = []
    for path, page in parsed.items():
        assert page.outside == []
        for _, link in page.links:
            parts = urlsplit(link)
            if parts.scheme or link == "#":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists() or (anchor and target in parsed and anchor not in parsed[target].ids):
                broken.append((path.name, link))
    assert broken == []


def test_the_download_is_the_executed_notebook(smoke_book):
    for name in NAMES:
        served = smoke_book.html / "_sources" / "notebooks" / f"{name}.ipynb"
        assert served.read_bytes() == (smoke_book.executed / f"{name}.ipynb").read_bytes()
        assert f"_sources/notebooks/{name}.ipynb" in (smoke_book.html / "notebooks" / f"{name}.html").read_text()


def test_the_ledger_of_the_book_is_the_ledger_of_its_notebooks(smoke_book):
    ledger = claims.collate(smoke_book.executed.glob("*.ipynb"), smoke=True)
    left = json.loads((smoke_book.html.parent / "claims.json").read_text())
    assert left["profile"] == "smoke" and left["rows"] == json.loads(json.dumps(ledger))
    shown = sum(row["shown"] for row in ledger)
    intro = re.sub(r"<[^>]+>", "", (smoke_book.html / "intro.html").read_text(encoding="utf-8"))
    assert re.search(rf"The ledger has\s+{len(ledger)}\s+sentences", intro)
    assert re.search(rf"evidence for\s+{shown}\s+of them", intro)
    assert {row["verdict"] for row in ledger} & set(claims.MEASURED) == set()


def test_one_notebook_alone_takes_the_others_as_they_are(smoke_book, tmp_path):
    before = {path.name: path.stat().st_mtime_ns for path in smoke_book.executed.glob("*.ipynb")}
    done = smoke_book.call("build", "--profile", "smoke", "--notebook", "16", "--output", str(tmp_path / "html"))
    assert done.returncode == 0, done.stderr
    after = {path.name: path.stat().st_mtime_ns for path in smoke_book.executed.glob("*.ipynb")}
    assert {name for name in before if before[name] != after[name]} == {"16_claims.ipynb"}


def test_outside_of_a_checkout_it_says_so(tmp_path):
    """A copy of the package without the notebooks beside it."""
    shutil.copytree(
        ROOT / "src" / "shiftbound", tmp_path / "lib" / "shiftbound", ignore=shutil.ignore_patterns("__pycache__")
    )
    code = "from shiftbound.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "build"], cwd=tmp_path / "lib", capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "lib")},
    )  # fmt: skip
    assert done.returncode == 1
    assert "outside of its checkout" in done.stderr and "Traceback" not in done.stderr
