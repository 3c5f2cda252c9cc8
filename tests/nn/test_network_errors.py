"""Bad input gets one clear line that says what was given, what was expected and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from hashroute import HashRoutedNetwork, UnitSpec
from support import assert_one_clear_line, small_network, some_images, train


def with_value(value: float) -> torch.Tensor:
    images = some_images(6)
    images[4, 1, 2, 3] = value
    return images


BAD_IMAGES = {
    "channels": (lambda: torch.zeros(3, 5, 8, 8), r"shape \(3, 5, 8, 8\): expected \(batch, 2, height, width\)"),
    "rank": (lambda: torch.zeros(2, 8, 8), r"images have shape \(2, 8, 8\): expected \(batch, 2, height, width\)"),
    "empty": (lambda: torch.zeros(0, 2, 8, 8), "batch not empty"),
    "nan": (lambda: with_value(float("nan")), "sample 4 of the images holds NaN or Inf"),
    "inf": (lambda: with_value(float("-inf")), "sample 4 of the images holds NaN or Inf"),
    "integers": (lambda: torch.zeros(3, 2, 8, 8, dtype=torch.uint8), r"uint8.*images.to\(torch.float32\) / 255"),
    "no tensor": (lambda: some_images().numpy(), "images are a ndarray: expected a torch.Tensor"),
    "no pixels": (lambda: torch.zeros(3, 2, 0, 8), "batch not empty"),
    "other type": (lambda: some_images().double(), r"images are torch.float64: expected torch.float32"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_IMAGES)
def test_bad_images(case: str) -> None:
    make, message = BAD_IMAGES[case]
    network = small_network()
    train(network, steps=3)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(ValueError, match=message) as error:
        network(make())
    assert "\n" not in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


BAD_SETTINGS: dict[str, tuple[Callable[[], HashRoutedNetwork], str]] = {
    "fewer units than levels": (lambda: small_network(depth=5), "there are 4 units for depth 5: expected at least 5"),
    "fewer without the last": (lambda: small_network(depth=6, last_residue=False), "expected at least 5"),
    "tau_depth": (lambda: small_network(tau_depth=-0.1), "tau_depth is -0.1: expected a number from 0 to 1"),
    "tau_empty": (lambda: small_network(tau_empty=1.5), "tau_empty is 1.5: expected a number from 0 to 1"),
    "tau_expand": (lambda: small_network(tau_expand=float("nan")), "tau_expand is nan: expected a number from 0 to 1"),
    "aging_rate": (lambda: small_network(aging_rate=1.0), "aging_rate is 1.0: expected a number above 1"),
    "max_age": (lambda: small_network(max_age=0), "max_age is 0: expected a number above 0"),
    "features": (lambda: small_network(features=0), "features is 0: expected at least 1"),
    "basis_size": (lambda: small_network(basis_size=0), "basis_size is 0: expected at least 1"),
    "depth": (lambda: small_network(depth=1, last_residue=False), "depth is 1: expected at least 2"),
    "channel rule": (lambda: small_network(channels="pad"), "channels is 'pad': expected 'slice' or 'chunk-sum'"),
    "image shape": (lambda: HashRoutedNetwork((8, 8)), r"is \(8, 8\): expected \(channels, height, width\)"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_SETTINGS)
def test_bad_settings(case: str) -> None:
    assert_one_clear_line(*BAD_SETTINGS[case])


def test_weights_that_blew_up_name_the_sample() -> None:
    network = small_network()
    train(network, steps=5)
    with torch.no_grad():
        for weight in network.parameters():
            weight.fill_(float("inf"))
    with pytest.raises(
        ValueError, match=re.compile(r"sample \d+ left its unit with NaN or Inf: lower the learning rate")
    ):
        network(some_images())


def test_maps_that_shrink_too_far_name_unit_and_size() -> None:
    network = small_network(units=[UnitSpec(4, 5)] * 4, depth=4)
    with pytest.raises(ValueError, match=r"unit \d got a map of 4 x 4, too small for its kernel of 5 x 5"):
        train(network, steps=5)
