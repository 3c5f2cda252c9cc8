"""The shared head: sums that do not depend on order, columns that are frozen with their task."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hashroute import create_learner, load_learner
from hashroute.learners.hrn import HRN
from hashroute.learners.learner import Learner
from hashroute.learners.shared_head import Columns
from hashroute.learners.trainer import Trainer
from hashroute.nn.closed_form import ClosedForm
from hashroute.scenarios import load_scenario
from hashroute.tasks import Scenario, Task
from support import short_recipe


@pytest.fixture(scope="module")
def digits() -> Scenario:
    return load_scenario("digits", 0.4)


def learned(name: str, *tasks: Task, **options: object) -> Learner:
    learner = create_learner(name, (1, 8, 8), short_recipe(), **options)
    for task in tasks:
        learner.learn(task, progress=False)
    return learner


def by_name(learner: Learner) -> dict[str, torch.Tensor]:
    """The sums of each class, by its name."""
    sums = learner.shared.sums  # type: ignore[union-attr,operator]
    return {
        name: sums.sums[column]
        for entry in learner.tasks
        for name, column in zip(entry.class_names, entry.columns, strict=True)  # type: ignore[attr-defined]
    }


@pytest.mark.parametrize("name", ["closed-form", "hrn"])
def test_the_order_of_tasks_does_not_matter(name: str, digits: Scenario) -> None:
    tasks = digits.tasks[:3]
    one, other = learned(name, *tasks), learned(name, *reversed(tasks))
    assert torch.equal(one.shared.sums.gram, other.shared.sums.gram)  # type: ignore[union-attr,operator]
    first, second = by_name(one), by_name(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[each], second[each]) for each in first)


def test_it_equals_the_head_of_all_data_at_once(digits: Scenario) -> None:
    learner = learned("closed-form", *digits.tasks)
    images = torch.cat([task.train.images for task in digits.tasks])
    labels = torch.cat([task.train.labels + 2 * index for index, task in enumerate(digits.tasks)])
    at_once = ClosedForm(learner.shared.sums.features)
    at_once.add(learner.shared.fixed(images, whole=True), labels)
    assert torch.allclose(at_once.solve(1e-3).weight, learner.shared.sums.solve(1e-3).weight, atol=1e-6)
    right = [
        (learner.predict(task.test.images).labels + 2 * learner.predict(task.test.images).tasks)
        == task.test.labels + 2 * index
        for index, task in enumerate(digits.tasks)
    ]
    assert torch.cat(right).float().mean() > 0.9


def test_answers_of_old_tasks_stay_bit_for_bit(digits: Scenario) -> None:
    learner = learned("hrn", digits.tasks[0])
    images = digits.tasks[0].test.images
    before = learner(images, 0)
    alone = learner.heads[0](learner.encode(images, 0))
    assert not torch.equal(before, alone), "the columns of the task are added to its head"
    learner.learn(digits.tasks[1], progress=False)
    learner.learn(digits.tasks[2], progress=False)
    assert torch.equal(before, learner(images, 0))


def test_columns_count_as_much_as_held_out_images_ask_for() -> None:
    labels = torch.arange(300) % 3
    good, noise = 10 * torch.nn.functional.one_hot(labels).float(), torch.randn(300, 3, generator=torch.Generator())
    for head, columns, expected in ((good, 99 * noise, 0.0), (good, 15 * noise, 0.15), (good, good, 0.3)):
        frozen = Columns(8, 3)
        frozen.sharpen(columns, head, labels)
        assert frozen.sharpness.item() == pytest.approx(expected)
    one = Columns(8, 3)
    one.sharpen(-good[:1], good[:1], labels[:1])
    assert one.sharpness.item() == pytest.approx(0.3), "one image decides nothing"


def test_a_class_that_comes_back_keeps_its_column(digits: Scenario) -> None:
    task = digits.tasks[0]
    half = [torch.arange(start, len(task.train), 2) for start in (0, 1)]
    parts = [replace(task, name=f"part {number}", train=task.train[rows]) for number, rows in enumerate(half)]
    learner = learned("closed-form", *parts)
    whole = learned("closed-form", task)
    assert learner.shared.sums.classes == 2
    assert torch.equal(learner.shared.sums.sums, whole.shared.sums.sums)


def test_a_task_that_is_given_up_leaves_no_trace(digits: Scenario) -> None:
    learner = learned("closed-form", digits.tasks[0])
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    trainer = Trainer(learner)
    trainer.begin(digits.tasks[1])
    trainer.run_epoch()
    assert learner.shared.sums.classes == 4
    trainer.abort()
    assert before.keys() == learner.state_dict().keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in learner.state_dict().items())


@pytest.mark.parametrize("name", ["closed-form", "hrn"])
def test_a_saved_learner_answers_the_same(name: str, digits: Scenario, tmp_path: Path) -> None:
    learner = learned(name, *digits.tasks[:2])
    learner.save(tmp_path / "model")
    loaded, images = load_learner(tmp_path / "model"), digits.tasks[1].test.images
    assert torch.equal(learner(images), loaded(images))
    assert torch.equal(learner(images, 1), loaded(images, 1))


def test_a_model_without_a_shared_head_is_read(digits: Scenario, tmp_path: Path) -> None:
    learner = learned("hrn", *digits.tasks[:2], fixed_features=0)
    learner.save(tmp_path / "model")
    (file,) = (path for path in tmp_path.rglob("*.json") if "fixed_features" in path.read_text())
    text = json.loads(file.read_text())
    del text["options"]["fixed_features"]  # the option is younger than the model
    file.write_text(json.dumps(text))
    loaded, images = load_learner(tmp_path / "model"), digits.tasks[1].test.images
    assert isinstance(loaded, HRN)
    assert loaded.shared is None
    assert torch.equal(learner(images), loaded(images))


def test_no_more_bytes_than_the_sums_need() -> None:
    learner = create_learner("hrn", (3, 32, 32), short_recipe())
    assert isinstance(learner, HRN)
    assert learner.shared is not None
    kept = sum(tensor.numel() * tensor.element_size() for tensor in learner.shared.state_dict().values())
    assert kept < 1792 * 1793 // 2 * 4 + 110_000, "half a matrix of 32-bit numbers, and the dictionary"
