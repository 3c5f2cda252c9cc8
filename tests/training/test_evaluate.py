"""What is measured in a run: accuracy with and without the task, routing, decisions, and samples."""

from __future__ import annotations

import base64
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from hashroute import Learner, RunResult, Scenario, create_learner, load_learner, run
from hashroute.learners import learner_names
from hashroute.learners.entries import TaskEntry
from hashroute.learners.objectives import OBJECTIVES, Objective, Rotation
from hashroute.tasks import Split
from hashroute.training import metrics
from hashroute.training.evaluate import flow, task_free_accuracy
from hashroute.training.run_folder import RunFolder
from hashroute.training.samples import samples
from support import Brightness, Stored, assert_same, digits, learned, short_recipe


def check_result(result: RunResult, learner: Learner, scenario: Scenario) -> None:
    """A result says what a learner of this scenario can do, and what it weighs."""
    count = len(scenario.tasks)
    assert len(result.accuracy) == count
    assert all(value is not None and 0 <= value <= 100 for value in result.accuracy[-1])
    for index, task in enumerate(scenario.tasks):
        right = learner.predict(task.test.images, index) == task.test.labels
        assert result.accuracy[-1][index] == pytest.approx(100 * right.double().mean().item())
        assert metrics.unpack(result.right[index]).tolist() == right.tolist()
        first = result.accuracy[-1 if result.at_once else index][index]
        assert 100 * metrics.unpack(result.right_after[index]).mean() == pytest.approx(first)
    assert result.parameters == learner.parameter_counts()
    assert result.bytes_kept == learner.bytes_kept()
    assert result.images == sum(
        learner.recipe.epochs_of(index) * len(task.train) for index, task in enumerate(scenario.tasks)
    )
    assert set(result.task_free) == {"all_classes", "dataset"}
    assert all(0 <= share <= 100 for share in result.task_free.values())


@pytest.mark.parametrize("name", learner_names())
def test_every_learner_runs_and_what_it_leaves_can_be_loaded(name: str, tmp_path: Path) -> None:
    result, learner = run(digits(3), name, short_recipe(1), folder=tmp_path)
    check_result(result, learner, digits(3))
    assert_same(load_learner(tmp_path), learner)
    again, _ = run(digits(3), name, short_recipe(1))
    assert (again.accuracy, again.task_free) == (result.accuracy, result.task_free), "the same seed, the same numbers"


@pytest.mark.parametrize("name", ["hrn", "joint"])
@pytest.mark.parametrize("objective", [Rotation, Brightness])
def test_a_run_is_measured_by_the_score_of_its_objective(
    objective: type[Objective], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OBJECTIVES, objective.name, objective)
    records: list[dict[str, Any]] = []
    learner = create_learner(name, (1, 8, 8), short_recipe(1, augment=False), objective=objective.name)
    result, _ = run(digits(), learner, folder=tmp_path, on_epoch=records.append)
    for index, task in enumerate(digits().tasks):
        score = learner.scores(task.test, learner.tasks[index]).double().mean().item()
        assert result.accuracy[-1][index] == pytest.approx(objective.score_factor * score)
    assert (result.task_free, result.right, result.right_after) == ({}, [], []), "there are no classes to compare"
    for record in records:
        assert (0 < record["train_accuracy"] < 100) == (objective is Rotation)
        assert (record["validation_accuracy"] < 0) == (objective is Brightness), "a squared error, negated"
    found = RunFolder(tmp_path).read()
    assert (found.samples, found.result) == ([], result)


@pytest.mark.parametrize("name", ["vc", "hrn", "hrn-paper"])
def test_an_epoch_reads_validation_images_only_where_they_are_needed(name: str) -> None:
    first = digits(1, 0.5).tasks[0]
    stored = Stored(first.validation.images)
    task = replace(first, validation=Split(stored, first.validation.labels))
    begun: list[int] = []
    run(Scenario("files", (task,)), name, short_recipe(3), on_epoch=lambda _: begun.append(stored.reads[0]))
    times = (begun[1] - begun[0]) / len(stored)
    assert times == (2 if name == "hrn-paper" else 1), "for the score, and by hrn-paper for its paths"


def test_what_is_learned_at_once_has_one_row() -> None:
    result, learner = run(digits(3), "joint", short_recipe(6))
    assert result.at_once
    assert result.accuracy[:2] == [[None] * 3] * 2
    assert min(value or 0 for value in result.accuracy[-1]) > 80
    assert len(learner.tasks) == 3


def test_a_run_of_the_papers_network_says_how_it_routes() -> None:
    scenario = digits(3)
    records: list[dict[str, Any]] = []
    result, learner = run(scenario, "hrn-paper", short_recipe(), on_epoch=records.append)
    assert len(result.routing) == 3
    for index, routing in enumerate(result.routing):
        assert abs(sum(routing["usage"]) - 1) < 1e-9
        assert len(routing["unchanged_paths"]) == index
    assert all({"usage", "basis_fill", "ages", "paths", "loss"} <= record.keys() for record in records)
    assert [list(record.get("flow", ())) for record in records[1::2]] == [
        [task.name for task in scenario.tasks[:known]] for known in (1, 2, 3)
    ]
    paths = learner.paths(scenario.tasks[0].test.images, learner.tasks[0])
    assert paths is not None
    for level, unit, then, share in records[-1]["flow"]["0 or 1"]:
        assert level == 0
        assert share == ((paths[:, 0] == unit) & (paths[:, 1] == then)).double().mean().item() > 0


def test_decisions_are_in_the_log_and_in_the_result() -> None:
    records: list[dict[str, Any]] = []
    result, learner = run(digits(3), "hrn", short_recipe(), on_epoch=records.append)
    assert [decision["task"] for decision in result.decisions] == ["0 or 1", "2 or 3", "4 or 5"]
    assert [record["decision"] for record in records if "decision" in record] == result.decisions
    assert [decision.to_dict() for decision in learner.decisions] == result.decisions
    assert set(records[-1]["flow"]) == {"0 or 1", "2 or 3", "4 or 5"}
    assert all(len(steps) == 1 and steps[0][3] == 1 for steps in records[-1]["flow"].values()), "all go one way"


def test_flow_counts_images_that_stop_on_the_way() -> None:
    paths = torch.tensor([[0, 1, 2], [0, 1, -1], [0, -1, -1], [3, 1, 2]])
    assert flow(paths) == [(0, 0, -1, 0.25), (0, 0, 1, 0.5), (0, 3, 1, 0.25), (1, 1, -1, 0.25), (1, 1, 2, 0.5)]


def test_validation_runs_never_look_at_test_images() -> None:
    scenario = digits()
    noise = torch.randint(256, scenario.tasks[0].test.images.shape, dtype=torch.uint8)
    blind = [replace(task, test=Split(noise, torch.zeros(len(noise), dtype=torch.int64))) for task in scenario.tasks]
    one = run(scenario, "hrn", short_recipe(1), evaluate_on="validation")[0]
    other = run(Scenario("digits", tuple(blind)), "hrn", short_recipe(1), evaluate_on="validation")[0]
    assert one.accuracy == other.accuracy
    assert one.task_free == other.task_free


def test_a_class_that_comes_again_is_the_same_class_without_a_task() -> None:
    task = digits().tasks[0]
    again = replace(task, name="0 or 1, new images")
    learner = create_learner("vc", (1, 8, 8), short_recipe()).learn(task).learn(again)
    found = task_free_accuracy(learner, [(task, task.test), (again, again.test)])
    assert found["dataset"] == 100
    assert found["all_classes"] > 95
    other = replace(again, dataset="elsewhere")
    found = task_free_accuracy(learner, [(task, task.test), (other, other.test)])
    assert 40 < found["dataset"] < 60  # both heads see the same images: each is right half of the time
    few = Split(other.test.images[:1], other.test.labels[:1])
    found = task_free_accuracy(learner, [(task, task.test), (other, few)])
    right = (learner.predict(task.test.images).tasks == 0).sum() + (learner.predict(few.images).tasks == 1).sum()
    assert found["dataset"] == pytest.approx(100 * right.item() / (len(task.test) + 1)), "of all images"


def test_a_run_stores_no_image_if_it_is_told_so(tmp_path: Path) -> None:
    run(digits(2, 0.3), "vc", short_recipe(1), folder=tmp_path, keep_samples=False)
    assert json.loads((tmp_path / "samples.json").read_text()) == []
    assert not any(b"data:image" in path.read_bytes() for path in tmp_path.iterdir())


@pytest.mark.parametrize("evaluate_on", ["test", "validation"])
@pytest.mark.parametrize("name", ["hrn", "hrn-paper", "vc"])
def test_a_run_keeps_samples_of_what_it_was_measured_on(name: str, evaluate_on: Any, tmp_path: Path) -> None:
    scenario = digits(3)
    learner: Any = run(scenario, name, short_recipe(), folder=tmp_path, evaluate_on=evaluate_on)[1]
    kept = json.loads((tmp_path / "samples.json").read_text())
    assert [sample["task"] for sample in kept] == [task.name for task in scenario.tasks for _ in range(2)]
    assert all(one["label"] != other["label"] for one, other in zip(kept[::2], kept[1::2], strict=True))
    for sample in kept:
        entry = learner.find_task(sample["task"])
        shown = Image.open(io.BytesIO(base64.b64decode(sample["image"].removeprefix("data:image/png;base64,"))))
        images = torch.from_numpy(np.array(shown))[None, None]
        split = getattr(scenario.tasks[entry.index], evaluate_on)
        (row,) = (split.images == images).flatten(1).all(1).nonzero()[0].tolist()
        assert sample["label"] == entry.class_names[split.labels[row]]
        assert sample["predicted"] == entry.class_names[learner.predict(images, entry)[0]]
        answer = learner.predict(images)
        taken_for = scenario.tasks[answer.tasks[0]]
        label = taken_for.class_names[answer.labels[0]]
        assert sample["task_free"] == {"task": taken_for.name, "label": label, "correct": label == sample["label"]}
        known = learner.known_by(images, entry)
        if known is None:
            assert (sample["known_by"], sample["path"], sample["projections"]) == (None, None, None)
        else:
            assert sample["known_by"] == {"hrn": "memories", "hrn-paper": "units"}[name] == known.parts
            assert sample["path"] == learner.paths(images, entry)[0].tolist()
            assert sample["projections"] == pytest.approx(known.values[0].tolist(), abs=1e-3)


def test_samples_of_many_tasks_are_evenly_chosen() -> None:
    task = digits().tasks[0]
    scenario = Scenario("many", tuple(replace(task, name=str(index)) for index in range(23)))
    learner = create_learner("hash-only", (1, 8, 8), short_recipe())
    for index, each in enumerate(scenario.tasks):
        learner.add_task(TaskEntry(index, each.name, each.class_names))
    found = samples(learner, [(each, each.test) for each in scenario.tasks])
    assert [sample["task"] for sample in found] == [str(index) for index in range(0, 23, 2) for _ in range(2)]


def test_a_learner_that_learned_by_itself_is_measured_like_one_that_ran() -> None:
    result, _ = run(digits(), "vc", short_recipe())
    data = [(task, task.test) for task in digits().tasks]
    assert task_free_accuracy(learned("vc"), data) == result.task_free
