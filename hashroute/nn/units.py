"""Convolution units f_k and the specs they are made from."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute import distributed

ChannelRule = Literal["slice", "chunk-sum"]


MOST_NUMBERS = 2**15
"""Weights of a convolution for each input channel, at most: a file from a stranger cannot ask for gigabytes."""


@dataclass(frozen=True)
class UnitSpec:
    """A unit: a block (convolution, group norm, max-pooling, activation, dropout), and the blocks that follow it."""

    out_channels: int
    kernel_size: int = 3
    stride: int = 1
    padding: int = 0
    norm_groups: int = 0
    """Groups of the group norm: 0 for none, 1 for one over all channels."""
    activation: Literal["leaky_relu", "relu"] = "leaky_relu"
    max_pool: int = 1
    """Side of the max-pooling window: 1 for none."""
    dropout: float = 0.0
    in_channels: int | None = None
    """Channels that the first convolution has weights for; None lets the network choose."""
    then: UnitSpec | None = None
    """The block that follows in the same unit."""

    def __post_init__(self) -> None:
        for name, least in (("out_channels", 1), ("kernel_size", 1), ("stride", 1), ("padding", 0), ("max_pool", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} of a UnitSpec is {value!r}: expected a whole number of at least {least}")
        if self.out_channels * self.kernel_size**2 > MOST_NUMBERS:
            raise ValueError(
                f"a UnitSpec has {self.out_channels:,} channels of {self.kernel_size} x {self.kernel_size} weights: "
                f"expected at most {MOST_NUMBERS:,} numbers for each input channel"
            )
        if self.padding > self.kernel_size:
            raise ValueError(
                f"padding of a UnitSpec is {self.padding}: expected at most the kernel_size, {self.kernel_size}"
            )
        if (
            type(self.norm_groups) is not int
            or self.norm_groups < 0
            or (self.norm_groups and self.out_channels % self.norm_groups)
        ):
            raise ValueError(
                f"norm_groups of a UnitSpec is {self.norm_groups}: expected 0 (no norm) or a divisor of "
                f"out_channels={self.out_channels}"
            )
        if self.activation not in _ACTIVATIONS:
            raise ValueError(f"activation of a UnitSpec is {self.activation!r}: expected one of {sorted(_ACTIVATIONS)}")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout of a UnitSpec is {self.dropout}: expected a number from 0 to below 1")
        if self.in_channels is not None and not 1 <= self.in_channels <= MOST_NUMBERS:
            raise ValueError(
                f"in_channels of a UnitSpec is {self.in_channels}: expected None, or 1 to {MOST_NUMBERS:,}"
            )
        if self.then is not None and self.then.in_channels not in (None, self.out_channels):
            raise ValueError(
                f"the block after one with out_channels={self.out_channels} has in_channels={self.then.in_channels}: "
                "leave it out, it follows from the block before"
            )

    def blocks(self) -> Iterator[UnitSpec]:
        """This block and those that follow."""
        yield self
        if self.then is not None:
            yield from self.then.blocks()

    @property
    def channels_out(self) -> int:
        """Channels of the maps that the whole unit returns."""
        return [block.out_channels for block in self.blocks()][-1]

    def to_dict(self) -> dict[str, Any]:
        """The spec as plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> UnitSpec:
        """The spec that `to_dict` described."""
        then = values["then"]
        return cls(**{**values, "then": None if then is None else cls.from_dict(then)})


class ConvUnit(nn.Module):
    """f_k: turns a batch of maps (batch, channels, height, width) into another, each sample independently.

    The channel rule says how it takes maps of different channel counts. "slice": the first convolution has weights for
    up to in_channels and uses the first of them; absent channels count as zero. "chunk-sum": the first block is applied
    to each group of in_channels, and the results are summed.
    """

    def __init__(self, spec: UnitSpec, in_channels: int, channels: ChannelRule, name: str) -> None:
        super().__init__()
        self.spec = spec
        self.in_channels = in_channels
        self.channels = channels
        self.name = name
        self.blocks = nn.ModuleList()
        for block in spec.blocks():
            self.blocks.append(ConvBlock(block, in_channels, name))
            in_channels = block.out_channels

    def takes(self, channels: int) -> bool:
        """Whether maps with this many channels can enter."""
        return channels % self.in_channels == 0 if self.channels == "chunk-sum" else channels <= self.in_channels

    def forward(self, maps: Tensor) -> Tensor:
        """maps: (batch, channels, height, width)."""
        chunks = maps.shape[1] // self.in_channels if self.channels == "chunk-sum" else 1
        first, *rest = self.blocks
        if chunks > 1:
            maps = first(maps.reshape(-1, self.in_channels, *maps.shape[2:]), chunks).unflatten(0, (-1, chunks)).sum(1)
        else:
            maps = first(maps)
        for block in rest:
            maps = block(maps)
        return maps

    def extra_repr(self) -> str:
        return f"channels={self.channels!r}"


class Convolution(nn.Conv2d):
    """A convolution that also takes maps of fewer channels than it has weights for: absent channels count as zero.

    pooled: the result is max-pooled next, without a norm in between.
    """

    def __init__(self, spec: UnitSpec, in_channels: int, pooled: bool) -> None:
        super().__init__(in_channels, spec.out_channels, spec.kernel_size, spec.stride, spec.padding)
        self.spec = spec
        self.pooled = pooled

    def forward(self, maps: Tensor) -> Tensor:
        """maps: (batch, channels, height, width)."""
        weight = self.weight
        if maps.shape[1] != self.in_channels:
            weight = weight[:, : maps.shape[1]]
        return _convolve(maps, weight, self.bias, self.spec.stride, self.spec.padding, self.pooled)


class ConvBlock(nn.Module):
    """One block of a unit: convolution, group norm, max-pooling, activation, dropout."""

    def __init__(self, spec: UnitSpec, in_channels: int, name: str) -> None:
        super().__init__()
        self.spec = spec
        self.name = name
        self.convolution = Convolution(spec, in_channels, pooled=spec.max_pool > 1 and not spec.norm_groups)
        self.norm = nn.GroupNorm(spec.norm_groups, spec.out_channels) if spec.norm_groups else None

    def forward(self, maps: Tensor, chunks: int = 1) -> Tensor:
        """maps: (batch, channels, height, width), of which `chunks` at a time belong to one sample."""
        spec = self.spec
        self._check_fits(maps, spec.kernel_size, spec.padding, "kernel")
        maps = self.convolution(maps)
        if self.norm is not None:
            maps = self.norm(maps)
        if spec.max_pool > 1:  # before the activation: it is monotonic, and there are fewer numbers left to act on
            self._check_fits(maps, spec.max_pool, 0, "pooling window")
            maps = _max_pool(maps, spec.max_pool)
        maps = _ACTIVATIONS[spec.activation](maps, inplace=True)
        return maps * _dropout_mask(maps, spec.dropout, chunks) if spec.dropout and self.training else maps

    def _check_fits(self, maps: Tensor, side: int, padding: int, what: str) -> None:
        height, width = maps.shape[2:]
        if min(height, width) + 2 * padding < side:
            raise ValueError(
                f"{self.name} got a map of {height} x {width}, too small for its {what} of {side} x {side} with "
                f"padding {padding}: use larger images, a smaller kernel or stride, more padding or less depth"
            )


def _convolve(
    maps: Tensor, weight: Tensor, bias: Tensor | None, stride: int, padding: int, pooled: bool = False
) -> Tensor:
    """A convolution. For maps of one channel, one matrix product is faster on a CPU than the library's convolution.

    pooled: they are max-pooled next, which is several times as fast where channels come last.
    """
    none = maps.shape[0] == 0  # len() would tie an exported model to one number of images
    if maps.shape[1] > 1 or maps.device.type != "cpu" or bias is None or none:
        return F.conv2d(maps, weight, bias, stride, padding)
    side = weight.shape[-1]
    padded = F.pad(maps[:, 0], (padding,) * 4) if padding else maps[:, 0]
    patches = padded.unfold(1, side, stride).unfold(2, side, stride)  # (batch, height, width, side, side)
    if pooled:
        product = torch.addmm(bias, patches.reshape(-1, side * side), weight.flatten(1).T)
        return product.view(*patches.shape[:3], -1).permute(0, 3, 1, 2)
    columns = patches.permute(3, 4, 0, 1, 2).reshape(side * side, -1)
    product = torch.addmm(bias[:, None], weight.flatten(1), columns)
    return product.view(-1, *patches.shape[:3]).transpose(0, 1).contiguous()


def _max_pool(maps: Tensor, side: int) -> Tensor:
    """Max-pooling. Without gradients, comparing slices is faster on a CPU for windows of 2 x 2."""
    if side != 2 or torch.is_grad_enabled() or maps.device.type != "cpu":
        return F.max_pool2d(maps, side)
    height, width = (length // 2 * 2 for length in maps.shape[2:])
    rows = torch.maximum(maps[:, :, :height:2], maps[:, :, 1:height:2])
    return torch.maximum(rows[..., :width:2], rows[..., 1:width:2])


def _dropout_mask(maps: Tensor, rate: float, chunks: int) -> Tensor:
    """A dropout mask: 0 for a share `rate` of the numbers, 1 / (1 - rate) for the rest."""
    kept = max(1, round((1 - rate) * 2**16))
    draw = partial(_draw_16_bits, maps.shape[1:], maps.device)
    mask = distributed.draw_rows(len(maps), draw, chunks).float().lt_(kept - 2**15)
    return mask.mul_(2**16 / kept).to(maps.dtype)


def _draw_16_bits(shape: Sequence[int], device: torch.device, rows: int) -> Tensor:
    """(rows, *shape) random whole numbers of 16 bits.

    Drawing one random number for each element is what dropout takes on a CPU, so each draw of 64 bits serves four.
    """
    count = rows * math.prod(shape)
    draws = torch.empty((count + 3) // 4, dtype=torch.int64, device=device).random_(-(2**63), None)
    return draws.view(torch.int16)[:count].view(rows, *shape)


_ACTIVATIONS: dict[str, Callable[..., Tensor]] = {"leaky_relu": F.leaky_relu, "relu": F.relu}
