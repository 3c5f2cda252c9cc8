"""Objectives: what is learned from a task.

An objective says what a head is, what the loss of a batch is, and how good held-out answers are. Learners know nothing
else about the training signal. `hrn` keeps a fork if its score is better, whatever the score is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute.learners.entries import Batch, TaskEntry
from hashroute.learners.heads import Head
from hashroute.recipe import Recipe
from hashroute.registry import Registry


class Objective:
    """What is learned from a task. A new objective overrides some of these methods.

    recipe: how learners are trained; an objective takes its own settings from it.
    """

    name: ClassVar[str]
    """The name that it is registered by; that of the class, if it is not registered."""
    score_name: ClassVar[str] = "score"
    """What tables call the mean score of a task."""
    score_factor: ClassVar[float] = 1.0
    """Scores are shown multiplied by this: 100 shows shares as percent."""
    names_classes: ClassVar[bool] = False
    """Whether the highest output is the class of an image. Only then runs measure task-free accuracy, which compares
    classes of all tasks, and show sample images with their labels."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.name = vars(cls).get("name", cls.__name__)

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def outputs(self, task: TaskEntry) -> int:
        """How many numbers a head gives for an image."""
        raise NotImplementedError

    def new_head(self, features: int, task: TaskEntry, scale: float) -> nn.Module:
        """A fresh head of a task, from features (n, features) to outputs (n, outputs)."""
        return Head(features, self.recipe.head, self.outputs(task), scale)

    def prepare(self, batch: Batch) -> Batch:
        """Change a batch before it is encoded: make views, rotate images, replace labels. By default, nothing."""
        return batch

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean loss of a batch: a scalar. outputs: (n, outputs)."""
        raise NotImplementedError

    def plain_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The same without what only regularises training. By default, `loss`."""
        return self.loss(outputs, targets)

    def distillation(self, outputs: Tensor, taught: Tensor, temperature: float) -> Tensor:  # noqa: ARG002
        """How far outputs are from those of a teacher, both (n, outputs): a scalar. By default, the squared error."""
        return F.mse_loss(outputs, taught)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """(n,) how good the answer to each image is; higher is better."""
        raise NotImplementedError

    def confidence(self, outputs: Tensor) -> Tensor:
        """(n,) how sure a head is of its best answer, comparable between tasks."""
        return logit_margin(outputs)


OBJECTIVES: Registry[type[Objective]] = Registry("an objective")
"""Objectives, by name."""

Kind = TypeVar("Kind", bound=type[Objective])


def register_objective(name: str) -> Callable[[Kind], Kind]:
    """Decorate an objective, so that learners find it by this name, also when a model is loaded."""

    def register(kind: Kind) -> Kind:
        OBJECTIVES.add(name, kind, kind.__module__)
        kind.name = name
        return kind

    return register


def find_objective(objective: str | type[Objective]) -> type[Objective]:
    """The objective of this name."""
    if isinstance(objective, type) and issubclass(objective, Objective):
        return objective
    return OBJECTIVES.find(objective)


@register_objective("classification")
class Classification(Objective):
    """Name the class of an image: cross-entropy, scored by accuracy."""

    score_name = "accuracy"
    score_factor = 100.0
    names_classes = True

    def outputs(self, task: TaskEntry) -> int:
        """One logit for each class."""
        return len(task.class_names)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy, with labels smoothed as the recipe says."""
        return F.cross_entropy(outputs, targets, label_smoothing=self.recipe.label_smoothing)

    def plain_loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy; labels are not smoothed."""
        return F.cross_entropy(outputs, targets)

    def distillation(self, outputs: Tensor, taught: Tensor, temperature: float) -> Tensor:
        """Cross-entropy between softened answers, scaled so that its gradient does not depend on the temperature."""
        soft = taught.div(temperature).softmax(1)
        return -(soft * outputs.div(temperature).log_softmax(1)).sum(1).mean() * temperature**2

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 for a right answer, 0 for a wrong one."""
        return outputs.argmax(1) == targets


@register_objective("rotation")
class Rotation(Objective):
    """Tell by how many quarter turns an image was rotated; labels are not read (Gidaris et al., 2018)."""

    score_factor = 100.0

    def outputs(self, task: TaskEntry) -> int:  # noqa: ARG002
        """One logit for each of four rotations."""
        return 4

    def prepare(self, batch: Batch) -> Batch:
        """All four rotations of every image, and the rotation in place of the label."""
        turned = torch.cat([batch.images.rot90(turns, (2, 3)) for turns in range(4)])
        turns = torch.arange(4, device=turned.device).repeat_interleave(len(batch.images))
        return Batch(turned, turns, batch.task)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of the rotation."""
        return F.cross_entropy(outputs, targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """1 for a right answer, 0 for a wrong one."""
        return outputs.argmax(1) == targets


def logit_margin(logits: Tensor) -> Tensor:
    """(n,) by how much the highest logit exceeds the mean of the others; 0 for a single class.

    logits: (n, classes). Unlike a softmax, the margin does not saturate.
    """
    classes = logits.shape[1]
    return (logits.amax(1) - logits.mean(1)) * (classes / max(1, classes - 1))
