"""Runs, grids and profiles: what is refused before anything trains, and what the sweep will train."""

import dataclasses

import pytest

from shiftbound import InputError, plan
from shiftbound.runs import Run, Scoring, grid, profile, union
from shiftbound.store import root

GOOD = {"task": "dyck", "encoding": "rope", "depth": 2, "width": 64}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"task": "sorting"}, "'dyck', 'search', 'chain', 'scoping', 'arithmetic'"),
        ({"encoding": "rotary"}, "'rope'"),
        ({"depth": 0}, "depth = 0"),
        ({"width": 40}, "multiple of the head size 16"),
        ({"width": 0}, "multiple of the head size 16"),
        ({"steps": 0}, "steps = 0"),
        ({"batch": 1}, "batch = 1"),
        ({"seed": -1}, "seed = -1"),
        ({"lr": float("nan")}, "lr = nan"),
        ({"dropout": 1.0}, "dropout = 1.0"),
        ({"control": "nonsense"}, "shuffled-labels"),
    ],
)
def test_a_run_that_cannot_be_built_is_refused(change, said):
    with pytest.raises(InputError) as caught:
        Run(**{**GOOD, **change})
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_every_field_reaches_the_key():
    run = Run(**GOOD)
    other = {
        "task": "search",
        "encoding": "ape",
        "control": "shuffled-labels",
        "options": (("k", 3),),
        "early_stop": False,
        "attention": "stick-breaking",
        "log_scale": True,
    }
    for field in dataclasses.fields(Run):
        value = getattr(run, field.name)
        changed = other.get(
            field.name, 16 * (value + 1) if field.name == "width" else value + 0.5 if isinstance(value, float) else None
        )
        changed = value + 2 if changed is None else changed
        assert dataclasses.replace(run, **{field.name: changed}).canonical() != run.canonical(), field.name


def test_the_54_configurations():
    axes = {"encodings": ["ape", "rope"], "depths": [1, 2, 4], "widths": [32, 64, 128]}
    runs = grid(tasks=["dyck", "chain", "scoping"], **axes).runs
    assert len(set(runs)) == 54
    assert {run.steps for run in runs if run.task == "dyck"} == {1000}
    assert {run.steps for run in runs if run.task == "chain"} == {2000}
    assert {run.lr for run in grid(tasks=["dyck"], encodings=["ape"], depths=[4, 8], widths=[64]).runs} == {
        3e-3,
        1.5e-3,
    }


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tasks": []}, "tasks"),
        ({"tasks": ["dyck", "dyk"]}, "'dyk'"),
        ({"step_factor": 0.0}, "step_factor"),
        ({"heads": 4}, "heads"),
        ({"seeds": [0, 0]}, "without repetition"),
    ],
)
def test_a_grid_names_what_is_wrong(change, said):
    with pytest.raises(InputError, match=said):
        grid(**{"tasks": ["dyck"], "encodings": ["rope"], "depths": [1], "widths": [32], **change})


def test_a_union_asks_for_each_pair_once():
    one = grid(tasks=["dyck"], encodings=["rope"], depths=[1, 2], widths=[32])
    two = grid(tasks=["dyck"], encodings=["rope"], depths=[2, 4], widths=[32])
    other = grid(tasks=["dyck"], encodings=["rope"], depths=[2], widths=[32], scoring=Scoring(draws=7))
    assert len(union([one, two])) == 3 and len(union([one, other])) == 3


@pytest.mark.parametrize("name", ["smoke", "laptop", "published", "paper"])
def test_every_profile_builds_its_run_list(name):
    settings = profile(name, root() / "book" / "profiles")
    grids = plan.grids(settings, root() / "notebooks")
    assert settings.about and "10_sweep" in grids and len(union(g for each in grids.values() for g in each)) >= 8


@pytest.mark.parametrize(
    ("text", "said"),
    [("about = 1", "about"), ("x = 1", "about"), ("about = 'a'\nextra = 1", "extra"), ("about =", "cannot be read")],
)
def test_a_profile_that_says_something_else_is_refused(tmp_path, text, said):
    (tmp_path / "smoke.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        profile("smoke", tmp_path)
    with pytest.raises(InputError, match="'smoke', 'laptop', 'published', 'paper'"):
        profile("laptob", tmp_path)


def test_a_notebooks_grid_follows_its_parameters(tmp_path):
    path = tmp_path / "10_x.md"
    path.write_text(
        "---\nkernelspec:\n  name: python3\n  display_name: p\n---\n\n```{code-cell} ipython3\n:tags: [parameters]\n\n"
        "depths = [1]\n```\n\n```{code-cell} ipython3\n:tags: [grid]\n\nfrom shiftbound import runs\n"
        "g = runs.grid(tasks=['dyck'], encodings=['rope'], depths=depths, widths=[32])\n```\n"
    )
    assert [len(g) for g in plan.notebook_grids(path, {})] == [1]
    assert [len(g) for g in plan.notebook_grids(path, {"depths": [1, 2, 4]})] == [3]
    with pytest.raises(InputError, match="10_x: depth = 0"):
        plan.notebook_grids(path, {"depths": [0]})
