"""hat: hard attention to the task (Serra et al., 2018) on the plain network."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hashroute.learners.entries import TaskEntry
from hashroute.learners.learner import Style
from hashroute.learners.plain import Vanilla
from hashroute.learners.registry import register_learner
from hashroute.nn.backbones import PlainEncoder
from hashroute.nn.channel_gates import ChannelGates

MOST_EMBEDDING = 6.0
"""Embeddings are clamped to this size after each step."""
MOST_EXPONENT = 50.0
"""Products of slope and embedding are clamped to this size in the compensation of gradients."""


@dataclass(frozen=True)
class HATOptions:
    """Options of hat."""

    s_max: float = 400.0
    """Slope of the gates: within an epoch it grows from 1 / s_max to s_max, and answers are given with s_max."""
    sparsity: float = 0.75
    """c: weight of the share of gates that a task opens, among those that old tasks left closed."""

    embedding_rate: float = 10.0
    """Factor of the steps of embeddings. As published, gradient descent makes larger steps for embeddings than for
    weights, because their gradients are larger. An adaptive optimiser makes steps of one size for both."""

    def __post_init__(self) -> None:
        if not self.s_max > 1:
            raise ValueError(f"s_max of hat is {self.s_max!r}: expected a number above 1")


class GatedEncoder(PlainEncoder):
    """The plain encoder with an embedding (gates,) for each task."""

    def __init__(self, levels: nn.ModuleList, pool: int, shape: Sequence[int]) -> None:
        super().__init__(levels, pool)
        self.channel_gates = ChannelGates(self, shape)
        self.embeddings = nn.ParameterList()


@register_learner("hat")
class HAT(Vanilla):
    """Each task learns nearly binary gates on the channels of all layers; updates leave alone what old tasks use.

    Gates are sigmoids of an embedding of the task. The published network has no norms: here a norm shares the gates of
    the layer before it (see `ChannelGates`). Updates are scaled after the optimiser's step, so that neither its
    momentum nor weight decay changes what old tasks use.
    """

    style = Style("#AA4499", "-", "<")
    Options = HATOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"s_max": (100.0, 400.0), "sparsity": (0.1, 0.75, 2.5)}
    encoder: GatedEncoder

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._release()

    def _release(self) -> None:
        """Drop what is needed only while a task is learned."""
        self._slope = self.options.s_max
        self._batch, self._batches = 0, 1
        self._used = torch.zeros(())
        """(gates,) the largest gate of all old tasks."""
        self._blocked: dict[str, Tensor] = {}
        """The share of each update that is undone, by the name of a tensor of the encoder; empty for the first task."""
        self._before: dict[str, Tensor] = {}
        self._embedding = torch.zeros(())

    def new_encoder(self) -> GatedEncoder:
        return GatedEncoder(self.backbone.new_levels(), self.recipe.pool, self.input_shape)

    def add_task(self, task: TaskEntry) -> None:
        embedding = torch.randn(self.encoder.channel_gates.count).to(self._place)
        self.encoder.embeddings.append(nn.Parameter(embedding))
        super().add_task(task)

    def rollback(self, task: TaskEntry) -> None:
        super().rollback(task)
        self.encoder.embeddings = self.encoder.embeddings[: task.index]
        self._release()

    def trainable(self, tasks: Sequence[TaskEntry]) -> Iterator[nn.Parameter]:
        yield from self.encoder.levels.parameters()
        for task in tasks:
            yield from self.heads[task.index].parameters()

    def undecayed(self, tasks: Sequence[TaskEntry]) -> Iterator[nn.Parameter]:
        for task in tasks:
            yield self.encoder.embeddings[task.index]

    # ---------------------------------------------------------------- answers

    def gates(self, task: TaskEntry) -> Tensor:
        """(gates,) from 0 to 1: those of a task, nearly binary unless it is being learned."""
        slope = self._slope if self.training else self.options.s_max
        gates: Tensor = (slope * self.encoder.embeddings[task.index]).sigmoid()
        return gates

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:
        weights = self.encoder.channel_gates.weights(self.encoder, self.gates(task))
        features: Tensor = functional_call(self.encoder, weights, (images,))
        return features

    def feature_key(self, task: TaskEntry) -> Any:
        return task.index

    def task_encoder(self, task: TaskEntry) -> nn.Module:
        encoder = copy.deepcopy(self.encoder)
        encoder.load_state_dict(encoder.channel_gates.weights(encoder, self.gates(task)), strict=False)
        return encoder

    # ---------------------------------------------------------------- training

    @torch.no_grad()
    def on_train_start(self, tasks: Sequence[TaskEntry]) -> None:
        """Find out what old tasks use."""
        gates = [(self.options.s_max * old).sigmoid() for old in self.encoder.embeddings[: tasks[0].index]]
        if gates:
            self._used = torch.stack(gates).amax(0)
            influence = self.encoder.channel_gates.influence(self.encoder, self._used)
            self._blocked = {name: share for name, share in influence.items() if name.startswith("levels.")}

    def on_epoch_start(self, batches: int) -> None:
        self._batch, self._batches = 0, batches
        self._set_slope()
        self._before = {name: tensor.clone() for name, tensor in self._tensors()}

    def _set_slope(self) -> None:
        """Let the slope of the gates grow linearly within an epoch."""
        least, most = 1 / self.options.s_max, self.options.s_max
        self._slope = least + (most - least) * self._batch / max(1, self._batches - 1)

    def _tensors(self) -> list[tuple[str, Tensor]]:
        """Weights and statistics of the encoder that old tasks use."""
        return [(name, tensor) for name, tensor in self.encoder.state_dict().items() if name in self._blocked]

    @torch.no_grad()
    def before_step(self) -> None:
        """Add the gradient of the regulariser to that of the embedding, and compensate it for the slope."""
        embedding = self.encoder.embeddings[-1]
        assert embedding.grad is not None, "features depend on all gates"
        free = 1 - self._used
        gates = (self._slope * embedding).sigmoid()
        share = free / free.expand_as(gates).sum().clamp_min(1e-6)
        embedding.grad += self.options.sparsity * share * self._slope * gates * (1 - gates)
        embedding.grad *= compensation(embedding, self._slope, self.options.s_max)
        self._embedding = embedding.clone()

    @torch.no_grad()
    def after_step(self) -> None:
        """Enlarge the step of the embedding, and undo updates of what old tasks use."""
        embedding = self.encoder.embeddings[-1]
        larger = self._embedding + self.options.embedding_rate * (embedding - self._embedding)
        embedding.copy_(larger.clamp(-MOST_EMBEDDING, MOST_EMBEDDING))
        for name, tensor in self._tensors():
            before, blocked = self._before[name], self._blocked[name]
            if tensor.is_floating_point():
                tensor.copy_(before + (1 - blocked) * (tensor - before))
                before.copy_(tensor)
            else:
                tensor.copy_(before)
        self._batch += 1
        self._set_slope()

    def after_task(self, task: TaskEntry) -> None:  # noqa: ARG002
        self._release()


def compensation(embedding: Tensor, slope: float, s_max: float) -> Tensor:
    """The factor by which the gradient of an embedding becomes that of a gate of slope 1, times s_max."""
    steep = (slope * embedding).clamp(-MOST_EXPONENT, MOST_EXPONENT).cosh() + 1
    return s_max / slope * steep / (embedding.cosh() + 1)
