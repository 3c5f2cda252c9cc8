"""lwf: learning without forgetting (Li and Hoiem, 2016) on the plain network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import Self

from hashroute.learners.entries import Batch, TaskEntry
from hashroute.learners.learner import Style
from hashroute.learners.plain import Vanilla
from hashroute.learners.registry import register_learner


@dataclass(frozen=True)
class LwFOptions:
    """Options of lwf."""

    distillation: float = 1.0
    """Weight of the distillation of every old head."""
    temperature: float = 2.0
    """Temperature of the distillation."""


@register_learner("lwf")
class LwF(Vanilla):
    """On the data of a new task, the answers of old heads are held to what they were before the task.

    Old heads are trained by this distillation only. The new head is not trained alone first.
    """

    style = Style("#117733", "-", "d")
    Options: ClassVar[type] = LwFOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"distillation": (0.25, 1.0, 4.0, 16.0)}

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._release()

    def _release(self) -> None:
        """Drop what is needed only while a task is learned."""
        self._old = range(0)
        """Tasks that are held while a new one is learned."""
        self._teacher: dict[str, Any] = {}

    @property
    def holds(self) -> bool:
        """Whether old tasks are held at all."""
        return bool(self.options.distillation)

    def undecayed(self, tasks: Sequence[TaskEntry]) -> Iterator[nn.Parameter]:
        if self.options.distillation:
            for old in range(tasks[0].index):
                yield from self.heads[old].parameters()

    def train(self, mode: bool = True) -> Self:
        """Old heads stay in eval mode: their answers are compared with answers without dropout."""
        super().train(mode)
        for old in self._old:
            self.heads[old].eval()
        return self

    def on_train_start(self, tasks: Sequence[TaskEntry]) -> None:
        """Keep a copy of the network from before the task, until the task is learned."""
        first = tasks[0].index
        self._old = range(first) if self.holds else range(0)
        if not self._old:
            return
        before = {"encoder": self.encoder, "heads": self.heads[:first]}
        if not self.scratch:
            for part, module in before.items():
                self.scratch |= {f"{part}.{name}": value.clone() for name, value in module.state_dict().items()}
        teacher = nn.ModuleDict(deepcopy(before)).eval().requires_grad_(False)
        teacher.load_state_dict(self.scratch)
        self._teacher = dict(teacher)  # not a submodule: it is no part of what is learned

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        features = self.features(batch.images, batch.task)
        outputs = self.heads[batch.task.index](features)
        loss = self.objective.loss(outputs, batch.targets)
        if not self._old:
            return loss, outputs
        with torch.no_grad():
            before = self._teacher["encoder"](batch.images)
        return self.held_loss(loss, features, before), outputs

    def held_loss(self, loss: Tensor, features: Tensor, before: Tensor) -> Tensor:
        """The loss of a batch with what holds old tasks; before: the features (n, features) that the teacher gives."""
        if self.options.distillation:
            for old in self._old:
                with torch.no_grad():
                    taught = self._teacher["heads"][old](before)
                held = self.objective.distillation(self.heads[old](features), taught, self.options.temperature)
                loss = loss + self.options.distillation * held
        return loss

    def after_task(self, task: TaskEntry) -> None:  # noqa: ARG002
        self._release()

    def rollback(self, task: TaskEntry) -> None:
        super().rollback(task)
        self._release()
