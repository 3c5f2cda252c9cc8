"""gpm: gradient projection memory (Saha et al., 2021), the plain network with protected subspaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute.learners.base import evenly, register_learner
from hashroute.learners.plain import Vanilla
from hashroute.tasks import Task


@dataclass(frozen=True)
class GPMOptions:
    """Options of gpm."""

    threshold: float = 0.97
    """Share of the energy of a layer's inputs that is protected after the first task; 0 protects nothing."""
    increase: float = 0.003
    """By which the threshold rises with every task, up to 1."""
    samples: int = 1000
    """Training images, evenly spread over the task's, whose inputs to each layer are looked at."""


@register_learner("gpm")
class GPM(Vanilla):
    """After each task, an orthonormal basis of every layer's inputs; later updates are orthogonal to all of them.

    A layer's inputs are the patches that its convolution sees, with a 1 for the bias. The projection acts on the
    update that the optimiser applied, so that it holds for any optimiser. Scales and shifts of norms are frozen after
    the first task.
    """

    Options = GPMOptions
    grid: ClassVar[dict[str, tuple[Any, ...]]] = {"threshold": (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.97, 0.99)}

    def before_step(self) -> None:
        if not self.memory:
            return
        for norm in self._norms():
            norm.weight.grad = norm.bias.grad = None
        self._before = [_matrix(convolution) for convolution, _ in self._layers()]

    def after_step(self) -> None:
        if not self.memory:
            return
        with torch.no_grad():
            for number, ((convolution, _), before) in enumerate(zip(self._layers(), self._before, strict=True)):
                basis = self.memory[f"basis.{number}"]
                after = _matrix(convolution)
                after -= ((after - before) @ basis) @ basis.T
                convolution.weight.copy_(after[:, :-1].view_as(convolution.weight))
                _bias(convolution).copy_(after[:, -1])

    def consolidate(self, tasks: Sequence[Task], first: int) -> None:
        if not self.options.threshold:
            return
        for number, task in enumerate(tasks, first):
            threshold = min(1.0, self.options.threshold + self.options.increase * number)
            for layer, energy in enumerate(self._energies(task, number)):
                old = self.memory.get(f"basis.{layer}", energy.new_zeros(len(energy), 0)).cpu()
                basis = extend_basis(old, energy, threshold).to(self._place.dtype)  # not every device has float64
                self.memory[f"basis.{layer}"] = basis.to(self.device)

    def load_state(self, state: dict[str, Tensor]) -> None:
        super().load_state(state)
        # Column after column, as a decomposition gives them: products of rows are rounded in another way.
        self.memory = {name: basis.T.contiguous().T for name, basis in self.memory.items()}

    @torch.no_grad()
    def _energies(self, task: Task, number: int) -> list[Tensor]:
        """For each convolution the sum of x x' over the patches x that it sees, each with a 1 at its end."""
        rows = evenly(len(task.train), self.options.samples)
        energies: list[Tensor] = []
        layers = list(self._layers())
        for part in rows.split(100):
            seen: list[Tensor] = []
            hooks = [
                block.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
                for _, block in layers
            ]
            self.encoder(self.scale(task.train.images[part], number))
            for hook in hooks:
                hook.remove()
            for layer, ((convolution, block), maps) in enumerate(zip(layers, seen, strict=True)):
                spec = block.spec
                patches = F.unfold(maps, convolution.kernel_size, padding=spec.padding, stride=spec.stride)
                patches = F.pad(patches, (0, 0, 0, 1), value=1.0).transpose(0, 1).flatten(1).cpu().double()
                energy = patches @ patches.T
                if len(energies) <= layer:
                    energies.append(energy)
                else:
                    energies[layer] += energy
        return energies

    def _layers(self) -> Iterator[tuple[nn.Conv2d, Any]]:
        """Every convolution of the encoder, with the block that it is in."""
        encoder: Any = self.encoder
        for unit in encoder.units:
            for block in unit.blocks:
                yield block.convolution, block

    def _norms(self) -> Iterator[nn.GroupNorm]:
        return (block.norm for _, block in self._layers() if block.norm is not None)


def _bias(convolution: nn.Conv2d) -> Tensor:
    assert convolution.bias is not None  # a unit's convolutions all have one
    return convolution.bias


def _matrix(convolution: nn.Conv2d) -> Tensor:
    """A copy of the weights, a row for each output, the bias at its end."""
    return torch.cat([convolution.weight.flatten(1), _bias(convolution)[:, None]], 1).detach()


def extend_basis(basis: Tensor, energy: Tensor, threshold: float) -> Tensor:
    """Add as few directions as possible to an orthonormal basis (d, k) for it to hold a share of the energy (d, d)."""
    left = torch.eye(len(energy), dtype=energy.dtype, device=energy.device) - basis.double() @ basis.double().T
    rest = left @ energy @ left
    total, missing = energy.trace(), rest.trace()
    if missing <= (1 - threshold) * total:
        return basis
    values, vectors = torch.linalg.eigh((rest + rest.T) / 2)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    held = total - missing + values.cumsum(0)
    room = len(energy) - basis.shape[1]
    needed = min(int((held < threshold * total).sum()) + 1, room, int((values > 1e-12 * total).sum()))
    both = torch.cat([basis.double(), vectors[:, :needed]], 1)
    orthonormal: Tensor = torch.linalg.qr(both)[0]
    return orthonormal
