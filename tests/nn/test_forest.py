"""Paths and their forks: what a forest computes, and what it keeps of each path."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d

from hashroute import UnitSpec
from hashroute.nn.backbones import BackboneLike, find_backbone
from hashroute.nn.forest import Forest

SPECS = (UnitSpec(4, 3, 1, 1, norm_groups=2, max_pool=2), UnitSpec(8, 3, 1, 1, norm_groups=2, max_pool=2))


class Scaled(nn.Conv2d):
    """A convolution of someone else's."""


OWN = nn.Sequential(
    nn.Sequential(nn.Conv2d(1, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU()),
    nn.Sequential(Scaled(6, 6, 3, 2, 1, bias=False), nn.GroupNorm(2, 6), nn.Linear(4, 4), nn.ReLU()),
)


def forest(backbone: BackboneLike = SPECS) -> Forest:
    torch.manual_seed(0)
    grown = Forest(find_backbone(backbone, (1, 8, 8)), 32, seed=0)
    grown.grow()
    return grown.eval()


@pytest.mark.parametrize("backbone", [SPECS, OWN, "resnet18x0.125"], ids=["units", "own", "residual"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_fork_starts_from_its_parent_and_leaves_it_alone(rank: int, backbone: BackboneLike) -> None:
    grown, images = forest(backbone), torch.randn(6, 1, 8, 8)
    before = grown(images, 0).detach()
    grown.freeze(0)
    child = grown.grow(0, rank)
    grown.eval()
    torch.testing.assert_close(grown(images, child), before)
    optimizer = torch.optim.SGD([weight for weight in grown.parameters() if weight.requires_grad], 1.0)
    for _ in range(3):
        optimizer.zero_grad()
        grown(images, child)[:, 0].sum().backward()
        optimizer.step()
    assert torch.equal(grown(images, 0), before)
    assert not torch.allclose(grown(images, child), before)


@pytest.mark.parametrize("backbone", [SPECS, OWN], ids=["units", "own"])
def test_a_fork_of_low_rank_keeps_less_and_comes_back_from_its_state(backbone: BackboneLike) -> None:
    grown, images = forest(backbone), torch.randn(6, 1, 8, 8)
    for parent, rank in ((0, 1), (1, 2), (2, 0)):
        path = grown.grow(parent, rank)
        with torch.no_grad():
            for weight in grown.paths[path].parameters():
                weight += 0.1 * torch.randn_like(weight)
        assert grown.weights(path) == grown.fork_weights(rank)
        grown.freeze(path)
    assert grown.weights(1) < grown.weights(2) < grown.weights(3) == grown.weights(0)
    again = Forest(find_backbone(backbone, (1, 8, 8)), 32, seed=0)
    again.grow_like(grown.config)
    again.load_state_dict(grown.state_dict())
    again.settle()
    for copied in (again, pickle.loads(pickle.dumps(grown))):
        for path in range(4):
            assert torch.equal(grown.eval()(images, path), copied.eval()(images, path))
    parameters = {name for name, _ in grown.named_parameters()}
    saved = sum(tensor.numel() for name, tensor in grown.state_dict().items() if name in parameters)
    assert saved == sum(grown.weights(path) for path in range(4))
    assert not any(name.endswith("base") for name in grown.state_dict()), "a parent's weights are kept twice"


def test_a_path_that_was_dropped_leaves_nothing() -> None:
    grown = forest()
    before = grown.state_dict().keys()
    grown.grow(0, 1)
    grown.drop_last()
    assert (len(grown), grown.config) == (1, {"parents": [None], "ranks": [0]})
    assert grown.state_dict().keys() == before


def test_features_are_a_sum_of_the_hashes_of_all_levels() -> None:
    grown, images = forest(), torch.randn(5, 1, 8, 8)
    maps = list(grown.maps(images, 0))
    assert [tuple(each.shape[1:]) for each in maps] == [(1, 8, 8), (4, 4, 4), (8, 2, 2)]
    centred = [each - each.mean((1, 2, 3), keepdim=True) for each in maps]
    image, first, last = (phi.normalised(each) for phi, each in zip(grown.hashes, centred, strict=True))
    for each in (image, first, last):
        torch.testing.assert_close(each.norm(dim=1), torch.ones(5))
    torch.testing.assert_close(grown(images, 0), image / 4 + first / 2 + last)


@pytest.mark.parametrize("backbone", [SPECS, OWN, "resnet18x0.125"], ids=["units", "own", "residual"])
def test_several_paths_at_once_give_the_features_of_each(backbone: BackboneLike) -> None:
    grown, images = forest(backbone), torch.randn(9, 1, 8, 8)
    grown.grow()
    grown.grow(0, 1)
    grown.eval()
    images[4] = 1  # nothing is left of it without its mean
    asked = [(images[:5], 2), (images[3:], 0), (images[4:5], 1)]
    with torch.no_grad():
        torch.testing.assert_close(grown.forward_several(asked), torch.cat([grown(*each) for each in asked]))


def test_what_all_maps_have_in_common_is_no_feature() -> None:
    grown, images = forest(), torch.randn(5, 1, 8, 8)
    same = [phi.normalised(torch.ones(2, 8, 2, 2) * each) for phi, each in zip(grown.hashes, (1, 2, 3), strict=True)]
    assert all(each.norm() > 1 for each in same), "a constant map has a hash"
    with torch.no_grad():
        for unit in grown.paths[0].children():
            unit.blocks[0].norm = None
            unit.blocks[0].convolution.weight.zero_()
            unit.blocks[0].convolution.bias.fill_(0.1)
    image = images - images.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(grown(images, 0), grown.hashes[0].normalised(image) / 4)


@pytest.mark.parametrize("sides", [(16, 16), (7, 7), (5, 3), (14, 9), (4, 4)])
def test_maps_are_pooled_as_the_library_does(sides: tuple[int, int]) -> None:
    level = nn.Conv2d(1, 2, 1)
    grown = Forest(find_backbone(nn.Sequential(level), (1, *sides)), 32)
    grown.grow()
    images = torch.randn(3, 1, *sides, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    grown.double()
    whole, pooled = grown.maps(images, 0)
    assert torch.equal(whole, images)
    torch.testing.assert_close(pooled, adaptive_avg_pool2d(level.double()(images), 4))
