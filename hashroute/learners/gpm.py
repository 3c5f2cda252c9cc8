"""gpm: gradient projection memory (Saha et al., 2021), the plain network with protected subspaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute import distributed
from hashroute.learners.entries import Batch, TaskEntry
from hashroute.learners.learner import Style
from hashroute.learners.options import Space, Span
from hashroute.learners.plain import Vanilla
from hashroute.learners.randomness import evenly_spaced_indices
from hashroute.learners.registry import register_learner
from hashroute.nn.backbones import layers_of

Layer = nn.Conv2d | nn.Linear


@dataclass(frozen=True)
class GPMOptions:
    """Options of gpm."""

    threshold: float = 0.97
    """Share of the energy of a layer's inputs that is protected after the first task; 0 protects nothing."""
    increase: float = 0.003
    """Increase of the threshold with every task, up to 1."""
    samples: int = 1000
    """Training images, evenly spaced, whose inputs to each layer are measured."""


@register_learner("gpm")
class GPM(Vanilla):
    """After each task, every layer gets an orthonormal basis of its inputs; later updates are orthogonal to it.

    The inputs of a convolution are the patches that it sees, with a 1 for the bias. The projection acts on the update
    that the optimiser has applied, so it holds for any optimiser. The weights of norms are frozen after the first task.
    """

    style = Style("#CC79A7", "-", "P")
    Options = GPMOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"threshold": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)}
    space: ClassVar[Space] = {
        "threshold": Span(0.5, 0.99),
        "increase": Span(0.0, 0.01),
    }
    tuned: ClassVar[dict[str, dict[str, Any]]] = {
        "fashion-mnist": {"threshold": 0.99},
        "fashion-mnist-paper": {"threshold": 0.8},
        "mixed": {"threshold": 0.7},
        "pairwise-mnist": {"threshold": 0.9},
        "pairwise-mnist-paper": {"threshold": 0.8},
        "split-cifar100": {"threshold": 0.8},
        "svhn-cifar100": {"threshold": 0.7},
        "svhn-cifar100-paper": {"threshold": 0.99},
    }

    def before_step(self) -> None:
        """Freeze norms, and remember the weights as they are."""
        if not self.kept:
            return
        for norm in _norms(self.encoder):
            for weight in norm.parameters(recurse=False):
                weight.grad = None
        self._before = [_matrix(layer) for layer in layers_of(self.encoder)]

    def after_step(self) -> None:
        """Take the protected part out of the update."""
        if not self.kept:
            return
        with torch.no_grad():
            for index, (layer, before) in enumerate(zip(layers_of(self.encoder), self._before, strict=True)):
                basis = self.kept[f"basis.{index}"]
                after = _matrix(layer)
                after -= ((after - before) @ basis) @ basis.T
                inputs = layer.weight[0].numel()
                layer.weight.copy_(after[:, :inputs].view_as(layer.weight))
                if layer.bias is not None:
                    layer.bias.copy_(after[:, -1])
        del self._before

    def after_task(self, task: TaskEntry) -> None:
        """Protect the inputs of the task."""
        if not self.options.threshold:
            return
        threshold = min(1.0, self.options.threshold + self.options.increase * task.index)
        for index, energy in enumerate(self._energies(task)):
            old = self.kept.get(f"basis.{index}", energy.new_zeros(len(energy), 0)).cpu()
            basis = distributed.first(partial(extend_basis, old, energy, threshold))
            basis = basis.to(self._place.dtype)  # not every device has float64
            self.kept[f"basis.{index}"] = basis.to(self.device)

    def on_state_loaded(self) -> None:
        # Stored column by column, as a decomposition gives them: products of rows are rounded in another way.
        self.kept = {name: basis.T.contiguous().T for name, basis in self.kept.items()}

    @torch.no_grad()
    def _energies(self, task: TaskEntry) -> list[Tensor]:
        """For each layer, the sum of x x' over its inputs x, each with a 1 at its end if the layer has a bias."""
        data = task.data.train
        layers = layers_of(self.encoder)
        energies: list[Tensor | None] = [None] * len(layers)
        rows = evenly_spaced_indices(len(data), self.options.samples)
        for part in rows[distributed.own_rows(len(rows))].split(100):
            seen: dict[Layer, list[Tensor]] = {layer: [] for layer in layers}
            hooks = [
                layer.register_forward_pre_hook(lambda layer, inputs, seen=seen: seen[layer].append(inputs[0]))
                for layer in layers
            ]
            batch = Batch(self.normalise(data.images[part], task), data.labels[part].to(self.device), task)
            self.encoder(self.objective.prepare(batch).images)
            for hook in hooks:
                hook.remove()
            for index, layer in enumerate(layers):
                for given in seen[layer]:
                    inputs = _inputs(layer, given).cpu().double()
                    energy, known = inputs @ inputs.T, energies[index]
                    energies[index] = energy if known is None else known.add_(energy)
        found = [
            torch.zeros(width, width, dtype=torch.float64) if energy is None else energy
            for energy, width in zip(energies, map(_width, layers), strict=True)
        ]
        distributed.sum_over_ranks(found)
        return found


def _norms(encoder: nn.Module) -> Sequence[Any]:
    """All norms with weights of their own."""
    kinds = (nn.GroupNorm, nn.LayerNorm, nn.modules.batchnorm._BatchNorm)
    return [module for module in encoder.modules() if isinstance(module, kinds) and module.weight is not None]


def _width(layer: Layer) -> int:
    """The numbers of one input of a layer."""
    return layer.weight[0].numel() + (layer.bias is not None)


def _inputs(layer: Layer, given: Tensor) -> Tensor:
    """(width, count) what a layer multiplies with its weights: patches, or rows; with a 1 at the end for the bias."""
    if isinstance(layer, nn.Linear):
        inputs = given.reshape(1, -1, given.shape[-1]).transpose(1, 2)
    else:
        padding: Any = layer.padding
        if isinstance(padding, str) or layer.padding_mode != "zeros":
            mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
            given, padding = F.pad(given, layer._reversed_padding_repeated_twice, mode), 0
        inputs = F.unfold(given, layer.kernel_size, layer.dilation, padding, layer.stride)
        if layer.groups > 1:  # every group multiplies its own channels
            inputs = inputs.unflatten(1, (layer.groups, -1)).flatten(0, 1)
    if layer.bias is not None:
        inputs = F.pad(inputs, (0, 0, 0, 1), value=1.0)
    return inputs.transpose(0, 1).flatten(1)


def _matrix(layer: Layer) -> Tensor:
    """A copy of the weights, a row for each output, with the bias at its end if there is one."""
    weight = layer.weight.flatten(1)
    return weight.detach().clone() if layer.bias is None else torch.cat([weight, layer.bias[:, None]], 1).detach()


def extend_basis(basis: Tensor, energy: Tensor, threshold: float) -> Tensor:
    """Add as few directions as possible to an orthonormal basis (d, k) for it to hold a share of the energy (d, d)."""
    left = torch.eye(len(energy), dtype=energy.dtype, device=energy.device) - basis.double() @ basis.double().T
    rest = left @ energy @ left
    total, missing = energy.trace(), rest.trace()
    if missing <= (1 - threshold) * total:
        return basis
    values, vectors = _eigh((rest + rest.T) / 2)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    held = total - missing + values.cumsum(0)
    room = len(energy) - basis.shape[1]
    needed = min(int((held < threshold * total).sum()) + 1, room, int((values > 1e-12 * total).sum()))
    both = torch.cat([basis.double(), vectors[:, :needed]], 1)
    orthonormal: Tensor = torch.linalg.qr(both)[0]
    return orthonormal


def _eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, rising, and eigenvectors of a symmetric matrix."""
    try:
        values, vectors = torch.linalg.eigh(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # rounding noise can keep it from converging
        noise = 1e-14 * matrix.abs().max()
        values, vectors = torch.linalg.eigh(matrix.masked_fill(matrix.abs() < noise, 0.0))
    return values, vectors
