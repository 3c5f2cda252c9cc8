"""Units can be added at any time."""

from __future__ import annotations

import copy

import pytest
import torch

from hashroute import UnitSpec
from support import small_network, some_images, train


def test_new_units_of_another_shape_join_and_learn() -> None:
    network = small_network(tau_empty=0.9)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    train(network, optimizer=optimizer)
    assert (network.bases.ranks > 0).all()
    network.add_units([UnitSpec(5, 2, 1, 1, then=UnitSpec(2, 3, 1, 1)), UnitSpec(6, 3, 1, 1)], optimizer)
    before = [weight.clone() for unit in network.units[4:] for weight in unit.parameters()]
    train(network, seed=1, optimizer=optimizer)
    assert (network.bases.usage[4:] > 0).all()
    after = [weight for unit in network.units[4:] for weight in unit.parameters()]
    assert any(not torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_old_units_keep_bases_weights_and_optimiser_state() -> None:
    network = small_network()
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    train(network, optimizer=optimizer)
    old = list(network.parameters())
    moments = copy.deepcopy([optimizer.state[weight] for weight in old])
    buffers = {name: buffer.clone() for name, buffer in network.bases.named_buffers()}
    weights = [weight.clone() for weight in old]

    network.add_units([UnitSpec(4, 3, 1, 1)], optimizer)

    assert all(one is other for one, other in zip(old, network.parameters(), strict=False))
    assert all(torch.equal(one, other) for one, other in zip(old, weights, strict=True))
    for weight, expected in zip(old, moments, strict=True):
        for name, value in expected.items():
            assert torch.equal(optimizer.state[weight][name], value)
    for name, buffer in network.bases.named_buffers():
        assert torch.equal(buffer[:4] if buffer.dim() else buffer, buffers[name])


def test_a_grown_optimisers_state_fits_one_made_for_the_grown_network() -> None:
    network, head = small_network(tau_empty=0.9), torch.nn.Linear(32, 4)
    optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()])
    train(network, optimizer=optimizer)
    network.add_units([UnitSpec(5, 3, 1, 1)], optimizer)
    train(network, seed=1, optimizer=optimizer)
    other = torch.optim.Adam([*network.parameters(), *head.parameters()])
    other.load_state_dict(optimizer.state_dict())
    for weight in network.parameters():
        for name, value in optimizer.state[weight].items():
            assert torch.equal(other.state[weight][name], value)


def test_in_eval_new_empty_units_change_nothing() -> None:
    network = small_network()
    train(network)
    network.eval()
    before = network(some_images())
    network.add_units([UnitSpec(6, 3, 1, 1)] * 3)
    for ours, theirs in zip(network(some_images()), before, strict=True):
        assert torch.equal(ours, theirs)
    assert not network.units[-1].training


def test_new_units_have_the_networks_type() -> None:
    network = small_network().double()
    network.add_units([UnitSpec(4, 3, 1, 1)])
    assert {weight.dtype for weight in network.parameters()} == {torch.float64}


def test_growing_equals_starting_large() -> None:
    """Hash functions belong to a unit's number, so it does not matter when a unit came."""
    grown = small_network(units=[UnitSpec(4, 3, 1, 1, in_channels=4)] * 3)
    grown.add_units([UnitSpec(4, 3, 1, 1)] * 2)
    large = small_network(units=[UnitSpec(4, 3, 1, 1)] * 5)
    large.load_state_dict(grown.state_dict())
    for step in range(10):
        ours, theirs = grown(some_images(seed=step)), large(some_images(seed=step))
        assert torch.equal(ours.features, theirs.features)


def test_an_optimiser_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no weight of this network"):
        small_network().add_units([UnitSpec(4)], torch.optim.SGD(small_network().parameters()))


@pytest.mark.parametrize(
    ("channels", "spec", "message"),
    [
        ("slice", UnitSpec(64, 3, 1, 1), "unit 4 has 64 channels and unit 0 takes at most 6"),
        ("slice", UnitSpec(4, 3, 1, 1, in_channels=2), "unit 0 has 4 channels and unit 4 takes at most 2"),
        ("chunk-sum", UnitSpec(5, 3, 1, 1), "unit 4 has 5 channels and unit 0 takes multiples of 2"),
        ("chunk-sum", UnitSpec(4, 3, 1, 1, in_channels=4), "the image has 2 channels and unit 4 takes multiples of 4"),
    ],
)
def test_a_unit_that_does_not_fit_the_others_is_refused_and_nothing_changes(
    channels: str, spec: UnitSpec, message: str
) -> None:
    units = [UnitSpec(4, 3, 1, 1), UnitSpec(6, 3, 1, 1), UnitSpec(2, 3, 1, 1), UnitSpec(4, 3, 1, 1)]
    network = small_network(units=units, channels=channels)
    with pytest.raises(ValueError, match=message):
        network.add_units([spec])
    assert len(network.units) == len(network.bases) == len(network.hashes) == 4
