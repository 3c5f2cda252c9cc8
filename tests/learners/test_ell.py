"""ell: old answers and codes are held to what they were on the images of a new task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from hashroute import Task, create_learner
from hashroute.learners.entries import Batch
from hashroute.learners.trainer import Trainer
from support import digits, fresh, learned, short_recipe


def test_old_heads_train_through_distillation_only() -> None:
    def heads(**options: Any) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        learner = fresh("ell", **options).learn(digits().tasks[0])
        before = {name: weight.clone() for name, weight in learner.heads[0].state_dict().items()}
        learner.learn(digits().tasks[1])
        return before, learner.heads[0].state_dict()

    before, after = heads(distillation=0.0, code_weight=1.0)
    assert all(torch.equal(before[name], after[name]) for name in before)
    before, after = heads(distillation=1.0, code_weight=0.0)
    assert not all(torch.equal(before[name], after[name]) for name in before)
    assert short_recipe().weight_decay > 0
    before, after = heads(distillation=1e-25, code_weight=0.0)  # too weak to change a weight: nor does weight decay
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_loss_is_that_of_the_paper() -> None:
    recipe = short_recipe(head=replace(short_recipe().head, dropout=(0.0,)), augment=False)
    learner: Any = create_learner("ell", (1, 8, 8), recipe, code_weight=0.3, distillation=0.7).learn(digits())
    encoder = {name: weight.clone() for name, weight in learner.encoder.state_dict().items()}
    heads = [{name: weight.clone() for name, weight in head.state_dict().items()} for head in learner.heads]
    third = digits(3).tasks[2]
    trainer = Trainer(learner)
    trainer.begin(third)
    trainer.run_epoch()
    learner.train()
    entry = learner.tasks[2]
    batch = Batch(learner.normalise(third.train.images[:10], entry), third.train.labels[:10], entry)
    found, _ = learner.loss(batch)

    before = functional_call(learner.encoder, encoder, (batch.images,))
    features = learner.encoder(batch.images)
    expected = F.cross_entropy(learner.heads[2](features), batch.targets, label_smoothing=recipe.label_smoothing)
    for old in range(2):
        taught = functional_call(learner.heads[old], heads[old], (before,))
        soft = (taught / 2).softmax(1)
        expected = expected - 0.7 * 4 * (soft * (learner.heads[old](features) / 2).log_softmax(1)).sum(1).mean()
        weight, bias = learner.kept[f"code.{old}.weight"], learner.kept[f"code.{old}.bias"]
        codes = [(part @ weight.T + bias).sigmoid() for part in (features, before)]
        expected = expected + 0.3 / 2 * (codes[0] - codes[1]).square().sum(1).mean()
    torch.testing.assert_close(found, expected)


def test_autoencoders_are_under_complete_and_only_their_encoders_are_kept() -> None:
    learner = learned("ell", 1, code_size=20)
    assert {name: tuple(kept.shape) for name, kept in learner.kept.items()} == {
        "code.0.weight": (20, 128),
        "code.0.bias": (20,),
    }


def test_a_code_as_large_as_the_features_is_refused_before_anything_is_trained() -> None:
    learner = fresh("ell", code_size=128)
    epochs: list[Any] = []
    with pytest.raises(ValueError, match="code_size of ell is 128: expected fewer than the 128 features"):
        learner.learn(digits().tasks[0], on_epoch=epochs.append)
    assert not epochs
    assert not learner.tasks


def test_a_task_that_is_given_up_leaves_old_heads_free_to_train() -> None:
    learner = learned("ell")
    trainer = Trainer(learner)
    trainer.begin(digits(3).tasks[2])
    learner.train()
    assert [head.training for head in learner.heads] == [False, False, True]
    learner.abort()
    learner.train()
    assert [head.training for head in learner.heads] == [True, True]


def test_a_task_of_one_image_leaves_finite_codes() -> None:
    one = digits().tasks[0].train[:1]
    learner = fresh("ell").learn(Task("one image", one, one, one, ("0", "1")))
    learner.learn(digits().tasks[1])
    assert all(tensor.isfinite().all() for tensor in learner.kept.values())
    assert learner.logits(one.images, 0).isfinite().all()
