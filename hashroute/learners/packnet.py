"""packnet: PackNet (Mallya and Lazebnik, 2018) on the plain network: each task keeps some of the free weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import Self

from hashroute.learners.entries import TaskEntry
from hashroute.learners.learner import Style
from hashroute.learners.plain import Vanilla
from hashroute.learners.registry import register_learner
from hashroute.nn.backbones import layers_of

PRUNED_AFTER = 2 / 3
"""Share of a task's epochs that train all free weights; the rest trains those that were not pruned."""


@dataclass(frozen=True)
class PackNetOptions:
    """Options of packnet."""

    prune: float = 0.75
    """Share of the free weights of every layer that a task gives back: those of smallest size."""

    def __post_init__(self) -> None:
        if not 0 <= self.prune < 1:
            raise ValueError(f"prune of packnet is {self.prune!r}: expected a number from 0 to below 1")


@register_learner("packnet")
class PackNet(Vanilla):
    """Each task trains the free weights, gives the smallest ones back, and freezes the others: nothing is forgotten.

    A task is answered with its own weights and those of earlier tasks. Biases and norms are trained by the first task
    only. Pruning takes place within the epochs of the recipe, so that all learners train equally long.
    """

    style = Style("#882255", "-", "8")
    Options = PackNetOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"prune": (0.5, 0.75, 0.9)}

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._release()
        names = {module: name for name, module in self.encoder.named_modules()}
        self._layers = [f"{names[layer]}.weight" for layer in layers_of(self.encoder)]
        """Names of the weights that are shared out among tasks."""

    def _release(self) -> None:
        """Drop what is needed only while a task is learned."""
        self._before: dict[str, Tensor] = {}
        self._frozen: dict[str, Tensor] = {}

    # ---------------------------------------------------------------- answers

    def owners(self, name: str) -> Tensor:
        """For each number of a weight, the task that owns it, counted from 1; 0 if it is free."""
        weight = self.encoder.get_parameter(name)
        return self.kept.get(f"owner.{name}", torch.zeros(weight.shape, dtype=torch.int16, device=weight.device))

    def _is_learned(self, task: TaskEntry) -> bool:
        """Whether a task is being learned now."""
        return self.training_state is not None and task.index == self.training_state.tasks[0].index

    def own_weights(self, task: TaskEntry) -> dict[str, Tensor]:
        """The weights of layers as a task uses them, by name."""
        if self._is_learned(task):
            return {}
        return {
            name: self.encoder.get_parameter(name) * ((owner := self.owners(name)) > 0) * (owner <= task.index + 1)
            for name in self._layers
        }

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:
        features: Tensor = functional_call(self.encoder, self.own_weights(task), (images,))
        return features

    def feature_key(self, task: TaskEntry) -> Any:
        return task.index

    def task_encoder(self, task: TaskEntry) -> nn.Module:
        encoder = copy.deepcopy(self.encoder)
        encoder.load_state_dict(self.own_weights(task), strict=False)
        return encoder

    # ---------------------------------------------------------------- training

    def train(self, mode: bool = True) -> Self:
        """After the first task, the statistics of batch norms stay as they are."""
        super().train(mode)
        if len(self.tasks) > 1:
            for module in self.encoder.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.eval()
        return self

    def on_epoch_start(self, batches: int) -> None:  # noqa: ARG002
        """Prune when it is time, and remember all weights."""
        state = self.training_state
        assert state is not None, "epochs belong to a training"
        task = state.tasks[0]
        epochs = self.recipe.epochs_of(task.index)
        if state.epoch == round(PRUNED_AFTER * epochs) and not self._is_pruned(task):
            self.prune(task)
        self._before = {name: weight.detach().clone() for name, weight in self.encoder.named_parameters()}
        self._frozen = {name: self._is_frozen(name, task) for name in self._before}

    def _is_frozen(self, name: str, task: TaskEntry) -> Tensor:
        """Which numbers of a weight must not change: those of old tasks, and those that the task gave back."""
        if name not in self._layers:
            return torch.tensor(task.index > 0, device=self.device)
        owner = self.owners(name)
        return owner != (task.index + 1 if self._is_pruned(task) else 0)

    def _is_pruned(self, task: TaskEntry) -> bool:
        """Whether a task owns weights already."""
        return any(bool((self.owners(name) == task.index + 1).any()) for name in self._layers)

    @torch.no_grad()
    def after_step(self) -> None:
        """Put weights that must not change back."""
        for name, weight in self.encoder.named_parameters():
            weight.copy_(torch.where(self._frozen[name], self._before[name], weight))

    @torch.no_grad()
    def prune(self, task: TaskEntry) -> None:
        """Give the task the largest free weights of every layer, and set the others to zero."""
        for name in self._layers:
            weight, owner = self.encoder.get_parameter(name), self.owners(name)
            free = (owner == 0).flatten().nonzero()[:, 0]
            count = round((1 - self.options.prune) * len(free))
            largest = weight.flatten()[free].abs().argsort(descending=True, stable=True)
            owner = owner.flatten().clone()
            owner[free[largest[:count]]] = task.index + 1
            self.kept[f"owner.{name}"] = owner.view_as(weight)
            weight.mul_(self.kept[f"owner.{name}"] > 0)

    def after_task(self, task: TaskEntry) -> None:
        """Prune, if there was no epoch left to train what remains."""
        if not self._is_pruned(task):
            self.prune(task)
        self._release()

    def rollback(self, task: TaskEntry) -> None:
        super().rollback(task)
        for name in self._layers:
            owner = self.owners(name)
            self.kept[f"owner.{name}"] = owner * (owner <= task.index)
        self._release()
