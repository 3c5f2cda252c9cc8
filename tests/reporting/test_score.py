"""Tables, figures and sentences say what the objective measures, in its own unit."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from hashroute import create_learner, run
from hashroute.cli.inspect import inspect_model, show
from hashroute.learners.objectives import OBJECTIVES, Objective, Rotation
from hashroute.reporting.live import Job, overview
from hashroute.reporting.page import make_report
from hashroute.reporting.results import per_task, summary
from hashroute.reporting.table import to_markdown
from hashroute.training.result import ACCURACY, Comparison, RunResult, Score
from support import Brightness, digits, short_recipe

Make = Callable[[type[Objective]], Path]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Gives the folder of a short run of `hrn` by an objective."""
    found: dict[type[Objective], Path] = {}

    def train(objective: type[Objective]) -> Path:
        if objective not in found:
            found[objective] = tmp_path_factory.mktemp(objective.__name__) / "run"
            learner = create_learner("hrn", (1, 8, 8), short_recipe(1), objective=objective)
            run(digits(2, 0.4), learner, folder=found[objective])
        return found[objective]

    return train


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objectives that a saved model can name."""
    for objective in (Brightness, Rotation):
        monkeypatch.setitem(OBJECTIVES, objective.name, objective)


def test_a_score_that_is_no_percentage_has_its_own_name_and_no_percent(trained: Make) -> None:
    folder = trained(Brightness)
    result = RunResult.from_dict(json.loads((folder / "result.json").read_text()))
    assert result.score == Score("negative error", percent=False)
    comparison = Comparison("digits", ["0 or 1", "2 or 3"], [], {}, runs=[result])
    table = summary(comparison)
    assert table.title == "digits: test negative error, mean over tasks"
    assert not any("ccuracy" in column.meaning or "%" in column.meaning for column in table.pick("task-aware").columns)
    assert f"{result.accuracy[-1][0]:.4f}" in to_markdown(per_task(comparison, {}))
    page = make_report([folder], "hashroute report")
    assert "Highest task-aware negative error (the task of each image is given): hrn -" in page.text
    assert "accuracy, %" not in page.text
    assert "Negative error matrices" in page.text


def test_inspect_and_the_live_table_name_it(trained: Make) -> None:
    folder = trained(Brightness)
    console = Console(width=100, file=io.StringIO(), record=True)
    show(inspect_model(folder), console)
    job = Job("hrn", 0, folder, 10**6)
    job.state = "running"
    console.print(overview([job], 1))
    told = console.export_text()
    assert "tasks, negative error" in told
    assert "negative error: task-aware -" in told
    assert "val. " in told
    assert "val., %" not in told
    assert "hrn, seed 0, %" not in told
    assert "% with a fork" not in told


def test_another_share_is_in_percent_under_its_own_name(trained: Make) -> None:
    text = make_report([trained(Rotation)], "hashroute report").text
    assert "Highest task-aware score (the task of each image is given): hrn " in text
    assert "Task-aware score right after learning / after the last task, %" in text


def test_runs_of_different_scores_are_not_compared(trained: Make) -> None:
    text = make_report([trained(Brightness), trained(Rotation)], "hashroute report").text
    assert "<h2>digits; negative error</h2>" in text
    assert "<h2>digits; score</h2>" in text


def test_files_without_a_score_hold_accuracy_in_percent() -> None:
    result = RunResult("vc", 0, accuracy=[[50.0]])
    assert "score_name" not in result.to_dict()
    assert RunResult.from_dict(result.to_dict()).score == ACCURACY
    other = RunResult("vc", 0, accuracy=[[0.5]], score_name="reward", score_percent=False)
    assert RunResult.from_dict(other.to_dict()) == other
