"""A network with `grow` adds units by itself when its units do not know the data."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from hashroute import Growth, HashRoutedNetwork, UnitSpec
from support import assert_one_clear_line, small_network, some_images, train

SPEC = UnitSpec(4, 3, 1, 1)


def growing(most: int = 9, share: float = 0.2, patience: int = 3, **settings: Any) -> HashRoutedNetwork:
    """Random images are hardly ever known to a basis with these thresholds."""
    rule = Growth((SPEC, UnitSpec(6, 3, 2, 1)), most, share, patience)
    return small_network(grow=rule, **{"tau_empty": 0.8, **settings})


def counts(network: HashRoutedNetwork, steps: int) -> list[int]:
    """The number of units after each of some training batches."""
    found = []
    for step in range(steps):
        network(some_images(seed=step))
        found.append(len(network.units))
    return found


def test_a_unit_comes_after_as_many_batches_as_patience_says_up_to_the_bound() -> None:
    assert counts(growing(most=6, patience=4), 12) == [4] * 3 + [5] * 4 + [6] * 5
    assert counts(growing(most=6, patience=1), 4) == [5, 6, 6, 6]
    assert counts(growing(most=4), 12) == [4] * 12
    network = growing(most=6, patience=1)
    counts(network, 2)
    assert [unit.spec for unit in network.units][4:] == [SPEC, UnitSpec(6, 3, 2, 1)]


def test_known_data_adds_no_unit_and_starts_the_count_again() -> None:
    network = growing(patience=3)
    counts(network, 2)
    assert int(network.unknown_batches) == 2
    network.bases.tau_empty = 0.0  # every vector is known
    network(some_images())
    assert int(network.unknown_batches) == 0
    assert len(network.units) == 4


def test_no_unit_comes_while_one_is_empty() -> None:
    network = growing(patience=1, most=40)
    network.add_units([SPEC] * 30)
    network(some_images(8))
    assert (network.bases.ranks == 0).any()
    assert len(network.units) == 34
    assert int(network.unknown_batches) == 0


def test_eval_never_grows_nor_counts() -> None:
    network = growing(patience=2)
    counts(network, 1)
    network.eval()
    assert counts(network, 5) == [4] * 5
    assert int(network.unknown_batches) == 1


def test_zero_images_do_not_count() -> None:
    network = growing(patience=2)
    counts(network, 1)
    network(torch.zeros(4, 2, 8, 8))
    assert int(network.unknown_batches) == 1


def test_the_same_seed_grows_the_same_network() -> None:
    one, other = growing(), growing()
    for network in (one, other):
        torch.manual_seed(5)
        counts(network, 12)
    assert len(one.units) > 4
    for (name, ours), theirs in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_a_rule_that_never_applies_changes_nothing() -> None:
    plain, idle = small_network(), small_network(grow=Growth((SPEC,), most=4))
    assert train(plain) == train(idle)
    for name, tensor in plain.state_dict().items():
        assert name == "_extra_state" or torch.equal(tensor, idle.state_dict()[name]), name


def test_new_units_are_trained_and_old_ones_keep_their_optimiser_state() -> None:
    network, head = growing(patience=2), torch.nn.Linear(32, 4)
    optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()], 1e-2)
    born: dict[str, torch.Tensor] = {}
    for step in range(25):
        loss = head(network(some_images(seed=step)).features).square().mean()
        for name, weight in network.named_parameters():
            born.setdefault(name, weight.detach().clone())
        optimizer.zero_grad()
        loss.backward()
        network.train_new_units(optimizer)
        optimizer.step()
    assert len(network.units) == 9
    for unit in range(4, 8):
        name = f"units.{unit}.blocks.0.convolution.weight"
        assert not torch.equal(dict(network.named_parameters())[name], born[name]), name
    (group,) = optimizer.param_groups
    wanted = [*network.parameters(), *head.parameters()]
    assert [id(weight) for weight in group["params"]] == [id(weight) for weight in wanted]
    assert int(optimizer.state[wanted[-1]]["step"]) == 25
    other = torch.optim.Adam(wanted)
    other.load_state_dict(optimizer.state_dict())
    assert all(torch.equal(other.state[w]["exp_avg"], optimizer.state[w]["exp_avg"]) for w in optimizer.state)


def test_units_that_an_optimiser_leaves_out_on_purpose_stay_out() -> None:
    network = growing(most=5, patience=1)
    optimizer = torch.optim.SGD(network.units[3].parameters(), 0.1)
    counts(network, 1)
    network.train_new_units(optimizer)
    held = [id(weight) for weight in optimizer.param_groups[0]["params"]]
    assert held == [id(weight) for unit in network.units[3:] for weight in unit.parameters()]


def test_a_saved_network_goes_on_growing_like_the_original() -> None:
    network = growing(patience=4)
    counts(network, 10)
    assert (len(network.units), int(network.unknown_batches)) == (6, 2)
    loaded = HashRoutedNetwork.from_state_dict(network.state_dict())
    assert loaded.grow == network.grow
    for other in (loaded, copy.deepcopy(network)):
        torch.manual_seed(1)
        found = counts(other, 8)
        assert found == [6, 7, 7, 7, 7, 8, 8, 8]


def test_states_with_and_without_growth_are_told_apart() -> None:
    plain, grown = small_network(tau_empty=0.8), growing()
    assert "grow" not in plain.config
    assert plain.state_dict().keys() == grown.state_dict().keys() - {"unknown_batches"}
    for one, other in ((plain, grown), (grown, plain)):
        with pytest.raises(ValueError, match="another architecture: its grow is"):
            one.load_state_dict(other.state_dict())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Growth((), 8), r"units of a Growth is \(\): expected one UnitSpec or more"),
        (lambda: Growth((SPEC,), 0), "most of a Growth is 0: expected a whole number of at least 1"),
        (lambda: Growth((SPEC,), 8, patience=1.5), "patience of a Growth is 1.5: expected a whole number"),
        (lambda: Growth((SPEC,), 8, share=1.0), "share of a Growth is 1.0: expected a number from 0 to below 1"),
        (
            lambda: small_network(channels="chunk-sum", units=[SPEC] * 4, grow=Growth((UnitSpec(5, 3, 1, 1),), 8)),
            "a unit of grow has 5 channels and unit 0 takes multiples of 2",
        ),
        (
            lambda: small_network(grow=Growth((UnitSpec(6, 3, 1, 1, in_channels=2),), 8)),
            "has . channels and a unit of grow takes at most 2",
        ),
    ],
)
def test_rules_that_cannot_work_are_refused_at_once(make: Any, message: str) -> None:
    assert_one_clear_line(make, message)


def test_an_optimiser_of_another_network_is_refused() -> None:
    with pytest.raises(ValueError, match="holds no weight of this network"):
        growing().train_new_units(torch.optim.SGD(small_network().parameters()))
