"""Every learner works with every backbone: built in, registered by name, unit specs, or a module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hashroute import UnitSpec, create_learner, load_learner
from hashroute.learners import learner_names
from hashroute.nn.backbones import BACKBONES, PlainEncoder, register_backbone
from support import assert_same, digits, fresh, short_recipe

OPTIONS: dict[str, dict[str, Any]] = {"ell": {"code_size": 10}, "ewc": {"samples": 20}, "hrn": {"memory_features": 50}}
"""Codes must be smaller than the features, here 64 at least; and the others are quicker so."""


class Squeeze(nn.Module):
    """A level with a path around it, a linear layer over channels, and other sizes than its input."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding="same", groups=2 if before > 1 else 1)
        self.norm = nn.BatchNorm2d(after)
        self.mix = nn.Linear(after, after, bias=False)
        self.down = nn.Conv2d(after, after, 2, 2, bias=False)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        maps = self.norm(self.first(maps)).relu()
        return self.down(maps + self.mix(maps.permute(0, 2, 3, 1)).permute(0, 3, 1, 2))


def own() -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    module = nn.Sequential(Squeeze(1, 8), Squeeze(8, 16))
    with torch.no_grad():
        for weight in module.parameters():
            weight.copy_(0.2 * torch.randn(weight.shape, generator=generator))
    return module


def two_levels(image_shape: Sequence[int]) -> list[nn.Module]:
    return [
        nn.Sequential(nn.Conv2d(image_shape[0], 6, 3, 2, 1, padding_mode="reflect"), nn.GELU()),
        nn.Sequential(nn.Conv2d(6, 8, 1), nn.LayerNorm([8, 4, 4], bias=False), nn.GELU()),
    ]


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    register_backbone("two levels")(two_levels)
    yield
    del BACKBONES["two levels"]


BACKBONE: dict[str, Any] = {
    "small": "small",
    "residual": "resnet18x0.125",
    "registered": "two levels",
    "module": own(),
    "specs": (UnitSpec(4, 3, 2, 1), UnitSpec(8, 3, 1, 1, dropout=0.3)),
}


@pytest.mark.parametrize("kind", BACKBONE)
@pytest.mark.parametrize("name", learner_names())
def test_every_learner_works_with_every_backbone(name: str, kind: str, tmp_path: Path) -> None:
    first, second, third = digits(3, 0.2).tasks
    backbone = BACKBONE[kind]
    learner = create_learner(name, (1, 8, 8), epochs=1, backbone=backbone, **OPTIONS.get(name, {}))
    learner.learn(first).learn(second)
    learner.save(tmp_path)
    again = load_learner(tmp_path, backbone=backbone if kind == "module" else None)
    assert_same(learner, again)
    for task in (first, second):
        images = task.test.images
        assert torch.equal(learner.logits(images, task.name), again.logits(images, task.name))
    for ours, theirs in zip(learner.predict(images), again.predict(images), strict=True):
        assert torch.equal(ours, theirs)
    if kind == "module":  # the others learn on in the same way
        learner.learn(third)
        again.learn(third)
        assert_same(learner, again)


@pytest.mark.parametrize("rank", [0, 1])
def test_hrn_forgets_nothing_with_a_module_of_ones_own(rank: int) -> None:
    """Also at the bound, where only heads are trained: the statistics of its batch norms stay as they are."""
    tasks = digits(4, 0.3).tasks
    learner = create_learner("hrn", (1, 8, 8), backbone=own(), epochs=2, rank=rank, max_units=4, memory_features=50)
    learner.recipe = short_recipe(2)
    before = []
    for task in tasks:
        learner.learn(task)
        before.append(learner.logits(task.test.images, task.name))
        for index, logits in enumerate(before):
            assert torch.equal(learner.logits(tasks[index].test.images, index), logits)
    assert "reuse" in {decision.action for decision in learner.decisions}


def test_a_name_or_specs_replace_the_backbone_of_a_recipe_and_are_saved(tmp_path: Path) -> None:
    recipe = short_recipe(1)
    for place, backbone in enumerate(("two levels", [UnitSpec(5, 3)])):
        learner = create_learner("vc", (1, 8, 8), recipe, backbone=backbone)
        assert learner.recipe.backbone in ("two levels", (UnitSpec(5, 3),))
        encoder: Any = learner.encoder
        assert isinstance(encoder, PlainEncoder)
        assert len(encoder.levels) == (2 if backbone == "two levels" else 1)
        learner.learn(digits(1, 0.2).tasks[0])
        learner.save(tmp_path / str(place))
        assert_same(load_learner(tmp_path / str(place)), learner)


def test_a_model_says_which_backbone_it_lacks(tmp_path: Path) -> None:
    task = digits(1, 0.2).tasks[0]
    for place, backbone in (("own", own()), ("named", "two levels")):
        fresh("vc", 1, backbone=backbone).learn(task).save(tmp_path / place)
    with pytest.raises(ValueError, match=r"^this model has a backbone of your own: give the same module with"):
        load_learner(tmp_path / "own")
    with pytest.raises(ValueError, match="it is damaged, or of another version"):
        load_learner(tmp_path / "own", backbone=nn.Sequential(nn.Conv2d(1, 3, 3)))
    build = BACKBONES.pop("two levels")
    try:
        with pytest.raises(ValueError, match=r"^there is no backbone 'two levels': expected one of small, resnet18"):
            load_learner(tmp_path / "named")
    finally:
        BACKBONES["two levels"] = build


def test_a_module_is_copied_and_never_trained_itself() -> None:
    module = own()
    before = [tensor.clone() for tensor in module.state_dict().values()]
    create_learner("vc", (1, 8, 8), epochs=1, backbone=module).learn(digits(1, 0.2).tasks[0])
    assert all(map(torch.equal, module.state_dict().values(), before))
