"""hash-only and separate: the two controls, which cannot forget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from hashroute.learners.entries import TaskEntry
from hashroute.learners.learner import Learner, Style
from hashroute.learners.plain import Vanilla
from hashroute.learners.registry import register_learner
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
    """Heads on the hash of the image. Only heads are learned, so nothing is forgotten."""

    style = Style("#56B4E9", ":", "X")
    scale_features = True  # heads learn slowly from unit vectors of many small numbers

    def new_encoder(self) -> HashEncoder:
        return HashEncoder(self.recipe.features, self.seed)

    def feature_count(self) -> int:
        return self.recipe.features


@register_learner("separate")
class Separate(Vanilla):
    """A fresh plain network for each task. Nothing is forgotten, and nothing helps later tasks."""

    style = Style("#A6761D", ":", "*")

    def new_encoder(self) -> nn.ModuleList:  # type: ignore[override]
        return nn.ModuleList()

    def add_task(self, task: TaskEntry) -> None:
        self.encoder.append(super().new_encoder().to(self._place))  # type: ignore[operator]
        super().add_task(task)

    def rollback(self, task: TaskEntry) -> None:
        super().rollback(task)
        self.encoder = self.encoder[: task.index]  # type: ignore[index]

    def trainable(self, tasks: Sequence[TaskEntry]) -> Iterator[nn.Parameter]:
        for task in tasks:
            yield from self.encoder[task.index].parameters()  # type: ignore[index]
            yield from self.heads[task.index].parameters()

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:
        features: Tensor = self.encoder[task.index](images)  # type: ignore[index]
        return features

    def feature_key(self, task: TaskEntry) -> Any:
        return task.index

    def task_encoder(self, task: TaskEntry) -> nn.Module:
        return self.encoder[task.index]  # type: ignore[index,no-any-return]
