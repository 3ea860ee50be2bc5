"""The ledger: which records it takes, which it refuses, and what a verdict needs to be shown."""

import json

import pytest

from shiftbound import InputError, claims


def notebook(path, *cells):
    """An executed notebook: each cell is (tags, record or None), or (tags, None, False) for one that did not run."""
    made = []
    for tags, entry, *ran in cells:
        outputs = (
            [] if entry is None else [{"output_type": "display_data", "data": {claims.MIME: entry}, "metadata": {}}]
        )
        count = None if ran == [False] else 1
        made.append(
            {
                "cell_type": "code",
                "metadata": {"tags": tags},
                "outputs": outputs,
                "execution_count": count,
                "source": "",
            }
        )
    path.write_text(json.dumps({"cells": made}))
    return path


def entry(claim="L2", verdict="refuted as worded", check="check-a"):
    return {"id": claim, "verdict": verdict, "evidence": {"x": 1}, "check": [check], "theorem": "thm-a"}


def by_id(rows):
    return {row["id"]: row for row in rows}


def test_a_row_is_shown_once_its_check_ran(tmp_path):
    path = notebook(tmp_path / "01_a.ipynb", (["check-a"], None), ([], entry()))
    rows = by_id(claims.collate([path]))
    assert len(rows) == 41 and rows["L2"]["shown"] and not rows["L1"]["shown"]
    assert rows["L2"]["records"][0]["notebook"] == "01_a"
    assert sum(claims.counts(rows.values()).values()) == 41


@pytest.mark.parametrize(
    "cells",
    [
        [([], entry())],  # the check is not there
        [([], entry()), (["check-a"], None)],  # it comes after
        [(["check-a"], None, False), ([], entry())],  # it did not run
    ],
)
def test_a_verdict_whose_check_did_not_run_is_refused(tmp_path, cells):
    with pytest.raises(InputError, match="check-a did not run"):
        claims.collate([notebook(tmp_path / "01_a.ipynb", *cells)])


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (entry(claim="L99"), "L99"),
        (entry(verdict="true"), "true"),
        (entry(verdict="proved"), "refuted as worded"),  # the ledger argues for another
    ],
)
def test_unknown_ids_and_verdicts_are_refused(tmp_path, bad, said):
    with pytest.raises(InputError, match=said):
        claims.collate([notebook(tmp_path / "01_a.ipynb", (["check-a"], None), ([], bad))])


def test_two_verdicts_for_one_row_are_refused(tmp_path):
    paths = [
        notebook(tmp_path / f"{name}.ipynb", (["check-a"], None), ([], entry("L6", verdict)))
        for name, verdict in (("10_a", "supported by measurement"), ("11_b", "contradicted by measurement"))
    ]
    with pytest.raises(InputError, match="10_a: supported by measurement; 11_b: contradicted"):
        claims.collate(paths)


def test_measured_rows_stay_open_under_smoke(tmp_path):
    path = notebook(tmp_path / "10_a.ipynb", (["check-a"], None), ([], entry("L6", "supported by measurement")))
    assert by_id(claims.collate([path]))["L6"]["verdict"] == "supported by measurement"
    smoke = by_id(claims.collate([path], smoke=True))["L6"]
    assert smoke["verdict"] == "to be measured" and smoke["shown"]


def test_every_row_of_the_ledger_has_a_verdict_of_the_vocabulary_and_a_chapter():
    for row in claims.rows().values():
        assert row["verdict"] in claims.VERDICTS and row["chapter"] and row["claim"], row["id"]


def test_record_refuses_at_once(capsys):
    for arguments, said in (
        (("L99", "proved", {"a": 1}), "L99"),
        (("L1", "certain", {"a": 1}), "certain"),
        (("L1", "proved", {}), "evidence"),
    ):
        with pytest.raises(InputError, match=said):
            claims.record(*arguments, check="check-a", theorem="thm-a")


def test_a_notebook_that_still_runs_is_counted_by_what_it_recorded(tmp_path):
    path = notebook(tmp_path / "01_a.ipynb", (["check-a"], None), ([], entry()))
    rows = by_id(claims.collate([path], also={"16_claims": [entry("L39", "ill-posed")]}))
    assert rows["L39"]["shown"] and rows["L39"]["records"][0]["notebook"] == "16_claims" and rows["L2"]["shown"]


def test_this_process_remembers_what_it_recorded(monkeypatch, capsys):
    monkeypatch.setattr(claims, "recorded", [])
    for evidence in (1, 2):
        claims.record("L2", "refuted as worded", {"x": evidence}, check="check-a", theorem="thm-a")
    assert [(each["id"], each["evidence"]) for each in claims.recorded] == [("L2", {"x": 2})]
    assert by_id(claims.collate([], also={"01_a": claims.recorded}))["L2"]["shown"]
