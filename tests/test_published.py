"""The shipped rows: found by their run alone, sealed, and never half-believed."""

import gzip
import json

import pandas as pd
import pytest

from shiftbound import InputError, published
from shiftbound.runs import Grid, Run, Scoring
from shiftbound.store import source_hash

RUNS = tuple(
    Run(task="dyck", encoding="rope", depth=1, width=16, seed=seed, lr=0.1 + 0.2, options=(("k", 2),))
    for seed in range(3)
)
ROWS = [
    {"family": "reference", "level": 32, "length": 32, "accuracy": 0.123456789, "w1": None,
     "token_cosine": [0.5, 1 / 3], "passed_gate": True, "data_hash": "12e4"},
    {"family": "tilt", "level": 0.1, "length": 40, "accuracy": 1.0, "w1": 2.5,
     "token_cosine": [0.25, 0.5], "passed_gate": True, "data_hash": "12e4"},
]  # fmt: skip
ABOUT = {"machine": "a machine", "date": "2026-12-01"}
GRID = Grid(RUNS, published="published")


def results(*runs: Run) -> list:
    return [(run, Scoring(), [{**row, "passed_gate": run.seed != 1} for row in ROWS]) for run in runs]


@pytest.fixture
def folder(tmp_path):
    assert published.append("published", results(*RUNS[:2]), ABOUT, tmp_path) == 2
    return tmp_path


def test_rows_come_back_by_their_run(folder):
    table = published.table(GRID, folder)
    assert table.seed.tolist() == [0, 0, 1, 1] and table.level.tolist() == [32, 0.1] * 2
    assert table.length.tolist() == [32, 40] * 2
    assert table.accuracy.tolist() == [0.1234568, 1.0] * 2
    assert table.w1.isna().tolist() == [True, False] * 2
    assert table.token_cosine[0] == [0.5, 0.3333333]
    assert table.passed_gate.tolist() == [True, True, False, False]
    assert set(table.data_hash) == {"12e4"} and set(table.k) == {2}
    assert set(table.source) == {source_hash("evaluation", "dyck")[:16]}
    assert published.lacking(GRID, folder) == [RUNS[2]]


def test_the_file_reads_well_without_this_package(folder):
    plain = pd.read_csv(folder / "published.csv.gz")
    assert plain.control.isna().all() and plain.passed_gate.tolist() == [True, True, False, False]
    assert plain.train_length.tolist() == [32] * 4 and plain.length.tolist() == [32, 40] * 2


def test_a_run_that_differs_in_any_field_is_another_run(folder):
    other = Grid((Run(task="dyck", encoding="rope", depth=1, width=16, options=(("k", 2),)),), published="published")
    assert published.lacking(other, folder) == list(other.runs)
    with pytest.raises(InputError, match="none of these 1 runs"):
        published.table(other, folder)


def test_the_provenance_counts_and_names(folder):
    told = published.provenance(folder=folder)
    assert (told["runs"], told["rows"], told["below_gate"]) == (2, 4, ["dyck-k2-rope-d1-w16-s1"])
    [[made]] = told["sources"].values()
    assert made["runs"] == 2 and made["machine"] == "a machine" and made["scoring"]["sequences"] == 256


def test_appending_keeps_what_is_there_and_adds_what_is_new(folder):
    before = published.table(Grid(RUNS[:2], published="published"), folder)
    assert published.append("published", results(RUNS[0]), ABOUT, folder) == 0
    assert published.append("published", results(*RUNS), ABOUT, folder) == 1
    after = published.table(GRID, folder)
    pd.testing.assert_frame_equal(after[:4], before)
    assert published.lacking(GRID, folder) == [] and published.provenance(folder=folder)["runs"] == 3


def _edit(text: bytes) -> bytes:
    return gzip.compress(gzip.decompress(text).replace(b"0.1234568", b"0.9234568"))


@pytest.mark.parametrize(
    ("which", "change", "said"),
    [
        ("csv.gz", _edit, "does not match the SHA-256"),
        ("csv.gz", lambda data: data[:40], "truncated"),
        ("csv.gz", lambda data: b"", "does not match the SHA-256"),
        ("csv.gz", lambda data: b"junk", "no gzip"),
        ("json", lambda data: data[: len(data) // 2], "no readable provenance"),
        ("json", lambda data: b"[]", "no readable provenance"),
        ("json", lambda data: json.dumps({**json.loads(data), "format": 9}).encode(), "format 9"),
    ],
)
def test_what_cannot_be_trusted_is_refused_and_left_alone(folder, which, change, said):
    file = folder / f"published.{which}"
    file.write_bytes(change(file.read_bytes()))
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for use in (
        lambda: published.table(GRID, folder),
        lambda: published.lacking(GRID, folder),
        lambda: published.append("published", results(RUNS[2]), ABOUT, folder),
    ):
        with pytest.raises(InputError, match=said):
            use()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_an_unknown_file_names_the_known_ones():
    with pytest.raises(InputError, match="'published_learning'"):
        Grid(RUNS, published="publish")
    with pytest.raises(InputError, match="'published_arithmetic'"):
        published.path("x")


def test_the_shipped_files_are_whole():
    for name in published.PUBLISHED:
        file = published.path(name)
        if file.exists():
            rows = published._rows(file)
            told = published.provenance(name)
            assert told["runs"] == len(rows) and told["rows"] == sum(map(len, rows.values()))
            assert file.stat().st_size <= 5e6
