"""Differences of low rank: the weights of a layer are those of another layer plus U V, and only U and V are kept."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    _Layer = nn.Conv2d
else:
    _Layer = object


class LowRank(_Layer):
    """The part of a layer's class that computes its weight from a frozen base and a difference U V."""

    base: Tensor
    up: nn.Parameter
    down: nn.Parameter

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The base plus the difference, in the shape of the base."""
        return self.base + (self.up @ self.down).view_as(self.base)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        """Its class exists only in this process: a copy or a pickle names the class that it was made from."""
        return _blank, (type(self).__bases__[1],), self.__dict__

    def extra_repr(self) -> str:
        """What a printed module says about the layer."""
        return f"rank {len(self.down)}, of weights {tuple(self.base.shape)}"


@cache
def _kind(layer: type) -> type:
    """The class with weights of low rank for a class of layers."""
    return type(f"LowRank{layer.__name__}", (LowRank, layer), {})


def _blank(layer: type) -> nn.Module:
    """A layer of low rank whose state is still to be set."""
    kind: Any = _kind(layer)
    blank: nn.Module = kind.__new__(kind)
    return blank


def make_low_rank(layer: nn.Conv2d | nn.Linear, rank: int) -> None:
    """Turn a layer into one whose weights can differ from the present ones by a matrix of this rank alone.

    U = 0 and V is random, so the difference is 0 at first. The base is frozen and not part of the layer's state.
    """
    changed: Any = layer
    base = layer.weight.detach().clone()
    inputs = base[0].numel()
    del changed.weight
    kind: Any = type(layer)
    changed.__class__ = _kind(kind)
    changed.register_buffer("base", base, persistent=False)
    changed.up = nn.Parameter(base.new_zeros(len(base), rank))
    changed.down = nn.Parameter(torch.randn(rank, inputs, device=base.device, dtype=base.dtype) / inputs**0.5)


def numbers_saved(weight: Tensor, rank: int) -> int:
    """How many numbers fewer a difference of a rank needs than the weights; 0 if it is not smaller, or rank is 0."""
    return max(0, weight.numel() - rank * (len(weight) + weight[0].numel())) if rank else 0
