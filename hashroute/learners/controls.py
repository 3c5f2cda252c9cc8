"""hash-only and separate: the two controls, which cannot forget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from hashroute.learners.base import LearnedTask, Learner, register_learner
from hashroute.learners.plain import Vanilla
from hashroute.nn.hashing import FeatureHash


class HashEncoder(nn.Module):
    """The normalised hash of an image: an encoder with nothing to learn."""

    def __init__(self, features: int, seed: int) -> None:
        super().__init__()
        self.hash = FeatureHash(features, seed)

    def forward(self, images: Tensor) -> Tensor:
        """images: (n, channels, height, width); returns (n, features)."""
        return self.hash.normalised(images)


@register_learner("hash-only")
class HashOnly(Learner):
    """Heads on the hash of the image: nothing is learned but the heads, so nothing is forgotten."""

    norm_features = True  # unit-norm features of many numbers are learned slowly without it

    def new_encoder(self) -> HashEncoder:
        return HashEncoder(self.recipe.features, self.seed)


@register_learner("separate")
class Separate(Vanilla):
    """A fresh plain network for each task: nothing is forgotten, and nothing learned helps what comes next."""

    def new_encoder(self) -> nn.ModuleList:  # type: ignore[override]
        return nn.ModuleList()

    def add_task(self, task: LearnedTask) -> None:
        self.encoder.append(super().new_encoder().to(self._place))  # type: ignore[operator]
        super().add_task(task)

    def take_back(self, first: int) -> None:
        super().take_back(first)
        self.encoder = self.encoder[:first]  # type: ignore[index]

    def trainable(self, tasks: Sequence[int]) -> Iterator[nn.Parameter]:
        for task in tasks:
            yield from self.encoder[task].parameters()  # type: ignore[index]
            yield from self.heads[task].parameters()

    def features(self, images: Tensor, task: int) -> Tensor:
        features: Tensor = self.encoder[task](images)  # type: ignore[index]
        return features

    def encoding(self, task: int) -> Any:
        return task
