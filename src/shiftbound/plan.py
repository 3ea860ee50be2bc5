"""Which runs a profile asks for: the grids that its notebooks build, read without running the notebooks.

A notebook that needs trained models builds its `Grid` from its own parameters in cells tagged ``grid``. Here these
cells run after the parameters cell, with the profile's values put in place, so the sweep trains exactly what the
notebook will ask the store for.
"""

from __future__ import annotations

from pathlib import Path

from shiftbound import InputError
from shiftbound.runs import Grid, Profile


def grids(profile: Profile, notebooks: Path) -> dict[str, list[Grid]]:
    """The grids of every notebook in the folder ``notebooks`` that has any, by the notebook's name."""
    found = {}
    for path in sorted(notebooks.glob("[0-9][0-9]_*.md")):
        built = notebook_grids(path, profile.parameters(path.stem))
        if built:
            found[path.stem] = built
    return found


def notebook_grids(path: Path, parameters: dict[str, object]) -> list[Grid]:
    """The grids that one notebook builds with ``parameters`` in place of its own defaults."""
    if "grid" not in path.read_text(encoding="utf-8"):
        return []
    import jupytext

    cells = [cell for cell in jupytext.read(path).cells if cell.cell_type == "code"]
    names: dict[str, object] = {}
    for tag in ("parameters", "grid"):
        for cell in cells:
            if tag in cell.metadata.get("tags", []):
                try:
                    exec(compile(cell.source, f"{path.name}, cell {tag}", "exec"), names)
                except InputError as error:
                    raise InputError(f"{path.stem}: {error}") from error
        if tag == "parameters":
            names.update(parameters)
    return [value for value in names.values() if isinstance(value, Grid)]
