"""ell: encoder-based lifelong learning (Rannen et al., 2017) on the plain network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute.learners.entries import TaskEntry
from hashroute.learners.learner import Style
from hashroute.learners.lwf import LwF
from hashroute.learners.options import Space, Span
from hashroute.learners.randomness import isolated_rng
from hashroute.learners.registry import register_learner


@dataclass(frozen=True)
class ELLOptions:
    """Options of ell."""

    code_weight: float = 0.1
    """alpha: half of this times the squared change of the code of each old task is added to the loss."""
    distillation: float = 1.0
    """Weight of the distillation of every old head."""
    temperature: float = 2.0
    """Temperature of the distillation."""
    code_size: int = 100
    """Size of the code of each task's autoencoder. It is smaller than the features, so it keeps only what matters."""
    reconstruction: float = 1.0
    """lambda: weight of the squared error of the autoencoder, beside the loss of the head on its reconstruction."""
    code_epochs: int = 5
    """Epochs of training of an autoencoder on the features of its task."""


@register_learner("ell")
class ELL(LwF):
    """On the data of a new task, the codes of old autoencoders and the answers of old heads are held to what they were.

    Only the encoder of each autoencoder is kept, and no data. The targets are the codes and answers that the network
    gave before the task. Old heads are trained by distillation only.
    """

    style = Style("#009E73", "-", "D")
    version = 2  # weight decay leaves old heads alone
    Options = ELLOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "code_weight": (0.001, 0.01, 0.1, 1.0, 10.0),
        "distillation": (0.25, 1.0, 4.0),
    }
    space: ClassVar[Space] = {
        "code_weight": Span(1e-3, 10.0, log=True),
        "distillation": Span(0.1, 10.0, log=True),
        "temperature": Span(1.0, 4.0),
    }
    tuned: ClassVar[dict[str, dict[str, Any]]] = {
        "fashion-mnist": {"code_weight": 0.1, "distillation": 4.0},
        "fashion-mnist-paper": {"code_weight": 0.1, "distillation": 4.0},
        "mixed": {"code_weight": 0.001, "distillation": 4.0},
        "pairwise-mnist": {"code_weight": 0.01, "distillation": 0.25},
        "pairwise-mnist-paper": {"code_weight": 0.01, "distillation": 1.0},
        "svhn-cifar100": {"code_weight": 0.001, "distillation": 1.0},
        "svhn-cifar100-paper": {"code_weight": 0.1, "distillation": 1.0},
    }

    def _release(self) -> None:
        super()._release()
        self._codes: tuple[Tensor, ...] = ()

    @property
    def holds(self) -> bool:
        return bool(self.options.distillation or self.options.code_weight)

    @classmethod
    def usual_options(cls, scenario: str, image_shape: Sequence[int]) -> dict[str, Any]:  # noqa: ARG003
        return {"code_size": 300} if min(image_shape[1:]) >= 32 else {}  # as published for SVHN and CIFAR-100

    def before_task(self, task: TaskEntry) -> None:  # noqa: ARG002
        """Check that a code is smaller than the features."""
        if self.options.code_size >= (count := self.feature_count()):
            raise ValueError(f"code_size of ell is {self.options.code_size}: expected fewer than the {count} features")

    def on_train_start(self, tasks: Sequence[TaskEntry]) -> None:
        super().on_train_start(tasks)
        if self._old:
            self._codes = (
                torch.cat([self.kept[f"code.{old}.weight"] for old in self._old]),
                torch.cat([self.kept[f"code.{old}.bias"] for old in self._old]),
            )

    def held_loss(self, loss: Tensor, features: Tensor, before: Tensor) -> Tensor:
        loss = super().held_loss(loss, features, before)
        if self.options.code_weight:
            with torch.no_grad():
                target = F.linear(before, *self._codes).sigmoid()
            moved = F.linear(features, *self._codes).sigmoid() - target
            loss = loss + self.options.code_weight / 2 * moved.square().sum(1).mean()
        return loss

    def after_task(self, task: TaskEntry) -> None:
        """Train the autoencoder of the task, and keep its encoder."""
        weight, bias = self._train_autoencoder(task)
        self.kept[f"code.{task.index}.weight"], self.kept[f"code.{task.index}.bias"] = weight, bias
        super().after_task(task)

    def _train_autoencoder(self, task: TaskEntry) -> tuple[Tensor, Tensor]:
        """Weights (code, features) and bias (code,) of the encoder of an autoencoder that serves the head of a task.

        The loss of the head is the plain one: labels are not smoothed here.
        """
        (features, targets), head = self.record(task.data.train, task), self.heads[task.index]
        count = features.shape[1]
        spread = features.std(0) if len(features) > 1 else torch.zeros_like(features[0])  # one image has no spread
        mean, std = features.mean(0), spread.clamp_min(1e-6)
        with isolated_rng(self.seed * 1000 + task.index, self.device):
            coder = nn.Linear(count, self.options.code_size).to(self._place)
            decoder = nn.Linear(self.options.code_size, count).to(self._place)
            weights = [*coder.parameters(), *decoder.parameters()]
            optimizer = torch.optim.Adam(weights, 1e-3, fused=True)
            for _ in range(self.options.code_epochs):
                for rows in torch.randperm(len(features)).to(self.device).split(128):
                    given = (features[rows] - mean) / std
                    back = decoder(coder(given).sigmoid())
                    error = (back - given).square().mean()
                    answer = self.objective.plain_loss(head(back * std + mean), targets[rows])
                    loss = self.options.reconstruction * error + answer
                    gradients = torch.autograd.grad(loss, weights)  # the head gets none
                    for weight, gradient in zip(weights, gradients, strict=True):
                        weight.grad = gradient
                    optimizer.step()
        # The standardisation becomes part of the weights, so that a code is one matrix product of the features.
        matrix = (coder.weight / std).detach()
        return matrix, (coder.bias - matrix @ mean).detach()
