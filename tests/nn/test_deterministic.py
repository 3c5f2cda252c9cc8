"""The same seed gives the same run, bit for bit; another seed another one."""

import torch

from hashroute import UnitSpec
from support import small_network, train


def run(seed: int) -> dict[str, torch.Tensor]:
    network = small_network(seed=seed, units=[UnitSpec(4, 3, 1, 1, dropout=0.3)] * 5, tau_empty=0.5)
    train(network, steps=10)
    network.add_units([UnitSpec(4, 3, 1, 1, dropout=0.3)])
    train(network, steps=10, seed=1)
    return network.state_dict()


def test_same_seed_same_bits() -> None:
    first, second = run(0), run(0)
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_another_seed_another_run() -> None:
    assert not torch.equal(run(0)["bases.vectors"], run(1)["bases.vectors"])
