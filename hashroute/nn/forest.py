"""A pool of paths, each forked from another: a path is trained once and then frozen for good.

A path is a chain of units, one for each level of the backbone. Its features are a weighted sum, over levels, of the
normalised hashes of the image and of every unit's maps. All paths share one hash function for each level. Each level
counts twice as much as the level below it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d
from typing_extensions import Self

from hashroute.devices import all_true
from hashroute.nn.backbones import Backbone, layers_of
from hashroute.nn.hashing import NEGLIGIBLE, EvenHash, FeatureHash, largest_size, normalise
from hashroute.nn.low_rank import LowRank, make_low_rank, numbers_saved

POOLED = 4
"""Larger maps are average-pooled to this side before they are hashed: accuracy is the same, and it is faster."""


class Forest(nn.Module):
    """A pool of paths.

    Args:
        backbone: builds the units of a path.
        features: s, the length of a hash vector.
        seed: of the hash functions. The weights of a first path follow torch.manual_seed.
    """

    def __init__(self, backbone: Backbone, features: int, seed: int = 0) -> None:
        super().__init__()
        self.backbone = backbone
        self.features = features
        self.hashes = [EvenHash(features, (seed << 8) + level) for level in range(backbone.depth + 1)]
        self.paths = nn.ModuleList()
        self.parents: list[int | None] = []
        self.ranks: list[int] = []
        """The rank of the differences between a path and its parent; 0 if they are not restricted."""

    def __len__(self) -> int:
        return len(self.paths)

    def grow(self, parent: int | None = None, rank: int = 0) -> int:
        """Add a path with fresh weights, or a fork that starts from its parent's weights; returns its index.

        With a rank, only differences of this rank from the parent's layers are trained and kept, in every layer where
        this needs fewer numbers.
        """
        units = self.backbone.new_levels()
        if parent is not None:
            copy_weights(self.paths[parent], units)
            for layer in layers_of(units):
                if numbers_saved(layer.weight, rank):
                    make_low_rank(layer, rank)
        self.paths.append(units)
        self.parents.append(parent)
        self.ranks.append(rank)
        return len(self) - 1

    def freeze(self, path: int) -> None:
        """Stop all training of a path."""
        self.paths[path].requires_grad_(False)

    def train(self, mode: bool = True) -> Self:
        """Frozen paths stay in eval mode: nothing in them changes, as the statistics of a batch norm would."""
        super().train(mode)
        for path in self.paths:
            if not any(weight.requires_grad for weight in path.parameters()):
                path.eval()
        return self

    def drop_last(self) -> None:
        """Remove the path that was added last; no other path may have been forked from it."""
        self.paths = self.paths[:-1]
        self.parents.pop()
        self.ranks.pop()

    def maps(self, images: Tensor, path: int) -> Iterator[Tensor]:
        """The images, then the maps of each unit of the path, pooled for hashing."""
        yield images
        maps = images
        units: Any = self.paths[path]
        for unit in units:
            maps = unit(maps)
            pooled = maps if max(maps.shape[2:]) <= POOLED else _pool(maps)
            yield pooled.to(images.dtype)  # units may compute in less precision, hashes do not

    def hashed(self, images: Tensor, path: int) -> Iterator[Tensor]:
        """The hash vectors of the centred maps of each level: (n, s), each row of norm 1 or 0."""
        return map(hash_centred, self.hashes, self.maps(images, path))

    def forward(self, images: Tensor, path: int) -> Tensor:
        """images: (n, channels, height, width). Returns the features of a path: (n, s)."""
        return sum_by_halves(self.hashed(images, path))

    def forward_several(self, asked: Sequence[tuple[Tensor, int]]) -> Tensor:
        """The features of images along several paths, one after the other: (n of all, s).

        asked: images, each with a path. Maps of all paths are hashed together: for few images, that is faster.
        """
        levels = zip(*(self.maps(images, path) for images, path in asked), strict=True)
        return sum_by_halves(hash_centred(phi, torch.cat(maps)) for phi, maps in zip(self.hashes, levels, strict=True))

    def weights(self, path: int) -> int:
        """How many numbers a path adds to what is stored."""
        return sum(weight.numel() for weight in self.paths[path].parameters())

    def fork_weights(self, rank: int) -> int:
        """How many numbers a fork of a rank adds."""
        saved = sum(numbers_saved(layer.weight, rank) for layer in layers_of(self.paths[0]))
        return self.weights(0) - saved

    @property
    def config(self) -> dict[str, Any]:
        """The shape of the forest, as plain values."""
        return {"parents": list(self.parents), "ranks": list(self.ranks)}

    def grow_like(self, config: dict[str, Any]) -> None:
        """Add the paths that `config` describes; load a state into them and call `settle`."""
        for parent, rank in zip(config["parents"], config["ranks"], strict=True):
            self.grow(parent, rank)

    @torch.no_grad()
    def settle(self) -> None:
        """Give forks of low rank the loaded weights of their parents as their base, parents first."""
        for path, parent in zip(self.paths, self.parents, strict=True):
            if parent is None:
                continue
            for ours, theirs in zip(layers_of(path), layers_of(self.paths[parent]), strict=True):
                if isinstance(ours, LowRank):
                    ours.base.copy_(theirs.weight)


def hash_centred(phi: FeatureHash, maps: Tensor) -> Tensor:
    """The hash vectors of centred maps: (n, s), each row of norm 1 or 0.

    Activations are mostly positive. Without centring, their common mean would dominate the hash vector.
    """
    centred = maps - maps.mean((1, 2, 3), keepdim=True)
    scaled, size = phi.scaled(centred)
    hashed, _ = normalise(scaled)
    varies = size > NEGLIGIBLE * largest_size(maps)  # otherwise only rounding noise is left of a map
    return hashed if all_true(varies) else hashed * varies[:, None]


def _pool(maps: Tensor) -> Tensor:
    """Average-pool maps of any size; one matrix product is several times as fast as adaptive pooling."""
    means = _windows(*maps.shape[2:], maps.dtype, maps.device)
    return (maps.flatten(2) @ means).view(*maps.shape[:2], POOLED, POOLED)


@cache
def _windows(height: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """(height * width, POOLED * POOLED) the weight of each number of a map in each mean."""
    with torch.inference_mode(False):  # the table outlives the mode in which it was first needed
        down, across = (adaptive_avg_pool1d(torch.eye(side, dtype=dtype), POOLED) for side in (height, width))
        return torch.kron(down, across).to(device)


@torch.no_grad()
def copy_weights(source: nn.Module, target: nn.Module) -> None:
    """Copy all weights and buffers; a layer of low rank is copied as the weights that it computes."""
    for theirs, ours in zip(layers_of(source), layers_of(target), strict=True):
        ours.weight.copy_(theirs.weight)
    known = {**dict(source.named_parameters()), **dict(source.named_buffers())}
    for name, value in (*target.named_parameters(), *target.named_buffers()):
        if name in known:
            value.copy_(known[name])


def sum_by_halves(hashed: Iterable[Tensor]) -> Tensor:
    """Add up the hash vectors of all levels, each counting twice as much as the one before: (n, s)."""
    return reduce(lambda below, above: below / 2 + above, hashed)
