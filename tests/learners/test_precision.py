"""Learners in double and half precision, and images of any precision."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from hashroute import load_learner
from hashroute.learners import files, learner_names
from support import assert_same, digits, fresh, learned


@pytest.mark.parametrize("name", learner_names())
def test_pixels_may_be_of_any_precision(name: str) -> None:
    learner, images = learned(name), digits().tasks[0].test.images[:20]
    expected = learner.logits(images, 0)
    for precision in (torch.float32, torch.float64):
        torch.testing.assert_close(learner.logits(images.to(precision) / 255, 0), expected)
    assert torch.equal(learner.predict(images.double() / 255).tasks, learner.predict(images).tasks)


@pytest.mark.parametrize("name", learner_names())
def test_a_learner_of_double_precision_learns_and_stays_so(name: str, tmp_path: Path) -> None:
    last = digits(3).tasks[2]
    learner = fresh(name, 1).double().learn(digits())
    learner.save(tmp_path)
    again = load_learner(tmp_path)
    assert_same(learner, again)
    again.learn(last)
    tensors = [*files.state_of(again).values(), again.logits(last.test.images, 2), again(last.test.images)]
    assert {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {torch.float64}


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", ["hrn", "vc"])
def test_a_learner_of_half_precision_answers(name: str, precision: torch.dtype) -> None:
    learner, images = learned(name), digits().tasks[0].test.images
    aware, free = learner.predict(images, 0), learner.predict(images)
    learner.to(precision)
    assert (learner.predict(images, 0) == aware).double().mean() > 0.95
    assert (learner.predict(images).tasks == free.tasks).double().mean() > 0.9
