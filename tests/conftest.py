"""Shapes and types in the signatures of shiftbound are enforced while its tests run; the smoke book is built once."""

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

install_import_hook("shiftbound", "beartype.beartype")


@dataclass(frozen=True)
class SmokeBook:
    """The whole book under the profile smoke, built by the command line."""

    html: Path
    executed: Path
    environment: dict[str, str]
    said: str

    def call(self, *arguments: str, seconds: int = 600) -> subprocess.CompletedProcess[str]:
        """Call ``shiftbound`` on this book's folders."""
        command = [str(Path(sys.executable).with_name("shiftbound")), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment, timeout=seconds, check=False
        )


@pytest.fixture(scope="session")
def smoke_book() -> SmokeBook:
    """Built once a session; what did not change since the last session is taken from build/tests, as any build does."""
    folder = Path(__file__).parents[1] / "build" / "tests"
    environment = {**os.environ, "SHIFTBOUND_BUILD": str(folder), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    environment.pop("SHIFTBOUND_STORE", None)
    book = SmokeBook(folder / "html", folder / "notebooks" / "smoke", environment, "")
    done = book.call("build", "--profile", "smoke", seconds=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    return replace(book, said=done.stdout)
