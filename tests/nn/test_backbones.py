"""Backbones by name, from unit specs and from modules: the same doors for all encoders."""

from __future__ import annotations

import pickle
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from hashroute import UnitSpec
from hashroute.nn.backbones import (
    BACKBONES,
    PlainEncoder,
    feature_count,
    find_backbone,
    layers_of,
    register_backbone,
)

SHAPE = (3, 16, 16)
OWN = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU()), nn.Conv2d(4, 5, 3, 2))


def levels(image_shape: Sequence[int], width: float = 1.0) -> list[nn.Module]:
    """Two levels of someone else's."""
    channels = round(8 * width)
    return [nn.Conv2d(image_shape[0], channels, 3, 2, 1), nn.Conv2d(channels, channels, 3, 2, 1)]


@pytest.fixture
def registered() -> Iterator[str]:
    register_backbone("two")(levels)
    yield "two"
    del BACKBONES["two"]


@pytest.mark.parametrize("backbone", [*BACKBONES, "smallx0.5", "resnet18x0.125", (UnitSpec(4, 3), UnitSpec(6, 3)), OWN])
def test_every_backbone_gives_maps_level_by_level(backbone: Any) -> None:
    found = find_backbone(backbone, SHAPE)
    encoder = PlainEncoder(found.new_levels()).eval()
    maps = torch.rand(2, *SHAPE)
    assert len(encoder.levels) == found.depth
    for level in encoder.levels:
        maps = level(maps)
        assert maps.dim() == 4
    assert feature_count(backbone, SHAPE, 0) == maps[0].numel() == encoder(torch.rand(2, *SHAPE)).shape[1]
    assert feature_count(backbone, SHAPE, 1) == maps.shape[1]
    assert pickle.loads(pickle.dumps(found)).depth == found.depth


def test_looking_for_a_backbone_draws_no_random_numbers() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    for backbone in ("resnet18x0.125", "small", OWN, (UnitSpec(4, 3),)):
        find_backbone(backbone, SHAPE)
        feature_count(backbone, SHAPE, 0)
    assert torch.equal(torch.get_rng_state(), before)


def test_levels_are_new_each_time_but_those_of_a_module_are_copies_of_it() -> None:
    first, second = (find_backbone("small", SHAPE).new_levels() for _ in range(2))
    assert not torch.equal(*(next(each.parameters()) for each in (first, second)))
    found = find_backbone(OWN, SHAPE)
    first, second = (found.new_levels() for _ in range(2))
    with torch.no_grad():
        next(first.parameters()).zero_()
    assert torch.equal(next(second.parameters()), next(OWN.parameters()))


@pytest.mark.usefixtures("registered")
def test_a_registered_backbone_is_found_by_name_and_width() -> None:
    assert feature_count("two", SHAPE, 0) == 8 * 4 * 4
    assert feature_count("twox0.5", SHAPE, 0) == 4 * 4 * 4
    with pytest.raises(ValueError, match="there is a backbone 'two' already: choose another name"):
        register_backbone("two")(levels)


def test_a_backbone_without_a_width_says_so(registered: str) -> None:
    BACKBONES[registered] = lambda image_shape: levels(image_shape)
    with pytest.raises(ValueError, match=re.escape("backbone 'two' has no width factor: use it without x0.5")):
        find_backbone("twox0.5", SHAPE)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ("vgg", "there is no backbone 'vgg': expected one of small, resnet18"),
        ("resnet18x0", "width factor of backbone 'resnet18x0' is 0: expected more than 0, at most 4"),
        (nn.ReLU(), "the backbone is a ReLU without children: expected a module whose children are the levels"),
        ((), r"the backbone is \(\): expected a name, a module, or a list of UnitSpec"),
        ((4, 8), r"the backbone is \(4, 8\): expected a name, a module, or a list of UnitSpec"),
        (18, "the backbone is 18: expected a name, a module, or a list of UnitSpec"),
    ],
)
def test_what_is_no_backbone_is_refused_in_one_line(backbone: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        find_backbone(backbone, SHAPE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(("side", "sides"), [(32, [32, 16, 8, 4]), (128, [32, 16, 8, 4])])
def test_the_residual_backbone_has_the_shape_of_resnet_18(side: int, sides: list[int]) -> None:
    encoder = find_backbone("resnet18", (3, side, side)).new_levels()
    convolutions = [layer for layer in layers_of(encoder) if layer.weight.shape[-1] > 1]
    assert len(convolutions) == 17, "and a head makes 18"
    assert sum(weight.numel() for weight in encoder.parameters()) == pytest.approx(11.17e6, rel=0.001)
    maps, found = torch.zeros(1, 3, side, side), []
    with torch.no_grad():
        for level in encoder:
            maps = level(maps)
            found.append((maps.shape[1], maps.shape[2]))
    assert found == list(zip((64, 128, 256, 512), sides, strict=True))


def test_layers_are_found_by_type_wherever_they_are() -> None:
    inner = nn.Sequential(nn.Conv2d(3, 4, 1), nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.GroupNorm(2, 4)}))
    assert [type(layer) for layer in layers_of(nn.Sequential(inner, nn.Conv2d(4, 4, 3)))] == [
        nn.Conv2d,
        nn.Linear,
        nn.Conv2d,
    ]
    (unit,) = find_backbone((UnitSpec(4, 3),), SHAPE).new_levels()
    assert len(layers_of(unit)) == 1
