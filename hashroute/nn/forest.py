"""Paths of units, each forked from another: trained once, then frozen for good.

A path is a chain of convolution units, one a level. Its features are a sum over levels of the normalised hashes of the
image and of every unit's maps, with one hash function a level, shared by all paths. The last level counts most: each
below it counts half as much as the one above, and the image least.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d

from hashroute.nn.hashing import NEGLIGIBLE, EvenHash, largest_size, normalise
from hashroute.nn.units import ConvBlock, ConvUnit, UnitSpec

POOLED = 4
"""Maps larger than this are average-pooled to it before they are hashed: nothing is lost, and it is faster."""


class Forest(nn.Module):
    """A pool of paths.

    Args:
        image_shape: channels, height and width of the images.
        specs: of a path's units, level by level.
        features: s, the length of a hash vector.
        seed: of the hash functions. Weights of a first path follow torch.manual_seed.
    """

    def __init__(self, image_shape: Sequence[int], specs: Sequence[UnitSpec], features: int, seed: int = 0) -> None:
        super().__init__()
        self.image_shape = tuple(image_shape)
        self.specs = tuple(specs)
        self.features = features
        self.hashes = [EvenHash(features, (seed << 8) + level) for level in range(len(specs) + 1)]
        self.paths = nn.ModuleList()
        self.parents: list[int | None] = []
        self.ranks: list[int] = []
        """Of the differences between a path's convolutions and its parent's, where these are smaller so: 0 for any."""

    def __len__(self) -> int:
        return len(self.paths)

    def grow(self, parent: int | None = None, rank: int = 0) -> int:
        """Add a path: fresh, or forked from a parent, whose weights it starts from; returns its number.

        With a rank, only differences of that rank from the parent's convolutions are trained and kept, wherever that
        is smaller.
        """
        units = self.new_units()
        if parent is not None:
            _copy(self.paths[parent], units)
            for block in _blocks(units):
                if _saved(block.convolution.weight, rank):
                    block.convolution = LowRank(block.convolution, rank)
        self.paths.append(units)
        self.parents.append(parent)
        self.ranks.append(rank)
        return len(self) - 1

    def new_units(self) -> nn.ModuleList:
        """Fresh units for a path."""
        units, channels = nn.ModuleList(), self.image_shape[0]
        for level, spec in enumerate(self.specs):
            units.append(ConvUnit(spec, channels, "slice", f"level {level} of path {len(self)}"))
            channels = spec.channels_out
        return units

    def freeze(self, path: int) -> None:
        """From now on nothing changes this path."""
        self.paths[path].requires_grad_(False)

    def drop_last(self) -> None:
        """Remove the path that was added last; nothing may have been forked from it."""
        self.paths = self.paths[:-1]
        self.parents.pop()
        self.ranks.pop()

    def maps(self, images: Tensor, path: int) -> Iterator[Tensor]:
        """The images, then the maps that each unit of the path gives, pooled for hashing: one a level."""
        yield images
        maps = images
        units: Any = self.paths[path]
        for unit in units:
            maps = unit(maps)
            yield maps if max(maps.shape[2:]) <= POOLED else _pool(maps)

    def hashed(self, images: Tensor, path: int) -> Iterator[Tensor]:
        """The hash vectors of the maps of each level, without their mean: (n, s), each row of norm 1 or 0.

        Activations are mostly positive: what all maps have in common would be much of a hash vector, and says nothing.
        """
        for phi, maps in zip(self.hashes, self.maps(images, path), strict=True):
            centred = maps - maps.mean((1, 2, 3), keepdim=True)
            scaled, size = phi.scaled(centred)
            hashed, _ = normalise(scaled)
            varies = size > NEGLIGIBLE * largest_size(maps)  # else only rounding noise is left of a map
            yield hashed if varies.all() else hashed * varies[:, None]

    def forward(self, images: Tensor, path: int) -> Tensor:
        """images: (n, channels, height, width). Returns the features of a path: (n, s)."""
        return sum_by_halves(self.hashed(images, path))

    def weights(self, path: int) -> int:
        """How many numbers a path adds to what is kept."""
        return sum(weight.numel() for weight in self.paths[path].parameters())

    def fork_weights(self, rank: int) -> int:
        """How many numbers a fork of a rank adds."""
        saved = sum(_saved(block.convolution.weight, rank) for block in _blocks(self.paths[0]))
        return self.weights(0) - saved

    @property
    def config(self) -> dict[str, Any]:
        """The shape of the forest, as plain values."""
        return {"parents": list(self.parents), "ranks": list(self.ranks)}

    def grow_like(self, config: dict[str, Any]) -> None:
        """Make room for the paths that `config` described, to load a state into; then call `settle`."""
        for parent, rank in zip(config["parents"], config["ranks"], strict=True):
            self.grow(parent, rank)

    @torch.no_grad()
    def settle(self) -> None:
        """After a state was loaded: low-rank differences are added to their parents' weights, parents first."""
        for path, parent in zip(self.paths, self.parents, strict=True):
            if parent is None:
                continue
            for ours, theirs in zip(_blocks(path), _blocks(self.paths[parent]), strict=True):
                if isinstance(ours.convolution, LowRank):
                    ours.convolution.base.copy_(theirs.convolution.weight)


def _pool(maps: Tensor) -> Tensor:
    """Average-pool maps of any size; as one product several times as fast as the library's way."""
    means = _windows(*maps.shape[2:], maps.dtype, maps.device)
    return (maps.flatten(2) @ means).view(*maps.shape[:2], POOLED, POOLED)


@cache
def _windows(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(height * width, POOLED * POOLED) what each number of a map counts in each mean."""
    with torch.inference_mode(False):  # it outlives the mode in which it was first needed
        down, across = (adaptive_avg_pool1d(torch.eye(side, dtype=dtype), POOLED) for side in (height, width))
        return torch.kron(down, across).to(device)


class LowRank(nn.Module):
    """A convolution whose weights are those of another plus U V: a difference of low rank, which alone is kept."""

    base: Tensor

    def __init__(self, convolution: nn.Conv2d, rank: int) -> None:
        """U = 0 and a random V: the difference is 0 at first."""
        super().__init__()
        base = convolution.weight.detach().clone()
        inputs = base[0].numel()
        self.in_channels = convolution.in_channels
        self.bias = convolution.bias
        self.register_buffer("base", base, persistent=False)
        self.up = nn.Parameter(base.new_zeros(len(base), rank))
        self.down = nn.Parameter(torch.randn(rank, inputs, device=base.device, dtype=base.dtype) / inputs**0.5)

    @property
    def weight(self) -> Tensor:
        """(out, in, height, width)."""
        return self.base + (self.up @ self.down).view_as(self.base)

    def extra_repr(self) -> str:
        return f"rank {len(self.down)}, of weights {tuple(self.base.shape)}"


def _saved(weight: Tensor, rank: int) -> int:
    """By how many numbers a difference of a rank is smaller than the weights; 0 if it is not, or rank is 0."""
    return max(0, weight.numel() - rank * (len(weight) + weight[0].numel())) if rank else 0


@torch.no_grad()
def _copy(source: nn.Module, target: nn.Module) -> None:
    """Copy all weights, those of a convolution of low rank as what they come to."""
    for theirs, ours in zip(_blocks(source), _blocks(target), strict=True):
        ours.convolution.weight.copy_(theirs.convolution.weight)
    known = dict(source.named_parameters())
    for name, weight in target.named_parameters():
        if name in known:
            weight.copy_(known[name])


def sum_by_halves(hashed: Iterable[Tensor]) -> Tensor:
    """Add up hash vectors of all levels, each counting twice as much as the one before: (n, s)."""
    return reduce(lambda below, above: below / 2 + above, hashed)


def _blocks(units: nn.Module) -> Iterator[ConvBlock]:
    return (module for module in units.modules() if isinstance(module, ConvBlock))
