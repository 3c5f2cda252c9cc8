"""Settings for accelerators: bfloat16 and channels last; and no batch makes the program wait."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hashroute import create_learner, devices, load_learner
from hashroute.learners import files, learner_names
from hashroute.learners.trainer import Trainer
from hashroute.recipe import Recipe
from support import QUICK, accuracy, assert_same, digits, short_recipe

TRAINED = [name for name in learner_names() if name != "closed-form"]


def small(name: str, recipe: Recipe) -> Any:
    """A quick learner."""
    shared = {"fixed_features": 64} if name == "hrn" else {"code_epochs": 1, "code_size": 40} if name == "ell" else {}
    return create_learner(name, (1, 8, 8), recipe, **QUICK.get(name, {}), **shared)


class Looks(TorchDispatchMode):
    """Counts calls whose result depends on values: on an accelerator, the program waits for these."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        looks = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape} & set(func.tags)
        if func is torch.ops.aten.index.Tensor:  # rows by number need no look, rows by a mask do
            looks = {each for each in args[1] if each is not None and each.dtype == torch.bool}
        if looks:
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", [name for name in TRAINED if name != "hrn-paper"])
def test_no_batch_makes_the_program_wait(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "waits", lambda device: True)  # noqa: ARG005  # as on an accelerator
    counts = []
    for batch_size in (64, 8):
        learner = small(name, short_recipe(1, batch_size=batch_size))
        tasks = digits(2, 0.5).tasks
        if not learner.at_once:
            learner.learn(tasks[0])
        trainer = Trainer(learner)
        trainer.begin(*(tasks if learner.at_once else tasks[1:]))
        with Looks() as looks:
            trainer.run_epoch()
        counts.append(len(looks.seen))
    assert counts[0] == counts[1]


def test_a_look_is_counted() -> None:
    with Looks() as looks:
        torch.ones(3).sum().item()
        torch.ones(3)[torch.ones(3) > 2]
        torch.ones(3)[torch.arange(2)]
    assert looks.seen == ["aten._local_scalar_dense.default", "aten.index.Tensor"]


@pytest.mark.parametrize("name", TRAINED)
def test_bfloat16_is_for_layers_only(name: str, tmp_path: Path) -> None:
    learner = small(name, short_recipe(3, autocast=True))
    for task in digits(2, 0.5).tasks if not learner.at_once else ():
        learner.learn(task)
    if learner.at_once:
        learner.learn(digits(2, 0.5))
    assert accuracy(learner, digits(2, 0.5).tasks[-1]) > (0.6 if name in ("hrn-paper", "hat") else 0.8)
    assert {tensor.dtype for tensor in files.state_of(learner).values() if tensor.is_floating_point()} <= {
        torch.float32
    }
    assert learner.encode(digits().tasks[0].test.images, 0).dtype == torch.float32
    with learner.autocast():
        outputs = learner.heads[0](learner.encode(digits().tasks[0].test.images[:5], 0))
    assert outputs.dtype == torch.bfloat16
    learner.save(tmp_path)
    again = load_learner(tmp_path)
    assert again.recipe.autocast
    assert_same(learner, again)


def test_channels_last_changes_the_layout_of_images() -> None:
    task = digits(1, 0.5).tasks[0]
    plain, last = (
        create_learner("vc", (1, 8, 8), replace(short_recipe(1), channels_last=each), backbone="resnet18x0.125")
        for each in (False, True)
    )
    for learner in (plain, last):
        learner.learn(task)
    images = [each.normalise(task.test.images, each.tasks[0]) for each in (plain, last)]
    assert images[1].is_contiguous(memory_format=torch.channels_last)
    for ours, theirs in zip(plain.parameters(), last.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-4)


def test_a_recipe_without_these_settings_is_written_as_before() -> None:
    names = {"autocast", "channels_last"}
    assert not names & set(short_recipe().to_dict())
    recipe = replace(short_recipe(), **dict.fromkeys(names, True))
    assert Recipe.from_dict(recipe.to_dict()) == recipe
