"""ell: encoder based lifelong learning (Rannen et al., 2017) on the plain network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Self

from hashroute.learners.base import Batch, drawn_apart, register_learner
from hashroute.learners.plain import Vanilla
from hashroute.tasks import Task


@dataclass(frozen=True)
class ELLOptions:
    """Options of ell."""

    code_weight: float = 0.1
    """alpha: half of this times the squared change of each old task's code is added to the loss."""
    distillation: float = 1.0
    """Weight of the distillation of every old head."""
    temperature: float = 2.0
    """Of the distillation."""
    code_size: int = 100
    """Of each task's autoencoder: fewer than the features, so that it holds only what matters."""
    reconstruction: float = 1.0
    """lambda: weight of the autoencoder's squared error beside the loss of the task's head on what it gives back."""
    code_epochs: int = 5
    """Passes over the task's features in which its autoencoder is trained."""


@register_learner("ell")
class ELL(Vanilla):
    """Codes of old tasks' autoencoders, and answers of old heads, are held to what they were, on the new task's data.

    Of an autoencoder only the encoder is kept; of old data nothing. What the network gave before the task, for the
    task's images, is what it is held to; old heads train through distillation only.
    """

    version = 2  # weight decay leaves old heads alone
    Options = ELLOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {
        "code_weight": (0.001, 0.01, 0.1, 1.0, 10.0),
        "distillation": (0.25, 1.0, 4.0),
    }
    _old = range(0)
    """Tasks that are to be held while a new one is learned."""
    _teacher: dict[str, Any]

    @classmethod
    def usual_options(cls, scenario: str, image_shape: Sequence[int]) -> dict[str, Any]:  # noqa: ARG003
        return {"code_size": 300} if min(image_shape[1:]) >= 32 else {}  # as published for SVHN and CIFAR-100

    def undecayed(self, tasks: Sequence[int]) -> Iterator[nn.Parameter]:
        if self.options.distillation:
            for old in range(tasks[0]):
                yield from self.heads[old].parameters()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        for old in self._old:  # their answers are compared with answers without dropout
            self.heads[old].eval()
        return self

    def prepare(self, tasks: Sequence[int]) -> None:
        """Keep the network as it was before the task, for as long as the task lasts."""
        first = tasks[0]
        self._old = range(first) if self.options.distillation or self.options.code_weight else range(0)
        if not self._old:
            return
        before = {"encoder": self.encoder, "heads": self.heads[:first]}
        if not self.scratch:
            for part, module in before.items():
                self.scratch |= {f"{part}.{name}": value.clone() for name, value in module.state_dict().items()}
        teacher = nn.ModuleDict(deepcopy(before)).eval().requires_grad_(False)
        teacher.load_state_dict(self.scratch)
        self._teacher = dict(teacher)  # not a module: it is no part of what is learned
        self._codes = (
            torch.cat([self.memory[f"code.{old}.weight"] for old in self._old]),
            torch.cat([self.memory[f"code.{old}.bias"] for old in self._old]),
        )

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        features = self.features(batch.images, batch.task)
        logits = self.heads[batch.task](features)
        loss = self.errors(logits, batch.labels)
        if not self._old:
            return loss, logits
        with torch.no_grad():
            before = self._teacher["encoder"](batch.images)
        if self.options.distillation:
            for old in self._old:
                with torch.no_grad():
                    taught = self._teacher["heads"][old](before)
                loss = loss + self.options.distillation * distil(self.heads[old](features), taught, self.options)
        if self.options.code_weight:
            with torch.no_grad():
                target = F.linear(before, *self._codes).sigmoid()
            moved = F.linear(features, *self._codes).sigmoid() - target
            loss = loss + self.options.code_weight / 2 * moved.square().sum(1).mean()
        return loss, logits

    def consolidate(self, tasks: Sequence[Task], first: int) -> None:
        for number, task in enumerate(tasks, first):
            weight, bias = self._train_autoencoder(task, number)
            self.memory[f"code.{number}.weight"], self.memory[f"code.{number}.bias"] = weight, bias

    def _train_autoencoder(self, task: Task, number: int) -> tuple[Tensor, Tensor]:
        """Weights (code, features) and bias (code,) of the encoder of an autoencoder that serves the task's head.

        Labels are as they are: nothing is learned here that could become too sure of itself.
        """
        features, head = self.encode(task.train.images, number), self.heads[number]
        labels, count = task.train.labels.to(self.device), features.shape[1]
        if self.options.code_size >= count:
            raise ValueError(f"code_size of ell is {self.options.code_size}: expected fewer than the {count} features")
        mean, deviation = features.mean(0), features.std(0).clamp_min(1e-6)
        with drawn_apart(self.seed * 1000 + number, self.device):
            coder = nn.Linear(count, self.options.code_size).to(self._place)
            decoder = nn.Linear(self.options.code_size, count).to(self._place)
            weights = [*coder.parameters(), *decoder.parameters()]
            optimizer = torch.optim.Adam(weights, 1e-3, fused=True)
            for _ in range(self.options.code_epochs):
                for rows in torch.randperm(len(features)).to(self.device).split(128):
                    given = (features[rows] - mean) / deviation
                    back = decoder(coder(given).sigmoid())
                    error = (back - given).square().mean()
                    answer = F.cross_entropy(head(back * deviation + mean), labels[rows])
                    loss = self.options.reconstruction * error + answer
                    gradients = torch.autograd.grad(loss, weights)
                    for weight, gradient in zip(weights, gradients, strict=True):
                        weight.grad = gradient
                    optimizer.step()
        # The standardisation goes into the weights: a code is then one matrix product of the features.
        matrix = (coder.weight / deviation).detach()
        return matrix, (coder.bias - matrix @ mean).detach()


def distil(logits: Tensor, taught: Tensor, options: ELLOptions) -> Tensor:
    """Cross-entropy between softened answers, scaled so that its gradient does not depend on the temperature."""
    warm = options.temperature
    return -(taught.div(warm).softmax(1) * logits.div(warm).log_softmax(1)).sum(1).mean() * warm**2
