"""Trackers send what a run records to the real libraries, in files on this machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hashroute import run
from hashroute.integrations import tracking
from hashroute.recipe import recipe_for
from hashroute.scenarios import load_scenario


def records(tracker: tracking.Tracker) -> list[dict[str, float]]:
    """Run a short comparison with this tracker; returns the numbers of its epochs."""
    scenario = load_scenario("digits", fraction=0.2)
    found: list[dict[str, float]] = []

    def on_epoch(record: tracking.Record) -> None:
        found.append(tracking.numbers(record))
        tracker(record)

    run(scenario, "hash-only", replace(recipe_for(scenario.image_shape, 2), epochs=(1,)), on_epoch=on_epoch)
    return found


def test_an_epoch_has_numbers_and_a_task_has_scores() -> None:
    values = records(tracking.Tracker(lambda *_: None))
    assert len(values) == 5
    assert {"loss", "train_accuracy", "validation_accuracy", "test_accuracy/task_0"} == values[0].keys()
    assert "test_accuracy/task_4" in values[4]
    assert tracking.numbers({"loss": None, "accuracy": [None, 50.0]}) == {"test_accuracy/task_1": 50.0}


def test_steps_are_counted_or_given() -> None:
    steps: list[int] = []
    tracker = tracking.Tracker(lambda _, step: steps.append(step))
    tracker({"loss": 1.0})
    tracker({"loss": 1.0}, 7)
    tracker({"loss": 1.0})
    assert steps == [1, 7, 8]


def test_mlflow_has_the_numbers_of_every_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # its database needs packages that mlflow-skinny leaves out
    mlflow.set_tracking_uri((tmp_path / "store").as_uri())
    with tracking.mlflow("mine", "some experiment") as tracker:
        values = records(tracker)
    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("some experiment")
    (logged,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(logged.info.run_id, "validation_accuracy")
    assert [(each.step, each.value) for each in history] == [
        (step, each["validation_accuracy"]) for step, each in enumerate(values, 1)
    ]
    assert logged.data.metrics["test_accuracy/task_4"] == values[4]["test_accuracy/task_4"]


def test_weights_and_biases_writes_a_run_offline(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    with tracking.wandb("mine", mode="offline", dir=str(tmp_path)) as tracker:
        records(tracker)
    (written,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    content = written.read_bytes()
    for name in (b"validation_accuracy", b"test_accuracy/task_4"):
        assert name in content


def test_a_missing_library_is_one_line() -> None:
    with pytest.raises(ValueError, match=r"the tracker nowhere needs the package nowhere: pip install 'hashroute\[now"):
        tracking.check_tracker("nowhere")
