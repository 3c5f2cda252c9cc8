"""Gradient regularisation scales each sample's share of a weight gradient, and nothing else."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from hashroute import HashRoutedNetwork
from support import small_network, some_images


def weight_gradients(network: HashRoutedNetwork, loss: Tensor) -> list[Tensor]:
    weights = list(network.parameters())
    found = torch.autograd.grad(loss, weights, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True)]


@pytest.mark.parametrize("tau_depth", [0.0, 0.2])
def test_equals_a_loop_that_scales_each_samples_gradient(tau_depth: float) -> None:
    """With tau_depth 0 also samples that initialise a unit go on through it, with no weight gradient at all."""
    torch.manual_seed(0)
    settings = dict(tau_depth=tau_depth, tau_empty=0.6, tau_expand=0.5, depth=4)
    images = some_images(24).double()
    target = torch.randn(32, dtype=torch.float64)

    regularised = small_network(**settings).double()
    routing = regularised(images)
    ours = weight_gradients(regularised, (routing.features @ target).square().mean() + routing.residue_penalty())

    plain = small_network(**settings, gradient_regularisation=False).double()
    routing = plain(images)
    numbers = [int(name.split(".")[1]) for name, _ in plain.named_parameters()]
    theirs = [torch.zeros_like(weight) for weight in plain.parameters()]
    for row in range(len(images)):
        loss = (routing.features[row] @ target).square() / len(images) + routing.residue_l1[row].sum() / len(images)
        path = routing.paths[row].tolist()
        for total, gradient, unit in zip(theirs, weight_gradients(plain, loss), numbers, strict=True):
            if unit in path:
                total += min(1.0, float(routing.residue_l2[row, path.index(unit)])) * gradient
    assert any(total.any() for total in theirs)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_what_flows_back_to_the_image_is_unscaled() -> None:
    gradients = []
    for regularise in (True, False):
        network = small_network(tau_depth=0.0, tau_empty=0.6, gradient_regularisation=regularise).double()
        images = some_images(16).double().requires_grad_()
        network(images).features.square().sum().backward()
        gradients.append(images.grad)
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)


def test_gradients_are_those_of_finite_differences() -> None:
    network = small_network(gradient_regularisation=False).double()
    network(some_images(40).double())
    network.eval()
    torch.autograd.gradcheck(lambda images: network(images).features, some_images(1, 5).double().requires_grad_())


def test_every_unit_that_convolved_gets_a_gradient() -> None:
    network = small_network(depth=4)
    for seed in range(5):
        network.zero_grad()
        routing = network(some_images(seed=seed))
        routing.features.square().sum().backward()
        convolved = {unit for path in routing.paths.tolist() for unit, after in pairwise(path) if after >= 0}
        moved = {
            number
            for number, unit in enumerate(network.units)
            if any(w.grad is not None and w.grad.any() for w in unit.parameters())
        }
        assert convolved == moved
