"""Shapes and types in the signatures of shiftbound are enforced while its tests run; the smoke book is built once."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock
from jaxtyping import install_import_hook

install_import_hook("shiftbound", "beartype.beartype")


@dataclass(frozen=True)
class SmokeBook:
    """The whole book under the profile smoke, built by the command line."""

    html: Path
    executed: Path
    environment: dict[str, str]

    def call(self, *arguments: str, seconds: int = 600) -> subprocess.CompletedProcess[str]:
        """Call ``shiftbound`` on this book's folders."""
        command = [str(Path(sys.executable).with_name("shiftbound")), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, env=self.environment, timeout=seconds, check=False
        )


@pytest.fixture(scope="session")
def smoke_book() -> SmokeBook:
    """Built once a session, by whichever worker asks first; what did not change since the last session is taken from
    build/tests, as any build does."""
    folder = Path(__file__).parents[1] / "build" / "tests"
    environment = {**os.environ, "SHIFTBOUND_BUILD": str(folder), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}
    environment.pop("SHIFTBOUND_STORE", None)
    book = SmokeBook(folder / "html", folder / "notebooks" / "smoke", environment)
    folder.mkdir(parents=True, exist_ok=True)
    session, stamp = os.environ.get("PYTEST_XDIST_TESTRUNUID", ""), folder / "session"
    with FileLock(folder / "session.lock"):
        if not session or not stamp.is_file() or stamp.read_text() != session:
            done = book.call("build", "--profile", "smoke", seconds=1500)
            assert done.returncode == 0, done.stdout + done.stderr
            stamp.write_text(session)
    return book
