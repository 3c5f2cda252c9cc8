"""si: synaptic intelligence (Zenke et al., 2017) on the plain network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from hashroute.learners.entries import TaskEntry
from hashroute.learners.learner import Style
from hashroute.learners.plain import Vanilla
from hashroute.learners.registry import register_learner


@dataclass(frozen=True)
class SIOptions:
    """Options of si."""

    weight: float = 1.0
    """c: weight of the penalty: this times the importance times the squared change of each weight."""
    damping: float = 0.1
    """xi: added to the squared change of a weight before its share of the loss is divided by it."""

    def __post_init__(self) -> None:
        if not self.damping > 0:
            raise ValueError(f"damping of si is {self.damping!r}: expected a number above 0")


@register_learner("si")
class SI(Vanilla):
    """Weights of the encoder are held by how much their changes lowered the losses of old tasks.

    What a weight contributed to a task is the path integral of its gradient. Gradients are those of the loss of a
    batch, without the penalty. Heads belong to one task and are not penalised.
    """

    style = Style("#999933", "-", ">")
    Options = SIOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"weight": (0.01, 0.1, 1.0, 10.0, 100.0)}

    def on_train_start(self, tasks: Sequence[TaskEntry]) -> None:  # noqa: ARG002
        """Begin the path integral of the task, at the present weights."""
        if not self.scratch:
            for name, weight in self.encoder.named_parameters():
                self.scratch[f"start.{name}"] = weight.detach().clone()
                self.scratch[f"path.{name}"] = torch.zeros_like(weight)

    @torch.no_grad()
    def before_step(self) -> None:
        """Remember weights and gradients as they are, then add the gradient of the penalty."""
        self._before: dict[str, tuple[Tensor, Tensor]] = {}
        for name, weight in self.encoder.named_parameters():
            if weight.grad is not None:
                self._before[name] = weight.clone(), weight.grad.clone()
                if self.options.weight and self.kept:
                    pull = self.kept[f"importance.{name}"] * (weight - self.kept[f"centre.{name}"])
                    weight.grad.add_(pull, alpha=2 * self.options.weight)

    @torch.no_grad()
    def after_step(self) -> None:
        """Add what the step has contributed."""
        weights = dict(self.encoder.named_parameters())
        for name, (before, gradient) in self._before.items():
            self.scratch[f"path.{name}"] -= gradient * (weights[name] - before)
        del self._before

    @torch.no_grad()
    def after_task(self, task: TaskEntry) -> None:  # noqa: ARG002
        """Add the importance of each weight for the task."""
        for name, weight in self.encoder.named_parameters():
            change = weight - self.scratch[f"start.{name}"]
            new = self.scratch[f"path.{name}"] / (change.square() + self.options.damping)
            # A negative contribution would push a weight away from where it is.
            self.kept[f"importance.{name}"] = self.kept.get(f"importance.{name}", 0) + new.clamp_min(0)
            self.kept[f"centre.{name}"] = weight.detach().clone()
