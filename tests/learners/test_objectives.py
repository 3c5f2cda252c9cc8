"""Objectives of one's own: what is learned may be something else than the class of an image."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute import create_learner, load_learner
from hashroute.learners import find_learner, learner_names
from hashroute.learners.entries import Batch, EpochLog, TaskEntry
from hashroute.learners.objectives import (
    OBJECTIVES,
    Classification,
    Objective,
    find_objective,
    logit_margin,
    register_objective,
)
from hashroute.learners.objectives import Rotation as AllViews
from hashroute.learners.trainer import Trainer
from support import Brightness, assert_same, digits, fresh, short_recipe


class Rotation(Objective):
    """Tell by how many quarter turns an image was rotated: no label is needed."""

    def outputs(self, task: TaskEntry) -> int:  # noqa: ARG002
        return 4

    def prepare(self, batch: Batch) -> Batch:
        turns = torch.randint(4, (len(batch.images),))
        images = torch.stack([image.rot90(int(turn), (1, 2)) for image, turn in zip(batch.images, turns, strict=True)])
        return batch._replace(images=images, targets=turns.to(batch.targets))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs.log_softmax(1).gather(1, targets[:, None])[:, 0]


class AllTurns(Rotation):
    """The same with all four turns of each image: a batch grows."""

    def prepare(self, batch: Batch) -> Batch:
        images = torch.cat([batch.images.rot90(turn, (2, 3)) for turn in range(4)])
        return batch._replace(images=images, targets=torch.arange(4).repeat_interleave(len(batch.images)))


def lean(images: Tensor) -> Tensor:
    """(n,) how much brighter the left half of an image is."""
    return images[..., :4].mean((1, 2, 3)) - images[..., 4:].mean((1, 2, 3))


class Lean(Objective):
    """Regression, with a head of its own."""

    def outputs(self, task: TaskEntry) -> int:  # noqa: ARG002
        return 1

    def new_head(self, features: int, task: TaskEntry, scale: float) -> nn.Module:  # noqa: ARG002
        return nn.Linear(features, 1)

    def prepare(self, batch: Batch) -> Batch:
        return batch._replace(targets=lean(batch.images))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs[:, 0], targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -(outputs[:, 0] - targets).square()


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_objective("turns")(Rotation)
    yield
    del OBJECTIVES["turns"]
    Rotation.name = "Rotation"


def accuracy(learner: Any, task: int) -> float:
    """The share of test images whose rotation is told."""
    images, right = digits().tasks[task].test.images, []
    for turn in range(4):
        right.append(learner.predict(images.rot90(turn, (2, 3)), task) == turn)
    return torch.cat(right).double().mean().item()


@pytest.mark.parametrize("name", ["vc", "separate", "hrn", "hrn-paper", "hash-only"])
def test_an_objective_of_ones_own_trains_and_is_saved_by_its_name(name: str, tmp_path: Path) -> None:
    recipe = short_recipe(5, augment=False)
    learner = create_learner(name, (1, 8, 8), recipe, objective="turns").learn(digits())
    assert learner.heads[1][-1].out_features == 4
    if name in ("separate", "hrn"):
        assert accuracy(learner, 0) > 0.6
        assert accuracy(learner, 1) > 0.6
    learner.save(tmp_path)
    again = load_learner(tmp_path)
    assert isinstance(again.objective, Rotation)
    assert_same(learner, again)
    images = digits().tasks[0].test.images
    assert torch.equal(learner(images), again(images))
    assert learner(images).shape == (len(images), 8)


def test_growth_is_earned_by_the_score_of_the_objective() -> None:
    learner: Any = create_learner("hrn", (1, 8, 8), short_recipe(5, augment=False), objective="turns")
    learner.learn(digits().tasks[0])
    second = digits().tasks[1]
    trainer = Trainer(learner)
    trainer.begin(second)
    while not trainer.done:
        trainer.run_epoch()
    entry, kept = learner.tasks[1], learner.scratch["scores"]
    scores = learner.scores(second.validation, entry)
    assert torch.equal(scores, learner.scores(second.validation, entry)), "the same turns each time"
    assert scores.shape == kept.shape == (len(second.validation),)
    trainer.finish()
    decision = learner.decisions[1]
    assert decision.reused == pytest.approx(kept.double().mean().item())
    assert decision.forked == pytest.approx(scores.double().mean().item())
    difference = (scores - kept).double()
    error = difference.std().item() / len(difference) ** 0.5
    assert decision.error == pytest.approx(error)
    assert decision.action == ("fork" if difference.mean() > -2 * error else "reuse")
    assert decision.reused < 0, "a log-likelihood, not a share in percent"


def test_what_a_fork_and_reused_units_are_scored_on_is_the_same() -> None:
    """A fork that is the same as what it was forked from gains nothing, though images are turned at random."""
    recipe = short_recipe(1, augment=False)
    learner: Any = create_learner("hrn", (1, 8, 8), recipe, objective="turns").learn(digits().tasks[0])
    second = digits().tasks[1]
    Trainer(learner).begin(second)
    learner.heads[1].load_state_dict(learner.growth.tried_head())
    torch.testing.assert_close(learner.scores(second.validation, learner.tasks[1]), learner.scratch["scores"])


def test_a_batch_may_grow_and_images_are_counted_once() -> None:
    logs: list[EpochLog] = []
    learner = create_learner("vc", (1, 8, 8), short_recipe(6, augment=False), objective=AllTurns)
    learner.learn(digits().tasks[0], on_epoch=logs.append)
    assert {log.images for log in logs} == {len(digits().tasks[0].train)}
    assert -1.4 < logs[0].score < logs[-1].score < 0, "a mean log-likelihood"
    assert accuracy(learner, 0) > 0.7


@pytest.mark.parametrize("name", ["vc", "hrn"])
def test_targets_may_be_any_numbers(name: str) -> None:
    logs: list[EpochLog] = []
    learner = create_learner(name, (1, 8, 8), short_recipe(8, augment=False), objective=Lean)
    learner.learn(digits(), on_epoch=logs.append)
    assert logs[7].loss < logs[0].loss / 4
    images = digits().tasks[1].test.images
    found, expected = learner.logits(images, 1)[:, 0], lean(images / 255)
    assert torch.corrcoef(torch.stack([found, expected]))[0, 1] > 0.8


def test_a_head_in_closed_form_needs_classes() -> None:
    with pytest.raises(ValueError, match="closed-form was given the objective 'Brightness': expected classification"):
        fresh("closed-form", objective=Brightness)


@pytest.mark.parametrize("objective", [AllViews, Brightness])
@pytest.mark.parametrize("name", [name for name in learner_names() if find_learner(name).trained])
def test_every_learner_learns_by_every_objective(name: str, objective: type[Objective]) -> None:
    logs: list[EpochLog] = []
    learner: Any = fresh(name, 3, objective=objective, augment=False).learn(digits(share=0.5), on_epoch=logs.append)
    assert logs[2].score > logs[0].score
    assert all(tensor.isfinite().all() for tensor in learner.kept.values())
    if name == "ewc":
        assert all((learner.kept[f"fisher.{each}"] > 0).any() for each, _ in learner.encoder.named_parameters())


@pytest.mark.parametrize("kind", [Classification, AllViews, Brightness])
def test_outputs_are_held_to_those_of_a_teacher(kind: type[Objective]) -> None:
    objective = kind(short_recipe())
    taught = torch.randn(5, objective.outputs(TaskEntry(0, "any", ("a", "b"))))
    outputs = (taught + torch.randn_like(taught)).requires_grad_()
    same = taught.clone().requires_grad_()
    far, near = (objective.distillation(each, taught, 2.0) for each in (outputs, same))
    assert far > near
    assert torch.autograd.grad(near, same)[0].abs().max() < 1e-6


def test_gpm_protects_the_inputs_of_all_views_that_an_objective_makes() -> None:
    learner: Any = fresh("gpm", 1, objective=AllViews, augment=False)
    seen: list[int] = []
    learner.encoder.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    task = digits(share=0.5).tasks[0]
    trainer = Trainer(learner)
    trainer.begin(task)
    seen.clear()
    trainer.finish()
    assert sum(seen) == 4 * len(task.train)


def test_mistakes_with_objectives_get_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no objective 'poetry': expected one of classification, rotation, turns"):
        create_learner("vc", (1, 8, 8), objective="poetry")
    with pytest.raises(ValueError, match="there is an objective 'turns' already: choose another name"):
        register_objective("turns")(Rotation)
    learner = fresh("vc", 1, objective=AllTurns).learn(digits().tasks[0])
    with pytest.raises(ValueError, match="AllTurns has no name to save: register it with @register_objective"):
        learner.save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_classification_is_cross_entropy_with_smoothed_labels_and_accuracy() -> None:
    objective = Classification(short_recipe(label_smoothing=0.1))
    outputs, targets = torch.randn(9, 3), torch.arange(9) % 3
    smooth = 0.9 * F.one_hot(targets, 3) + 0.1 / 3
    torch.testing.assert_close(objective.loss(outputs, targets), -(smooth * outputs.log_softmax(1)).sum(1).mean())
    assert torch.equal(objective.scores(outputs, targets), outputs.argmax(1) == targets)
    assert objective.outputs(TaskEntry(0, "any", ("a", "b", "c"))) == 3
    assert find_objective("classification") is find_objective(Classification) is Classification


def test_a_margin_is_the_distance_of_the_best_logit_from_the_mean_of_the_others() -> None:
    logits = torch.tensor([[5.0, 5.0, -10.0], [3.0, -1.0, -1.0]])
    assert logit_margin(logits).tolist() == [7.5, 4.0]
    assert logit_margin(torch.tensor([[2.0]])).tolist() == [0.0]
