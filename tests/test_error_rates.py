"""Error counts: against counting by hand, on models that err where they are told to."""

import numpy as np
import pytest
import torch

from shiftbound import error_rates, tasks, training, words
from shiftbound.runs import Run, Scoring
from shiftbound.tasks import Shift


class Told(torch.nn.Module):
    """Answers rightly, except where the match is farther away than ``reach``."""

    def __init__(self, task: tasks.Task, reach: int) -> None:
        super().__init__()
        self.task, self.reach = task, reach

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        batch = self.task.label(tokens.numpy())
        said = np.maximum(batch.labels, 0)
        for row, word in enumerate(tokens[:, 1:].tolist()):
            stack = []
            for i, token in enumerate(word):
                stack = [*stack, i] if token <= self.task.k else stack[:-1]
                if token > self.task.k and stack and i - stack[-1] > self.reach:
                    said[row, i + 1] = (said[row, i + 1] + 1) % self.task.classes
        return torch.nn.functional.one_hot(torch.from_numpy(said), self.task.classes).float()


@pytest.mark.parametrize("name", ["dyck", "search"])
def test_counts_of_a_model_whose_errors_are_known(name):
    task = tasks.get(name)
    batch = task.sample(np.random.default_rng(0), 40, 64)
    found = error_rates.measure(Told(task, reach=31), task, batch)
    assert found["words"] == batch.hard.any(1).sum() and found["hard"] == batch.hard.sum() == sum(
        found["distance_hard"]
    )
    assert found["distance_errors"][:5] == [0] * 5 and found["distance_errors"][5:] == found["distance_hard"][5:]
    assert 0 < found["errors"] == sum(found["distance_errors"]) == sum(found["height_errors"])
    assert 0 < found["words_wrong"] < found["words"]
    assert 0 < found["picked_wrong"] <= found["words_wrong"]
    assert found["accuracy"] == pytest.approx(1 - found["errors"] / (batch.labels >= 0).sum())
    right = error_rates.measure(Told(task, reach=64), task, batch)
    assert right["errors"] == right["words_wrong"] == right["picked_wrong"] == 0 and right["accuracy"] == 1


def test_tops_and_heights_are_those_of_a_stack():
    task = tasks.get("dyck", k=3)
    batch = task.sample(np.random.default_rng(1), 30, 40)
    distance, height = error_rates.places(task, batch)
    for row in range(30):
        stack = []
        for i, token in enumerate(batch.tokens[row, 1:].tolist()):
            stack = [*stack, i] if token <= 3 else stack[:-1]
            if batch.hard[row, i + 1]:
                assert distance[row, i + 1] == i - stack[-1] and height[row, i + 1] == len(stack)
            else:
                assert distance[row, i + 1] == height[row, i + 1] == 0
    assert (error_rates.tops(words.all_words(1, 6), 1)[:, -1] == -1).all()
    assert error_rates.places(tasks.get("chain"), tasks.get("chain").sample(np.random.default_rng(0), 2, 8)) is None


def test_the_picked_position_is_uniform_over_a_words_hard_positions():
    """Over many seeds the picked errors average to the mean over words of each word's own share."""
    task = tasks.get("dyck")
    batch = task.sample(np.random.default_rng(2), 30, 48)
    model = Told(task, reach=9)
    missed = error_rates.wrong(model, batch) & batch.hard
    has = batch.hard.any(1)
    share = missed[has].sum(1) / batch.hard[has].sum(1)
    counts = np.array([error_rates.measure(model, task, batch, seed)["picked_wrong"] for seed in range(300)])
    error = np.sqrt((share * (1 - share)).sum() / 300)
    assert abs(counts.mean() - share.sum()) < 4.5 * error and counts.std() > 0


def test_rows_of_a_run():
    scoring = Scoring(measure="error_rates", sequences=16, states=16, max_length=128)
    run = Run(task="search", encoding="counter-soft", attention="stick-breaking", depth=1, width=16, steps=2, length=8)
    trained = training.train(run)
    rows = error_rates.score(trained, run, scoring)
    assert [(row["family"], row["length"]) for row in rows] == [
        *(("reference", 32), ("length", 64), ("length", 128)),
        *(("rounded", 32), ("rounded", 64), ("rounded", 128)),
    ]
    assert not trained.model.encoding.rounded
    assert all(row["words"] <= 16 and row["steps_taken"] == 2 and not row["passed_gate"] for row in rows)
    batch = tasks.get("search").evaluation_batch(Shift("length", 64, 64), 16)
    with torch.no_grad():
        said = trained.model(torch.from_numpy(batch.tokens)).argmax(-1).numpy()
    assert rows[1]["errors"] == ((said != batch.labels) & batch.hard).sum()


def test_a_learned_table_is_scored_up_to_its_last_row():
    run = Run(task="dyck", encoding="ape-offset", depth=1, width=16, steps=1)
    trained = training.Trained(training.build(run), run)
    scoring = Scoring(measure="error_rates", sequences=16, states=16, max_length=1024)
    assert [row["length"] for row in error_rates.score(trained, run, scoring)] == [32, 64, 128, 256]
