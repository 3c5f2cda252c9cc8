"""The network as a part of other programs: in an nn.Sequential, checkpointed, and in several processes."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from hashroute import HashRoutedNetwork, UnitSpec
from hashroute.nn.growth import Growth
from ranks import RANKS, on_ranks
from support import SMALL_UNITS, small_network, some_images, train

DROPPED = tuple(UnitSpec(4, 3, 1, 1, dropout=0.4) for _ in range(5))


def test_features_alone_can_pass_through_a_sequential() -> None:
    model = nn.Sequential(small_network(output="features"), nn.Linear(32, 3))
    same = small_network()
    assert torch.equal(model[0](some_images()), same(some_images()).features)
    assert model(some_images()).shape == (16, 3)
    state = model[0].state_dict()
    same.load_state_dict(state)  # what a pass returns is no part of what was learned
    assert HashRoutedNetwork.from_state_dict(state).output == "features"


def step(network: HashRoutedNetwork, passes: list[Any], images: list[Tensor]) -> None:
    """The gradients of several passes in one backward pass."""
    network.zero_grad()
    torch.manual_seed(5)
    losses = [each(some) for each, some in zip(passes, images, strict=True)]
    torch.stack([routing.features[:, 0].sum() + routing.residue_penalty() for routing in losses]).sum().backward()


@pytest.mark.parametrize("settings", [{}, {"units": DROPPED}, {"grow": Growth(SMALL_UNITS, 9, 0.0, 1)}])
def test_checkpointing_changes_nothing(settings: dict[str, Any]) -> None:
    plain, saved = small_network(**settings), small_network(**settings)

    def checkpointed(images: Tensor) -> Any:
        return checkpoint(saved, images, use_reentrant=False)

    for number in range(4):
        images = [some_images(seed=2 * number), some_images(seed=2 * number + 1)]
        step(plain, [plain, plain], images)
        step(saved, [checkpointed, saved], images)
    for (name, ours), (_, theirs) in zip(plain.state_dict().items(), saved.state_dict().items(), strict=True):
        assert torch.equal(ours, theirs), name
    for ours, theirs in zip(plain.parameters(), saved.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=0, atol=0)


def test_checkpointing_that_cannot_be_repeated_is_refused() -> None:
    network, images = small_network(), some_images().requires_grad_()
    features, *_ = checkpoint(network, images, use_reentrant=True)
    with pytest.raises(ValueError, match="use_reentrant=False"):
        features.sum().backward()


def test_passes_leave_nothing_behind() -> None:
    network = small_network()
    train(network, 3)
    gc.collect()
    assert len(network._recordings._kept) == 0
    routing = network(some_images())
    assert len(network._recordings._kept) == 1
    assert len(copy.deepcopy(network)._recordings._kept) == 0
    del routing


# ------------------------------------------------------------------------ several processes

SIZES = [(11, 5), (3, 9)]
"""How many samples each process has in some batches."""
CASES: list[dict[str, Any]] = [
    {"units": SMALL_UNITS, "max_age": 3.0},
    {"units": DROPPED, "channels": "chunk-sum", "tau_expand": 0.5},
    {"units": SMALL_UNITS[:3], "grow": Growth(SMALL_UNITS, 6, 0.0, 1), "tau_empty": 0.9},
]


def evolve(settings: dict[str, Any], rank: int | None) -> dict[str, Any]:
    """A few steps in double precision; in a process of several, with a part of each batch."""
    network = small_network(**settings).double()
    optimizer = torch.optim.SGD(network.parameters(), 0.05)
    found = []
    for number in range(9):
        sizes = SIZES[number % 2]
        images = some_images(sum(sizes), seed=number).double()
        own = images if rank is None else images.split(sizes)[rank]
        model: Any = network
        if rank is not None:
            model = DistributedDataParallel(network, find_unused_parameters=True)
        torch.manual_seed(number)
        routing = model(own)
        share = 1 if rank is None else RANKS
        loss = share * (routing.features[:, 0].sum() + routing.residue_l1.sum()) / len(images)
        optimizer.zero_grad()
        loss.backward()
        network.train_new_units(optimizer)
        optimizer.step()
        found.append(routing.paths)
    return {"state": network.state_dict(), "paths": found}


def evolve_here() -> list[dict[str, Any]]:
    return [evolve(case, dist.get_rank()) for case in CASES]


def test_bases_evolve_as_in_one_process(tmp_path: Path) -> None:
    together = on_ranks(evolve_here, tmp_path)
    for case, *both in zip(CASES, *together, strict=True):
        alone = evolve(case, None)
        assert alone["state"].keys() == both[0]["state"].keys()
        for name, tensor in alone["state"].items():
            assert torch.equal(both[0]["state"][name], both[1]["state"][name]), name
            if tensor.is_floating_point():
                torch.testing.assert_close(both[0]["state"][name], tensor, rtol=0, atol=1e-12)
            else:
                assert torch.equal(both[0]["state"][name], tensor), name
        for paths, *parts in zip(alone["paths"], both[0]["paths"], both[1]["paths"], strict=True):
            assert torch.equal(torch.cat(parts), paths)
