"""Probabilities that can be believed: the temperature of scores, with a task given and with none."""

from __future__ import annotations

import pytest
import torch

from hashroute.model.answers import task_free_temperature
from hashroute.model.calibration import calibration_error, temperature
from hashroute.model.records import TaskRecord


def records(*temperatures: float | None) -> dict[str, TaskRecord]:
    """Tasks that measured these temperatures when they were learned."""
    facts = {"classes": ("a", "b"), "images": 9, "held_out": 9, "accuracy": 0.9, "private": False, "domain": "d"}
    return {
        f"task {place}": TaskRecord(**facts, temperature=2.0 + place, task_free_temperature=each, objects={})  # type: ignore[arg-type]
        for place, each in enumerate(temperatures)
    }


@pytest.mark.parametrize("heat", [0.2, 3.0, 40.0])
def test_the_temperature_of_scores_is_found_and_makes_probabilities_right(heat: float) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20_000, 5, generator=generator, dtype=torch.float64)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    found = temperature(heat * logits, labels)
    assert found == pytest.approx(heat, rel=0.05)
    chances = (heat * logits / found).softmax(1)
    right = chances.argmax(1) == labels
    assert calibration_error(chances.amax(1), right) < 0.01
    assert calibration_error((4 * logits).softmax(1).amax(1), right) > 0.1, "answers that are too sure"


def test_one_task_of_other_data_does_not_change_the_temperature_of_all() -> None:
    assert task_free_temperature(records(None, 5.0, 4.0, 90.0, 6.0, 5.0)) == 5.0


def test_tasks_that_measured_nothing_leave_a_temperature() -> None:
    assert task_free_temperature(records(None, None, None)) == 3.0, "the middle one of tasks that are given"
    assert task_free_temperature(records(None, 6.0, None)) == 6.0


def test_images_whose_own_class_is_ruled_out_do_not_count() -> None:
    scores, labels = torch.tensor([[1.0, 0.0], [0.0, 2.0], [2.0, 1.0]]), torch.tensor([0, 1, 1])
    ruled_out = torch.tensor([[-torch.inf, 3.0]])
    assert temperature(torch.cat([scores, ruled_out]), torch.cat([labels, labels[:1]])) == temperature(scores, labels)


def test_gaps_between_confidence_and_accuracy_do_not_cancel() -> None:
    chances, right = torch.full((10,), 0.8), torch.arange(10) < 8
    assert calibration_error(chances, right) == pytest.approx(0.0, abs=1e-6)
    assert calibration_error(chances, torch.ones(10)) == pytest.approx(0.2)
    both = torch.cat([chances, torch.full((10,), 0.3)])
    assert calibration_error(both, torch.cat([right, right])) == pytest.approx(0.25)
