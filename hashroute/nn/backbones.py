"""Backbones: an encoder is a list of levels, each a module that turns maps into maps.

A backbone is a name, a tuple of `UnitSpec`, or a module whose children are the levels. `register_backbone` adds a name.
A backbone may begin with a frozen stem, a pre-trained network (see `pretrained`); its levels are trained on the stem's
maps.
"""

from __future__ import annotations

import copy
import inspect
import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d

from hashroute.nn.pretrained import STEMS, FrozenStem, find_stem, from_file, is_file, is_pretrained
from hashroute.nn.units import ConvBlock, ConvUnit, UnitSpec
from hashroute.registry import Registry
from hashroute.schema import shown

WIDEST = 4
"""The largest width factor of a backbone. A path of resnet18x4 has 700 MB."""

Build = Callable[..., Sequence[nn.Module]]
"""Makes the levels for images of a shape (channels, height, width), with fresh weights; may take `width`, a factor."""

BackboneLike = str | Sequence[UnitSpec] | nn.Module

BACKBONES: Registry[Build] = Registry("a backbone")
"""Functions that build the levels of a backbone, by name."""


def register_backbone(name: str) -> Callable[[Build], Build]:
    """Decorate a function from an image shape to a list of levels, so that learners find it by this name.

    If the function takes `width`, then "NAMEx0.5" builds it with half of the channels.
    """

    def register(build: Build) -> Build:
        BACKBONES.add(name, build, build.__module__)
        return build

    return register


@dataclass(frozen=True)
class Backbone:
    """How the levels of an encoder are built, for images of one shape."""

    build: Callable[[], Sequence[nn.Module]]
    depth: int
    """How many levels there are."""
    channels_last: bool = False
    """Whether images are laid out with their channels last, which makes pooling several times as fast."""
    stem: FrozenStem | None = None
    """A pre-trained network that turns images into the maps that the levels take."""

    def new_levels(self) -> nn.ModuleList:
        """The levels, with fresh weights."""
        return nn.ModuleList(self.build())


def find_backbone(backbone: BackboneLike, image_shape: Sequence[int]) -> Backbone:
    """The backbone for images of a shape, from its name, its unit specs, or a module whose children are the levels.

    Every path that starts from nothing gets a copy of a module as it was given.
    """
    shape = tuple(image_shape)
    if isinstance(backbone, FrozenStem):
        return _on_stem(backbone, shape)
    if isinstance(backbone, str) and is_file(backbone):
        made = from_file(backbone, shape)
        return _on_stem(made, shape) if isinstance(made, FrozenStem) else find_backbone(nn.ModuleList(made), shape)
    if isinstance(backbone, str) and is_pretrained(backbone):
        return _on_stem(find_stem(backbone), shape)
    if isinstance(backbone, str):
        build = _named(backbone, shape)
        with torch.random.fork_rng(devices=[]):  # later random numbers are the same as without this look
            levels = nn.ModuleList(build())
        return Backbone(build, len(levels), any(map(_pools, levels.modules())))
    if isinstance(backbone, nn.Module):
        original = copy.deepcopy(backbone)
        if not list(original.children()):
            raise ValueError(
                f"the backbone is a {type(backbone).__name__} without children: expected a module whose children are "
                "the levels, such as nn.Sequential(level, level)"
            )
        return Backbone(partial(_copy_levels, original), len(list(original.children())))
    specs = tuple(backbone) if isinstance(backbone, Iterable) else ()
    if not specs or not all(isinstance(spec, UnitSpec) for spec in specs):
        raise ValueError(f"the backbone is {backbone!r}: expected a name, a module, or a list of UnitSpec")
    return Backbone(partial(unit_levels, specs, shape), len(specs), any(spec.max_pool > 1 for spec in specs))


def _on_stem(stem: FrozenStem, image_shape: tuple[int, ...]) -> Backbone:
    if image_shape[0] not in (1, 3):
        raise ValueError(
            f"images have {image_shape[0]} channels, backbone {stem.name!r} takes 1 or 3: give grey or colour images"
        )
    return Backbone(partial(unit_levels, STEM_UNITS, stem.shape), len(STEM_UNITS), stem=stem)


def _copy_levels(original: nn.Module) -> list[nn.Module]:
    return list(copy.deepcopy(original).children())


def feature_count(backbone: BackboneLike, image_shape: Sequence[int], pool: int) -> int:
    """How many numbers the last level gives for an image, pooled to this side (0: not pooled)."""
    found = find_backbone(backbone, image_shape)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        encoder = PlainEncoder(found.new_levels(), pool).eval()
        shape = image_shape if found.stem is None else found.stem.shape
        return int(encoder(torch.zeros(1, *shape)).shape[1])


def _named(name: str, shape: tuple[int, ...]) -> Callable[[], Sequence[nn.Module]]:
    """The function that builds a backbone by name, with a width factor where the name ends with one."""
    if name in BACKBONES:
        return partial(BACKBONES[name], shape)
    parts = re.fullmatch(r"(.+)x(\d+(?:\.\d+)?)", name)
    if parts and parts[1] in BACKBONES:
        build, width = BACKBONES[parts[1]], float(parts[2])
        if "width" not in inspect.signature(build).parameters:
            raise ValueError(f"backbone {parts[1]!r} has no width factor: use it without x{parts[2]}")
        if not 0 < width <= WIDEST:
            raise ValueError(
                f"the width factor of backbone {name!r} is {width:g}: expected more than 0, at most {WIDEST}"
            )
        return partial(build, shape, width=width)
    raise ValueError(
        f"there is no backbone {shown(name)}: expected one of {', '.join([*BACKBONES, *STEMS])}, timm:NAME or "
        "FILE.py:FUNCTION, with a width factor such as resnet18x0.25 where it has one, or register it with "
        "register_backbone"
    )


def _pools(module: nn.Module) -> bool:
    """Whether a module max-pools."""
    return isinstance(module, nn.MaxPool2d) or (isinstance(module, ConvBlock) and module.spec.max_pool > 1)


class PlainEncoder(nn.Module):
    """Levels, one after the other; the last maps, pooled to a side (0: not pooled), are the features."""

    def __init__(self, levels: nn.ModuleList, pool: int = 0) -> None:
        super().__init__()
        self.levels = levels
        self.pool = pool

    def forward(self, maps: Tensor) -> Tensor:
        """maps: (n, channels, height, width); returns (n, features)."""
        for level in self.levels:
            maps = level(maps)
        return (adaptive_avg_pool2d(maps, self.pool) if self.pool else maps).flatten(1)


def layers_of(module: nn.Module) -> list[nn.Conv2d | nn.Linear]:
    """All convolutions and linear layers of a module: what methods that look inside work on."""
    return [layer for layer in module.modules() if isinstance(layer, nn.Conv2d | nn.Linear)]


# -------------------------------------------------------------------- built in


def unit_levels(specs: Sequence[UnitSpec], image_shape: Sequence[int]) -> list[nn.Module]:
    """A convolution unit for each spec, one a level."""
    levels: list[nn.Module] = []
    channels = image_shape[0]
    for level, spec in enumerate(specs):
        levels.append(ConvUnit(spec, channels, "slice", f"level {level}"))
        channels = spec.channels_out
    return levels


def small_units(image_shape: Sequence[int], width: float = 1.0) -> tuple[UnitSpec, ...]:
    """Two or three 3 x 3 blocks with group norm and 2 x 2 max-pooling, by the size of the images."""
    side = min(image_shape[1:])
    widths = (32, 64, 128) if side >= 32 else (16, 32, 64) if side >= 16 else (16, 32)
    return tuple(UnitSpec(max(8, round(each * width / 8) * 8), 3, 1, 1, norm_groups=8, max_pool=2) for each in widths)


STEM_UNITS = (UnitSpec(128, 1, norm_groups=8),)
"""What is trained on the maps of a frozen stem: one level of few weights, because every fork has its own."""


@register_backbone("small")
def small(image_shape: Sequence[int], width: float = 1.0) -> list[nn.Module]:
    """The default: two or three small convolution blocks."""
    return unit_levels(small_units(image_shape, width), image_shape)


@register_backbone("resnet18")
def resnet18(image_shape: Sequence[int], width: float = 1.0) -> list[nn.Module]:
    """ResNet-18 with group norm: four levels of two residual blocks.

    The first level has the stem: 3 x 3 for small images; 7 x 7 with stride 2 and pooling from 96 pixels on.
    """
    channels = [max(8, round(each * width / 8) * 8) for each in (64, 128, 256, 512)]
    levels: list[nn.Module] = []
    before = channels[0]
    for level, after in enumerate(channels):
        stage: list[nn.Module] = _stem(image_shape, after) if level == 0 else []
        stage += [Residual(before, after, stride=1 if level == 0 else 2), Residual(after, after)]
        levels.append(nn.Sequential(*stage))
        before = after
    return levels


def _stem(image_shape: Sequence[int], channels: int) -> list[nn.Module]:
    large = min(image_shape[1:]) >= 96
    kernel, stride = (7, 2) if large else (3, 1)
    layers: list[nn.Module] = [_convolution(image_shape[0], channels, kernel, stride), _norm(channels), nn.ReLU()]
    return [*layers, nn.MaxPool2d(3, 2, 1)] if large else layers


class Residual(nn.Module):
    """Two 3 x 3 convolutions with group norm, added to what came in."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.first = _convolution(before, after, 3, stride)
        self.first_norm = _norm(after)
        self.second = _convolution(after, after, 3, 1)
        self.second_norm = _norm(after)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Sequential(_convolution(before, after, 1, stride), _norm(after))

    def forward(self, maps: Tensor) -> Tensor:
        """maps: (n, channels, height, width)."""
        changed = self.first_norm(self.first(maps)).relu()
        changed = self.second_norm(self.second(changed))
        summed: Tensor = changed + self.shortcut(maps)
        return summed.relu()


def _convolution(before: int, after: int, kernel: int, stride: int) -> nn.Conv2d:
    layer: Any = nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer  # type: ignore[no-any-return]


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(8, channels), channels)
