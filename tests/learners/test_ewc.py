"""ewc: the Fisher information, and penalties that hold the weights that matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from hashroute import Task
from hashroute.learners.entries import TaskEntry
from support import digits, fresh


def entry(task: Task, index: int = 0) -> TaskEntry:
    """A task with its images."""
    return TaskEntry.of(task, index)


def looped_fisher(learner: Any, task: TaskEntry, rows: list[int], empirical: bool) -> dict[str, Tensor]:
    """The Fisher information, one sample and one class at a time."""
    fisher = {name: torch.zeros_like(weight) for name, weight in learner.encoder.named_parameters()}
    for row in rows:
        image = learner.normalise(task.data.train.images[row : row + 1], task)
        labels = [int(task.data.train.labels[row])] if empirical else range(len(task.class_names))
        for label in labels:
            likely = learner.heads[task.index](learner.encoder(image)).log_softmax(1)[0, label]
            share = 1.0 if empirical else likely.exp().item()
            gradients = torch.autograd.grad(likely, list(learner.encoder.parameters()))
            for (name, _), gradient in zip(learner.encoder.named_parameters(), gradients, strict=True):
                fisher[name] += share * gradient.square() / len(rows)
    return fisher


@pytest.mark.parametrize("empirical", [False, True])
def test_fisher_information_equals_a_loop_over_samples(empirical: bool) -> None:
    task = digits().tasks[0]
    learner = fresh("ewc", empirical=empirical, samples=20).learn(task)
    rows = torch.linspace(0, len(task.train) - 1, 20).round().long().tolist()
    expected = looped_fisher(learner, entry(task), rows, empirical)
    for name, fisher in learner.fisher(entry(task), chunk=7).items():
        torch.testing.assert_close(fisher, expected[name], rtol=1e-4, atol=1e-9)
        assert torch.equal(learner.kept[f"fisher.{name}"] > 0, fisher > 0)


def test_one_quadratic_stands_for_the_penalties_of_all_tasks() -> None:
    learner = fresh("ewc", weight=50.0, samples=100)
    penalties = []
    for index, task in enumerate(digits(3).tasks):
        learner.learn(task)
        centre = {name: weight.detach().clone() for name, weight in learner.encoder.named_parameters()}
        penalties.append((learner.fisher(entry(task, index)), centre))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in learner.encoder.parameters():
            weight += 0.01 * torch.randn(weight.shape, generator=generator)
    weights = dict(learner.encoder.named_parameters())
    literal = sum(
        25.0 * (fisher[name] * (weights[name] - centre[name]).square()).sum()
        for fisher, centre in penalties
        for name in weights
    )
    expected = torch.autograd.grad(literal, list(weights.values()))
    for weight in weights.values():
        weight.grad = torch.zeros_like(weight)
    learner.before_step()
    for weight, gradient in zip(weights.values(), expected, strict=True):
        torch.testing.assert_close(weight.grad, gradient, rtol=1e-3, atol=1e-5)


def test_online_ewc_keeps_the_latest_weights_and_a_decayed_sum() -> None:
    first, second = digits().tasks
    learner = fresh("ewc", online=True, decay=0.5, samples=100).learn(first)
    before = {name: tensor.clone() for name, tensor in learner.kept.items()}
    learner.learn(second)
    fisher = learner.fisher(entry(second, 1))
    for name, weight in learner.encoder.named_parameters():
        assert torch.equal(learner.kept[f"centre.{name}"], weight)
        torch.testing.assert_close(learner.kept[f"fisher.{name}"], 0.5 * before[f"fisher.{name}"] + fisher[name])


def test_a_heavy_penalty_holds_the_weights_that_matter() -> None:
    def moved(weight: float) -> float:
        learner = fresh("ewc", weight=weight).learn(digits().tasks[0])
        kept = {name: tensor.clone() for name, tensor in learner.kept.items()}
        learner.learn(digits().tasks[1])
        return sum(
            (kept[f"fisher.{name}"] * (now - kept[f"centre.{name}"]).square()).sum().item()
            for name, now in learner.encoder.named_parameters()
        )

    assert moved(1e4) < moved(0.0) / 10
