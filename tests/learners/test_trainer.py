"""Training: epochs that can be interrupted and repeated, tasks that can be given up, several tasks together."""

from __future__ import annotations

import copy
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hashroute import create_learner, load_learner
from hashroute.learners import learner_names
from hashroute.learners.entries import EpochLog
from hashroute.learners.trainer import Trainer, augment
from hashroute.tasks import Split
from programs import on_a_terminal
from support import accuracy, assert_same, digits, fresh, learned, short_recipe

ONE_BY_ONE = [name for name in learner_names() if name != "joint"]
STILL_LEARNED = r"'0 or 1' is still being learned: call learn\(\) with the same images to continue, or abort\(\)"


# ------------------------------------------------------------------------ learn


@pytest.mark.parametrize("name", ["hrn", "vc", "separate"])
def test_a_scenario_is_learned_task_by_task(name: str) -> None:
    assert_same(fresh(name).learn(digits(3)), learned(name, 3))


def test_joint_learns_a_scenario_at_once() -> None:
    one, other = fresh("joint", 4).learn(digits(3)), fresh("joint", 4).learn(*digits(3).tasks)
    assert_same(one, other)
    assert min(accuracy(one, task) for task in digits(3).tasks) > 0.8


def test_joint_ends_with_all_tasks_though_some_have_fewer_epochs() -> None:
    tasks = digits().tasks
    logs: list[EpochLog] = []
    create_learner("joint", (1, 8, 8), replace(short_recipe(), epochs=(3, 1))).learn(*tasks, on_epoch=logs.append)
    assert [log.images for log in logs] == [len(tasks[0].train)] * 2 + [sum(len(task.train) for task in tasks)]


def test_every_epoch_is_told_once() -> None:
    logs: list[EpochLog] = []
    learner = create_learner("vc", (1, 8, 8), replace(short_recipe(), epochs=(3, 2)))
    learner.learn(digits(), on_epoch=logs.append)
    first, second = (len(task.train) for task in digits().tasks)
    assert [log.images for log in logs] == [first] * 3 + [second] * 2
    assert logs[2].loss < logs[0].loss
    assert all(0 <= log.score <= 1 for log in logs)
    assert logs[2].score > 0.9


def test_tasks_of_one_name_are_not_learned_together() -> None:
    task = digits().tasks[0]
    with pytest.raises(ValueError, match="task '0 or 1' was learned before: give the new one another name"):
        fresh("joint").learn(task, task)


def test_it_learns_one_task_after_the_other() -> None:
    with pytest.raises(ValueError, match="hrn was given 2 tasks at once: it learns one task after the other"):
        fresh().learn(*digits().tasks)


# ------------------------------------------------------------------------ interruptions


def test_a_task_must_end_before_the_next_begins() -> None:
    tasks = digits().tasks
    learner = fresh()
    Trainer(learner).begin(tasks[0])
    for start in (Trainer(learner).begin, learner.learn):
        with pytest.raises(ValueError, match=STILL_LEARNED):
            start(tasks[1])


@pytest.mark.parametrize("change", ["classes", "images"])
def test_an_interrupted_task_does_not_go_on_with_other_data(change: str) -> None:
    first, second = digits().tasks
    learner = fresh()
    Trainer(learner).begin(first)
    fewer = Split(first.train.images[:-1], first.train.labels[:-1])
    other = {"classes": replace(second, name=first.name), "images": replace(first, train=fewer)}[change]
    with pytest.raises(ValueError, match=STILL_LEARNED):
        learner.learn(other)


@pytest.mark.parametrize("name", ["hrn", "vc"])
def test_a_task_interrupted_in_an_epoch_resumes_at_its_beginning(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = digits().tasks
    learner = learned(name, 1)
    batches = -(-len(second.train) // learner.recipe.batch_size)
    rates: list[float] = []

    def stop() -> None:
        rates.append(learner.training_state.optimizer.param_groups[0]["lr"])
        if len(rates) == batches + 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(learner, "after_step", stop)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(second)
    assert learner.training_state.epoch == 1
    learner.learn(second)
    before, after = rates[: batches + 3], rates[batches + 3 :]
    assert before[batches:] == after[:3], "learning rates begin again with the epoch"
    assert len(after) == batches
    assert learner.training_state is None
    assert [task.name for task in learner.tasks] == [first.name, second.name]
    assert accuracy(learner, second) > 0.8


def test_a_scenario_interrupted_in_a_task_resumes_with_this_task() -> None:
    learner = fresh("vc")
    logs: list[EpochLog] = []

    def stop(log: EpochLog) -> None:
        logs.append(log)
        if len(logs) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learner.learn(digits(3), on_epoch=stop)
    learner.learn(digits(3), on_epoch=stop)
    assert len(logs) == 6
    assert_same(learner, learned("vc", 3))


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_task_interrupted_before_its_first_epoch_has_not_begun(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = learned(name, 1)
    before = copy.deepcopy(learner)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(learner, "on_train_start", interrupt)
        with pytest.raises(KeyboardInterrupt):
            learner.learn(digits().tasks[1])
    assert_same(learner, before)
    assert_same(learner.learn(digits().tasks[1]), learned(name))


# ------------------------------------------------------------------------ given up


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_a_task_can_be_given_up(name: str, tmp_path: Path) -> None:
    first, second, third = digits(3).tasks
    learner = learned(name, 1)
    trainer = Trainer(learner)
    trainer.begin(second)
    trainer.run_epoch()
    with pytest.raises(ValueError, match=r"let learn\(\) end, or call abort\(\), then save"):
        learner.save(tmp_path)
    assert not list(tmp_path.iterdir())
    learner.abort()
    learner.learn(third)
    assert [task.name for task in learner.tasks] == [first.name, third.name]
    assert len(learner.heads) == 2
    assert accuracy(learner, third) > 0.7
    learner.save(tmp_path)
    assert_same(load_learner(tmp_path), learner)
    with pytest.raises(RuntimeError, match="nothing is being learned"):
        learner.abort()


@pytest.mark.parametrize("late", [False, True])
def test_a_task_that_diverged_is_given_up_and_leaves_nothing_behind(
    late: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    second = digits().tasks[1]
    learner = learned("hrn", 1)
    before = copy.deepcopy(learner)

    def spoil() -> None:
        with torch.no_grad():
            next(learner.encoder.paths[1].parameters()).fill_(math.nan)

    with monkeypatch.context() as patch:
        if late:  # after the last step of an epoch, so that its loss does not show it
            step, batches = iter(range(10**6)), -(-len(second.train) // learner.recipe.batch_size)
            patch.setattr(learner, "after_step", lambda: spoil() if (next(step) + 1) % batches == 0 else None)
        else:
            patch.setattr(learner, "after_step", spoil)
        for _ in range(learner.recipe.epochs_of(1) + 1):
            with pytest.raises(ValueError, match="hrn diverged"):
                learner.learn(second)
        with pytest.raises(ValueError, match=r"let learn\(\) end, or call abort\(\), then save"):
            learner.save(tmp_path)
    learner.abort()
    learner.random.state = before.random.state  # what was drawn is drawn
    assert_same(learner, before)
    learner.learn(second)
    assert accuracy(learner, second) > 0.8


def test_a_diverging_learner_says_so() -> None:
    learner = create_learner("vc", (1, 8, 8), short_recipe(1, learning_rate=1e30, one_cycle=False))
    with pytest.raises(ValueError, match=r"vc diverged: .*; lower its learning rate"):
        learner.learn(digits().tasks[0])


# ------------------------------------------------------------------------ progress

SCRIPT = """
from hashroute import create_learner, load_scenario
first, second = load_scenario("digits", 0.2).tasks[:2]
create_learner("vc", (1, 8, 8), epochs=2).learn(first).learn(second, progress=False)
"""


def test_a_progress_bar_is_shown_on_a_terminal_unless_it_is_not_wanted(tmp_path: Path) -> None:
    written = on_a_terminal([sys.executable, "-c", SCRIPT], tmp_path)
    assert "vc learns 0 or 1" in written
    assert "vc learns 2 or 3" not in written


def test_a_progress_bar_is_shown_elsewhere_only_on_request(capfd: pytest.CaptureFixture[str]) -> None:
    learner, (first, second) = fresh("vc", 1), digits().tasks
    learner.learn(first)
    assert capfd.readouterr() == ("", "")
    learner.learn(second, progress=True)
    out, err = capfd.readouterr()
    assert (out, err.count("vc learns 2 or 3")) == ("", 1)
    assert "\x1b" not in err, "a file gets no control codes"


# ------------------------------------------------------------------------ images


def test_augmented_images_are_the_image_mirrored_and_shifted() -> None:
    image = torch.randint(1, 256, (1, 2, 6, 6), dtype=torch.uint8)
    torch.manual_seed(0)
    seen = set()
    for changed in augment(image.repeat(400, 1, 1, 1), frozenset({"flip", "shift"})):
        matches = []
        for mirrored in (False, True):
            padded = F.pad(image[0].flip(2) if mirrored else image[0], (2, 2, 2, 2))
            for down in range(5):
                for right in range(5):
                    if torch.equal(padded[:, down : down + 6, right : right + 6], changed):
                        matches.append((mirrored, down, right))
        assert len(matches) == 1
        seen.add(matches[0])
    assert len(seen) == 50
    assert torch.equal(augment(image, frozenset()), image)


def test_a_learner_trains_on_what_a_task_allows_and_on_no_other_images() -> None:
    """Images of a task without augmentations are the same whether the recipe augments or not."""
    task = digits().tasks[0]
    plain = replace(task, augmentations=frozenset())
    shifted = replace(task, augmentations=frozenset({"shift"}))
    found = [
        create_learner("vc", (1, 8, 8), short_recipe(1, augment=on))
        .learn(each)
        .state_dict()["encoder.levels.0.blocks.0.convolution.weight"]
        for each, on in ((plain, True), (plain, False), (shifted, True))
    ]
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", learner_names())
def test_test_images_are_never_read(name: str) -> None:
    noise = torch.randint(256, digits().tasks[0].test.images.shape, dtype=torch.uint8)
    blind = Split(noise, torch.zeros(len(noise), dtype=torch.int64))
    learner = fresh(name)
    for task in digits().tasks:
        learner.learn(replace(task, test=blind))
    assert_same(learner, learned(name))


def test_validation_images_are_not_trained_on() -> None:
    task = digits().tasks[0]
    other = fresh("vc").learn(replace(task, validation=digits().tasks[1].validation))
    assert_same(other, fresh("vc").learn(task))
