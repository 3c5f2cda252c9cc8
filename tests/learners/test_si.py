"""si: the path integral of gradients, and a penalty that holds the weights that mattered."""

from __future__ import annotations

import pytest
import torch

from hashroute.learners.trainer import Trainer
from support import digits, fresh


def test_contributions_add_up_to_the_fall_of_the_loss() -> None:
    """For small steps of gradient descent on one batch, the sum over all weights is what the loss has lost."""
    task = digits(1, 0.1).tasks[0]
    learner = fresh("si", 1, batch_size=len(task.train), learning_rate=0.0, weight_decay=0.0, augment=False)
    learner.double()
    trainer = Trainer(learner)
    trainer.begin(task)
    state = trainer.state
    weights = [*learner.encoder.parameters()]
    state.optimizer, state.schedule = torch.optim.SGD(weights, 1e-3), None
    learner.heads.eval().train = lambda _=True: learner.heads  # type: ignore[method-assign]  # dropout would add noise
    losses = [trainer.run_epoch().loss for _ in range(30)]
    paths = [tensor for name, tensor in learner.scratch.items() if name.startswith("path.")]
    fall = losses[0] - losses[-1]
    assert fall > 1e-4
    found = sum(float(path.sum()) for path in paths) * 29 / 30  # the fall of the last step is not measured
    assert found == pytest.approx(fall, rel=0.05)


def test_importance_is_the_contribution_by_the_squared_change_and_adds_up() -> None:
    learner = fresh("si", damping=0.01)
    total = {name: torch.zeros_like(weight) for name, weight in learner.encoder.named_parameters()}
    for task in digits().tasks:
        start = {name: weight.detach().clone() for name, weight in learner.encoder.named_parameters()}
        trainer = Trainer(learner)
        trainer.begin(task)
        while not trainer.done:
            trainer.run_epoch()
        scratch = dict(learner.scratch)
        trainer.finish()
        for name, weight in learner.encoder.named_parameters():
            change = weight.detach() - start[name]
            total[name] += (scratch[f"path.{name}"] / (change**2 + 0.01)).clamp_min(0)
            torch.testing.assert_close(learner.kept[f"importance.{name}"], total[name])
            assert torch.equal(learner.kept[f"centre.{name}"], weight)


def test_a_strong_penalty_holds_the_weights_that_matter() -> None:
    def moved(weight: float) -> float:
        learner = fresh("si", weight=weight).learn(digits().tasks[0])
        before = {name: each.detach().clone() for name, each in learner.encoder.named_parameters()}
        importance = {name: learner.kept[f"importance.{name}"].clone() for name in before}
        learner.learn(digits().tasks[1])
        weights = dict(learner.encoder.named_parameters())
        return sum((importance[name] * (weights[name] - before[name]).square()).sum().item() for name in before)

    assert moved(1e4) < moved(0.0) / 5


def test_settings_out_of_range_get_one_line() -> None:
    with pytest.raises(ValueError, match=r"^damping of si is 0: expected a number above 0$"):
        fresh("si", damping=0)
