"""Convolution units: both channel rules, and blocks in a row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from hashroute import UnitSpec
from hashroute.nn.units import ConvUnit, _max_pool


def maps(channels: int, n: int = 3, side: int = 9) -> torch.Tensor:
    return torch.randn(n, channels, side, side, generator=torch.Generator().manual_seed(channels), dtype=torch.float64)


def unit(spec: UnitSpec, in_channels: int, channels: str = "slice") -> ConvUnit:
    torch.manual_seed(0)
    return ConvUnit(spec, in_channels, channels, "unit 0").double()


@pytest.mark.parametrize("in_channels", [1, 3])
@pytest.mark.parametrize("padding", [0, 2])
def test_a_block_is_convolution_norm_activation_pooling(in_channels: int, padding: int) -> None:
    ours = unit(UnitSpec(6, 3, 2, padding, norm_groups=2, activation="relu", max_pool=2), in_channels)
    block = ours.blocks[0]
    chain = nn.Sequential(block.convolution, block.norm, nn.ReLU(), nn.MaxPool2d(2))
    torch.testing.assert_close(ours(maps(in_channels)), chain(maps(in_channels)))


def test_fewer_channels_count_as_zero() -> None:
    ours = unit(UnitSpec(4), 5)
    padded = torch.cat([maps(2), torch.zeros(3, 3, 9, 9)], 1)
    torch.testing.assert_close(ours(maps(2)), ours(padded))


def test_chunk_sum_adds_what_the_first_block_makes_of_each_chunk() -> None:
    ours = unit(UnitSpec(4, norm_groups=1, then=UnitSpec(3)), 2, "chunk-sum")
    x = maps(6)
    first, second = ours.blocks
    summed = first(x[:, :2]) + first(x[:, 2:4]) + first(x[:, 4:])
    torch.testing.assert_close(ours(x), second(summed))


@pytest.mark.parametrize("pool", [1, 2])
@pytest.mark.parametrize("stride", [1, 3])
def test_one_channel_convolves_like_many(stride: int, pool: int) -> None:
    ours = unit(UnitSpec(4, 5, stride, 2, max_pool=pool), 1)
    x = maps(1).requires_grad_()
    ours(x).square().sum().backward()
    layer = ours.blocks[0].convolution
    found = [x.grad, layer.weight.grad, layer.bias.grad]
    y = maps(1).requires_grad_()
    pooled = F.max_pool2d(F.conv2d(y, layer.weight, layer.bias, stride, 2), pool)
    expected = F.leaky_relu(pooled).square().sum()
    for one, other in zip(found, torch.autograd.grad(expected, [y, layer.weight, layer.bias]), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("sides", [(8, 8), (7, 4), (2, 9)])
def test_pooling_without_gradients_is_the_librarys(sides: tuple[int, int], memory: torch.memory_format) -> None:
    x = torch.randn(3, 2, *sides, generator=torch.Generator().manual_seed(0)).contiguous(memory_format=memory)
    with torch.no_grad():
        assert torch.equal(_max_pool(x, 2), F.max_pool2d(x, 2))
    x[0, 0, 0, 0] = torch.nan
    with torch.inference_mode():
        assert _max_pool(x, 2).isnan().sum() == 1


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9, 0.999999])
def test_dropout_drops_its_share_and_keeps_the_mean(rate: float) -> None:
    ours = unit(UnitSpec(8, 1, dropout=rate), 8)
    x = torch.ones(40, 8, 31, 31, dtype=torch.float64)
    y, plain = ours(x), ours.eval()(x)
    dropped = (y == 0).double().mean().item()
    assert dropped == pytest.approx(rate, abs=0.005)
    if rate < 0.99:
        torch.testing.assert_close(y[y != 0] * (1 - rate), plain[y != 0], rtol=1e-4, atol=0)
    # Neither neighbours nor samples share their fate.
    gone = (y == 0).double().flatten(1) - dropped
    for shifted in (gone[:, 1:], gone[:, 4:], gone.roll(1, 0)):
        assert abs((gone[:, : shifted.shape[1]] * shifted).mean().item()) < 0.005


def test_a_map_that_the_kernel_does_not_fit_names_unit_and_size() -> None:
    with pytest.raises(
        ValueError, match=r"unit 0 got a map of 2 x 2, too small for its kernel of 5 x 5 with padding 1"
    ):
        unit(UnitSpec(4, 5, 1, 1), 1)(maps(1, side=2))
    with pytest.raises(ValueError, match=r"unit 0 got a map of 3 x 3, too small for its pooling window of 4 x 4"):
        unit(UnitSpec(4, 1, max_pool=4), 1)(maps(1, side=3))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(out_channels=0), "out_channels of a UnitSpec is 0: expected a whole number of at least 1"),
        (dict(out_channels=4, kernel_size=2.5), "kernel_size of a UnitSpec is 2.5"),
        (dict(out_channels=4, norm_groups=3), "expected 0 .no norm. or a divisor of out_channels=4"),
        (dict(out_channels=4, activation="tanh"), "activation of a UnitSpec is 'tanh'"),
        (dict(out_channels=4, dropout=1.0), "dropout of a UnitSpec is 1.0"),
        (dict(out_channels=4, in_channels=0), "in_channels of a UnitSpec is 0"),
        (dict(out_channels=4, then=UnitSpec(4, in_channels=3)), "has in_channels=3: leave it out"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UnitSpec(**settings)


def test_a_spec_survives_plain_values() -> None:
    spec = UnitSpec(8, 3, norm_groups=4, then=UnitSpec(4, 1, dropout=0.2, then=UnitSpec(2)))
    assert UnitSpec.from_dict(spec.to_dict()) == spec
    assert spec.channels_out == 2
