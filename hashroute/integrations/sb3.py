"""stable-baselines3: the network of the paper, and paths forked per task, as features extractors of any algorithm.

What an agent with a `ForestExtractor` does between tasks is in `sb3_tasks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from hashroute.nn.backbones import BackboneLike, find_backbone
from hashroute.nn.forest import hash_centred
from hashroute.nn.gaussian import GaussianMemories
from hashroute.nn.hashing import EvenHash
from hashroute.nn.network import HashRoutedNetwork
from hashroute.nn.units import UnitSpec

MEMORY_FEATURES, DIRECTIONS = 256, 24
"""Length of the hash vectors of memories, and principal directions of each."""

GRID = 4
"""Side of the grid on which memories average channels."""


class ImageExtractor(BaseFeaturesExtractor):  # type: ignore[misc]
    """A features extractor that takes images with their channels first or last."""

    def __init__(self, observation_space: spaces.Box, features: int) -> None:
        shape = tuple(getattr(observation_space, "shape", None) or ())
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError(
                f"observations are {observation_space}: expected images, a Box of (channels, height, width) or "
                "(height, width, channels)"
            )
        super().__init__(observation_space, features)
        self.channels_last = channel_axis(shape) == 2
        self.image_shape: tuple[int, int, int] = (shape[2], *shape[:2]) if self.channels_last else shape

    def images(self, observations: Tensor) -> Tensor:
        """Observations as images: (n, channels, height, width)."""
        return observations.movedim(-1, 1).contiguous() if self.channels_last else observations


def channel_axis(shape: Sequence[int]) -> int:
    """Whether channels are first or last in the shape of an image: 0 or 2.

    They are first if they are fewer than rows and columns.
    """
    return 0 if shape[0] < min(shape[1:]) else 2


class HashRoutedExtractor(ImageExtractor):
    """The hash-routed network of the paper, as a features extractor.

    Bases evolve once in each update: in passes in train mode that gradients flow through, and not in those of rollouts
    and targets. A second pass of the same batch, as in the loss of an actor, changes nothing. A target network gets the
    bases when it gets weights, whole and not averaged: an average of two bases is no basis.

    The residue penalty is not part of the loss of any algorithm of stable-baselines3, so it is left out.

    Args:
        observation_space: of images, with their channels first or last.
        features: s, the length of hash vectors, and of the result.
        units: the specs of the units; by default four that fit the size of the images.
        network: other settings of `HashRoutedNetwork`, by name.
    """

    running_bases: Tensor
    """(M, m, s) the bases. stable-baselines3 copies what is called "running" to target networks, as it does with the
    statistics of a batch norm."""

    def __init__(
        self,
        observation_space: spaces.Box,
        features: int = 256,
        units: Sequence[UnitSpec] | None = None,
        **network: Any,
    ) -> None:
        super().__init__(observation_space, features)
        units = _routed_units(min(self.image_shape[1:])) if units is None else units
        settings = {**network, "features": features, "output": "features"}
        self.network = HashRoutedNetwork(self.image_shape, units, **settings)
        self.register_buffer("running_bases", self.network.bases.vectors.clone())
        self._last: Tensor | None = None
        """The images of the last pass in which bases evolved."""

    def forward(self, observations: Tensor) -> Tensor:
        """observations: (n, ...), floating point. Returns (n, features), of root mean square of about 1."""
        images, bases = self.images(observations), self.network.bases
        evolve = self.training and torch.is_grad_enabled() and not self._is_last(images)
        self.network.train(evolve)
        if not evolve:  # this may be a target network
            bases.vectors.copy_(self.running_bases)
            bases.ranks.copy_(self.running_bases.any(2).sum(1))
        features: Tensor = self.network(images)
        if evolve:
            self._last = images.detach().clone()
            self.running_bases.copy_(bases.vectors)
        scaled: Tensor = features * self.features_dim**0.5
        return scaled

    def _is_last(self, images: Tensor) -> bool:
        return self._last is not None and torch.equal(self._last, images)


def _routed_units(side: int) -> tuple[UnitSpec, ...]:
    """Four units for images of this side: maps of each fit all others."""
    stride = 1 if side < 16 else 2 if side < 48 else 4
    return (UnitSpec(16, 3, stride, 1),) * 4


class ForestExtractor(ImageExtractor):
    """A path of units for each task, forked from an earlier one, as a features extractor.

    One path is in training. The weights of the others are kept as they were left, bit for bit. The features are the
    normalised hash of the last maps of the path.

    Between tasks, call the methods of `ForestTasks`: they also take care of the heads, of all extractors that a policy
    has, of the optimiser and of the replay buffer.

    Args:
        observation_space: of images, with their channels first or last.
        features: s, the length of hash vectors, and of the result.
        units: the levels of a path: a name of a backbone, specs of units, or a module whose children are the levels.
        seed: of the hash functions.
    """

    paths: Tensor
    """(paths, weights) the weights of each path, as they were when it was last left."""
    parents: Tensor
    """(paths,) the path that each was forked from, -1 for none."""
    in_training: Tensor
    """() the path in training."""
    heads: Tensor
    """(paths, weights) the rest of the policy beside each path; empty but in the first extractor of a policy."""
    memory_of: Tensor
    """(paths,) the memory of what each task looks like, -1 for none."""

    def __init__(
        self,
        observation_space: spaces.Box,
        features: int = 256,
        units: BackboneLike | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(observation_space, features)
        backbone = find_backbone(path_levels(self.image_shape) if units is None else units, self.image_shape)
        self.path = backbone.new_levels()
        self.hash = EvenHash(features, seed)
        self.memory_hash = EvenHash(MEMORY_FEATURES, seed)
        self.memories = GaussianMemories(MEMORY_FEATURES, DIRECTIONS)
        self.register_buffer("paths", parameters_to_vector(self.path.parameters()).detach()[None].clone())
        self.register_buffer("parents", torch.tensor([-1]))
        self.register_buffer("in_training", torch.tensor(0))
        self.register_buffer("heads", torch.zeros(1, 0))
        self.register_buffer("memory_of", torch.tensor([-1]))

    def __len__(self) -> int:
        return len(self.parents)

    def forward(self, observations: Tensor) -> Tensor:
        """observations: (n, ...), floating point. Returns (n, features), of root mean square of about 1."""
        maps = self.images(observations)
        for unit in self.path:
            maps = unit(maps)
        features: Tensor = hash_centred(self.hash, maps) * self.features_dim**0.5
        return features

    @torch.no_grad()
    def start_task(self, parent: int | None = None) -> int:
        """Freeze the path in training, and train a fork of the parent from now on. Returns the number of the new path.

        parent: the path to fork; by default the one that was in training.
        """
        parent = int(self.in_training) if parent is None else self._checked(parent)
        self._leave()
        self.paths = torch.cat([self.paths, self.paths[parent][None]])
        self.heads = torch.cat([self.heads, self.heads[parent][None]])
        self.parents = torch.cat([self.parents, self.parents.new_tensor([parent])])
        self.memory_of = torch.cat([self.memory_of, self.memory_of.new_tensor([-1])])
        self._enter(len(self) - 1)
        return len(self) - 1

    @torch.no_grad()
    def resume_task(self, path: int) -> None:
        """Freeze the path in training, and go on with another one where it was left."""
        path = self._checked(path)
        self._leave()
        self._enter(path)

    def _leave(self) -> None:
        self.paths[self.in_training] = parameters_to_vector(self.path.parameters())

    def _enter(self, path: int) -> None:
        vector_to_parameters(self.paths[path].clone(), self.path.parameters())
        self.in_training.fill_(path)

    def _checked(self, path: int) -> int:
        if not 0 <= path < len(self):
            raise ValueError(f"there is no path {path}: expected 0 to {len(self) - 1}")
        return path

    @torch.no_grad()
    def remember(self, observations: Tensor) -> None:
        """Keep a Gaussian memory of what the task in training looks like. observations: (n, ...), floating point."""
        hashed = self._looks(observations)
        held_out = torch.arange(len(hashed)) % 5 == 4
        self.memories.write(hashed[~held_out], hashed[held_out])
        self.memory_of[self.in_training] = len(self.memories) - 1

    @torch.no_grad()
    def distances(self, observations: Tensor) -> Tensor:
        """(paths,) the divergence of observations from each memory, in nats per dimension; infinite without one."""
        if not len(self.memories):
            return self.memory_of.new_full((len(self),), torch.inf, dtype=torch.float32)
        found = self.memories.divergence(self._looks(observations)) / MEMORY_FEATURES
        return torch.where(self.memory_of < 0, torch.inf, found[self.memory_of])

    def _looks(self, observations: Tensor) -> Tensor:
        """(n, memory features) the hash of how much of every channel is where.

        Edges, which tell photographs apart, do not tell in which of several channels something is.
        """
        return self.memory_hash.normalised(adaptive_avg_pool2d(self.images(observations), GRID).clamp_min(0).sqrt())

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """A state may have more tasks than this extractor: make room for them."""
        for name in ("paths", "parents", "heads", "memory_of"):
            if prefix + name in state_dict:
                setattr(self, name, torch.zeros_like(state_dict[prefix + name], device=self.parents.device))
        if f"{prefix}memories.means" in state_dict:
            self.memories.reserve(len(state_dict[f"{prefix}memories.means"]))
        super()._load_from_state_dict(state_dict, prefix, *rest)


def path_levels(image_shape: Sequence[int]) -> nn.Module:
    """The levels of a path: convolutions, and one of 256 hidden units.

    Images below 36 pixels get one convolution of 3 x 3, as is usual for MinAtar; others the three of stable-baselines3.
    """
    channels, height, width = image_shape
    if min(height, width) < 36:
        stride = 1 if min(height, width) < 16 else 2
        convolutions = [_convolution(channels, 32, 3, stride)]
    else:
        convolutions = [_convolution(channels, 32, 8, 4), _convolution(32, 64, 4, 2), _convolution(64, 64, 3, 1)]
    with torch.no_grad():
        maps = nn.Sequential(*convolutions)(torch.zeros(1, *image_shape))
    hidden = nn.Sequential(nn.Flatten(), nn.Linear(maps.numel(), 256), nn.ReLU(), nn.Unflatten(1, (256, 1, 1)))
    return nn.Sequential(*convolutions, hidden)


def _convolution(before: int, after: int, kernel: int, stride: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(before, after, kernel, stride), nn.ReLU())
