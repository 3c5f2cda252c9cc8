"""gpm: updates leave alone what old tasks put into each layer."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hashroute.learners.gpm import extend_basis
from hashroute.nn.backbones import layers_of
from support import digits, fresh, learned

OWN = nn.Sequential(
    nn.Sequential(nn.Conv2d(1, 6, 3, padding="same", padding_mode="circular"), nn.GroupNorm(2, 6), nn.ReLU()),
    nn.Sequential(nn.Conv2d(6, 8, 3, 2, 1, groups=2, bias=False), nn.Linear(4, 4), nn.ReLU()),
)


def weights_of(layer: Any) -> Tensor:
    """A row for each output, with the bias at its end."""
    weight = layer.weight.detach().flatten(1)
    return weight.clone() if layer.bias is None else torch.cat([weight, layer.bias.detach()[:, None]], 1)


@pytest.mark.parametrize("backbone", ["small", OWN], ids=["small", "own"])
def test_updates_are_orthogonal_to_what_old_tasks_put_in(backbone: Any) -> None:
    learner = fresh("gpm", threshold=0.95, backbone=backbone).learn(digits().tasks[0])
    bases = {name: basis.clone() for name, basis in learner.kept.items()}
    before = [weights_of(layer) for layer in layers_of(learner.encoder)]
    norms = [(norm, [weight.clone() for weight in norm.parameters()]) for norm in learner.modules() if is_norm(norm)]
    learner.learn(digits().tasks[1])
    changed = 0.0
    for index, (layer, old) in enumerate(zip(layers_of(learner.encoder), before, strict=True)):
        change, basis = weights_of(layer) - old, bases[f"basis.{index}"]
        assert basis.shape[1] > 0
        assert (change @ basis).abs().max() < 1e-5
        changed += change.abs().max().item()
    assert changed > 1e-3, "nothing was learned at all"
    for norm, weights in norms:
        assert all(map(torch.equal, norm.parameters(), weights))


def is_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.GroupNorm)


@pytest.mark.parametrize("backbone", ["small", OWN], ids=["small", "own"])
def test_everything_protected_means_nothing_forgotten(backbone: Any) -> None:
    learner = fresh("gpm", threshold=1.0, backbone=backbone).learn(digits().tasks[0])
    images = digits().tasks[0].train.images[:50]
    before = learner.logits(images, 0)
    learner.learn(digits().tasks[1])
    torch.testing.assert_close(learner.logits(images, 0), before, rtol=1e-2, atol=1e-2)
    plain = learned("vc", 1)
    before = plain.logits(images, 0)
    plain.learn(digits().tasks[1])
    assert not torch.allclose(plain.logits(images, 0), before, rtol=1e-1, atol=1e-1), "else this shows nothing"


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.integers(1, 3), st.floats(0.3, 0.999), st.integers(0, 2**16))
def test_a_basis_grows_by_as_little_as_holds_the_share(size: int, tasks: int, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    basis = torch.zeros(size, 0)
    for _ in range(tasks):
        samples = torch.randn(size, 3 * size, generator=generator, dtype=torch.float64)
        samples *= torch.rand(size, 1, generator=generator, dtype=torch.float64)
        energy = samples @ samples.T
        grown = extend_basis(basis, energy, share).float()
        torch.testing.assert_close(grown.T @ grown, torch.eye(grown.shape[1]), rtol=0, atol=1e-5)
        held = [((part.double().T @ energy @ part.double()).trace() / energy.trace()).item() for part in (basis, grown)]
        assert held[1] >= share - 1e-5
        assert grown.shape[1] <= size
        old = basis.double()
        torch.testing.assert_close(grown.double() @ (grown.double().T @ old), old, rtol=0, atol=1e-5)
        if grown.shape[1] > basis.shape[1]:
            assert held[0] < share + 1e-9, "it grew though it held enough"
            rest = torch.eye(size, dtype=torch.float64) - old @ old.T
            largest = torch.linalg.eigvalsh(rest @ energy @ rest).flip(0)[: grown.shape[1] - basis.shape[1] - 1]
            assert held[0] + largest.sum().item() / energy.trace().item() < share + 1e-5, "it grew by too much"
        basis = grown
