"""packnet: tasks share out the weights of each layer, and keep theirs bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from hashroute.learners.trainer import Trainer
from hashroute.nn.backbones import layers_of
from support import digits, fresh


def own() -> nn.Module:
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
    return nn.Sequential(first, nn.Sequential(nn.Conv2d(6, 8, 3, groups=2), nn.Linear(4, 4)))


@pytest.mark.parametrize("backbone", ["small", "resnet18x0.125", own()], ids=["small", "residual", "own"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_old_tasks_are_answered_bit_for_bit_as_before(backbone: Any, epochs: int) -> None:
    learner, before = fresh("packnet", epochs, backbone=backbone), []
    tasks = digits(3, 0.3).tasks
    for task in tasks:
        learner.learn(task)
        before.append(learner.logits(task.test.images, task.name))
        for index, logits in enumerate(before):
            assert torch.equal(learner.logits(tasks[index].test.images, index), logits)


@pytest.mark.parametrize("prune", [0.0, 0.5, 0.9])
def test_each_task_owns_the_largest_of_the_free_weights(prune: float) -> None:
    learner = fresh("packnet", 1, prune=prune, backbone=own())
    free = [layer.weight.numel() for layer in layers_of(learner.encoder)]
    for index, task in enumerate(digits(3, 0.3).tasks):
        trainer = Trainer(learner)
        trainer.begin(task)
        trainer.run_epoch()
        trained = [layer.weight.detach().clone() for layer in layers_of(learner.encoder)]
        trainer.finish()
        for place, owner in enumerate(learner.kept.values()):
            given, rest = owner == index + 1, owner == 0
            assert int(given.sum()) == round((1 - prune) * free[place])
            free[place] -= int(given.sum())
            assert int(rest.sum()) == free[place]
            if given.any() and rest.any():
                assert trained[place][given].abs().min() >= trained[place][rest].abs().max()
            now: Tensor = layers_of(learner.encoder)[place].weight
            assert torch.equal(now, torch.where(rest, 0.0, trained[place]))


def test_weights_that_were_given_back_stay_zero_until_the_next_task() -> None:
    learner = fresh("packnet", 3)
    trainer = Trainer(learner)
    trainer.begin(digits().tasks[0])
    for epoch in range(3):
        trainer.run_epoch()
        zero = float((layers_of(learner.encoder)[1].weight == 0).float().mean())
        assert zero == pytest.approx(0.75 if epoch == 2 else 0.0, abs=0.01)
    trainer.finish()
    learner.learn(digits().tasks[1])
    assert float((layers_of(learner.encoder)[1].weight == 0).float().mean()) == pytest.approx(0.75**2, abs=0.01)


def test_a_task_that_is_given_up_leaves_old_tasks_as_they_were() -> None:
    first, second = digits().tasks
    learner = fresh("packnet", 3).learn(first)
    before = learner.logits(first.test.images, 0)
    trainer = Trainer(learner)
    trainer.begin(second)
    for _ in range(3):
        trainer.run_epoch()
        assert torch.equal(learner.logits(first.test.images, 0), before)
    learner.abort()
    assert torch.equal(learner.logits(first.test.images, 0), before)
    assert all(owner.max() == 1 for owner in learner.kept.values())
    learner.learn(second)
    assert torch.equal(learner.logits(first.test.images, 0), before)


def test_settings_out_of_range_get_one_line() -> None:
    with pytest.raises(ValueError, match=r"^prune of packnet is 1.0: expected a number from 0 to below 1$"):
        fresh("packnet", prune=1.0)
