"""The rules of the house: floors, sizes, and no heavy import where none is needed."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shiftbound
from shiftbound.store import PACKAGE

MODULES = sorted(path for path in PACKAGE.rglob("*.py"))
LIGHT = (
    "transport",
    "words",
    "samples",
    "tasks",
    "runs",
    "statistics",
    "store",
    "plan",
    "claims",
    "exercises",
    "figures",
)


def floor_of(path: Path) -> str:
    """The module, or the package below shiftbound, that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def order() -> list[str]:
    """The modules in the order that the package's docstring lists them."""
    lines = [
        re.split(r"\s{3,}", line.strip())[0] for line in shiftbound.__doc__.splitlines() if line.startswith("    ")
    ]
    return [name.strip() for line in lines for name in line.split(",")]


def imported(path: Path) -> set[str]:
    """The floors that a file imports when it is imported or when its functions run; types alone do not count."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "shiftbound":
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shiftbound."):
            names.append(node.module.split(".")[1])
    return {name for name in names if name in order()}


def test_the_docstring_lists_every_module():
    assert sorted(order()) == sorted({floor_of(path) for path in MODULES} - {"__init__"})


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_imports_only_from_floors_below_and_is_short(path):
    own, place = floor_of(path), {name: i for i, name in enumerate(order())}
    if own != "__init__":
        above = sorted(name for name in imported(path) if name != own and place[name] > place[own])
        assert not above, f"{own} imports {above}, which the docstring lists above it"
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 350


def test_light_modules_load_nothing_heavy():
    code = (
        "import sys, importlib\n"
        f"for name in {LIGHT!r}: importlib.import_module('shiftbound.' + name)\n"
        "print([m for m in ('torch', 'ot', 'sympy', 'seaborn', 'matplotlib', 'distributed') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"
