"""A network saved is the network loaded."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hashroute import HashRoutedNetwork, UnitSpec
from support import small_network, some_images, train


def through_state(network: HashRoutedNetwork) -> HashRoutedNetwork:
    fresh = small_network(seed=0)
    if len(network.units) > 4:
        fresh.add_units([UnitSpec(5, 3, 1, 1)])
    fresh.load_state_dict(network.state_dict(), strict=True)
    return fresh


def through_torch_file(network: HashRoutedNetwork) -> HashRoutedNetwork:
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    return HashRoutedNetwork.from_state_dict(torch.load(file, weights_only=True))


COPIES: dict[str, Callable[[HashRoutedNetwork], HashRoutedNetwork]] = {
    "state_dict": through_state,
    "torch.save": through_torch_file,
    "deepcopy": copy.deepcopy,
    "pickle": lambda network: pickle.loads(pickle.dumps(network)),
    "from_state_dict": lambda network: HashRoutedNetwork.from_state_dict(network.state_dict()),
}


@pytest.mark.parametrize("grown", [False, True], ids=["as built", "grown"])
@pytest.mark.parametrize("way", COPIES)
def test_a_copy_continues_like_the_original(way: str, grown: bool) -> None:
    network = small_network()
    train(network, steps=5)
    if grown:
        network.add_units([UnitSpec(5, 3, 1, 1)])
        train(network, steps=5, seed=1)
    other = COPIES[way](network)
    assert network.config == other.config
    assert train(network, steps=8, seed=2) == train(other, steps=8, seed=2)
    for (name, ours), theirs in zip(network.state_dict().items(), other.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs), name


def test_a_copy_is_independent() -> None:
    network = small_network()
    train(network, steps=3)
    other = copy.deepcopy(network)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    train(other, seed=1)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_safetensors_holds_a_whole_network(tmp_path: Path) -> None:
    network = small_network()
    train(network, steps=3)
    save_file(network.state_dict(), tmp_path / "network.safetensors")
    other = HashRoutedNetwork.from_state_dict(load_file(tmp_path / "network.safetensors"))
    network.eval()
    other.eval()
    assert torch.equal(network(some_images()).features, other(some_images()).features)


def test_as_a_part_of_a_larger_module() -> None:
    models = [torch.nn.Sequential(small_network(), torch.nn.Identity()) for _ in range(2)]
    train(models[0][0])
    models[1].load_state_dict(models[0].state_dict())
    assert torch.equal(models[1][0].bases.vectors, models[0][0].bases.vectors)


def test_to_another_dtype_and_back() -> None:
    network = small_network()
    train(network)
    double = copy.deepcopy(network).to(torch.float64)
    assert double.bases.vectors.dtype == torch.float64
    assert double.bases.ages.dtype == torch.int64
    double(some_images().double()).features.sum().backward()
    assert torch.equal(copy.deepcopy(network).double().float().bases.vectors, network.bases.vectors)


def test_to_a_device() -> None:
    network = small_network().to("meta")
    assert {tensor.device.type for tensor in [*network.parameters(), *network.buffers()]} == {"meta"}


def test_compiled_equals_eager() -> None:
    network = small_network()
    train(network, steps=3)
    compiled = torch.compile(copy.deepcopy(network), backend="eager")
    for step in range(3):
        outputs = [model(some_images(seed=step)).features for model in (network, compiled)]
        assert torch.equal(*outputs)
        gradients = [
            torch.autograd.grad(output.square().sum(), list(model.parameters()), allow_unused=True)
            for model, output in zip((network, compiled), outputs, strict=True)
        ]
        for ours, theirs in zip(*gradients, strict=True):
            assert (ours is None and theirs is None) or torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (dict(features=33), "its features is 33, this network's is 32"),
        (dict(basis_size=5), "its basis_size is 5, this network's is 3"),
        (dict(seed=1), "its seed is 1, this network's is 0"),
        (dict(max_age=50), "its max_age is 50.0, this network's is 5.0"),
        (dict(depth=2), "its depth is 2, this network's is 3"),
        (dict(tau_depth=0.1), "its tau_depth is 0.1, this network's is 1e-05"),
        (dict(last_residue=False), "its last_residue is False, this network's is True"),
        (dict(units=[UnitSpec(6, 3, 1, 1)] * 4), "its units is"),
        (dict(units=[UnitSpec(6, 3, 1, 1)] * 5), "its number of units is 5, this network's is 4"),
    ],
)
def test_a_state_of_another_architecture_is_refused_whole(settings: dict[str, object], message: str) -> None:
    network = small_network()
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(ValueError, match=f"another architecture: {message}") as error:
        network.load_state_dict(small_network(**settings).state_dict())
    assert "\n" not in str(error.value)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_a_part_of_a_larger_module_can_be_loaded_alone() -> None:
    model = torch.nn.Sequential(small_network(), torch.nn.Linear(32, 2))
    head = torch.nn.Linear(32, 2)
    model.load_state_dict({"1.weight": head.weight, "1.bias": head.bias}, strict=False)
    assert torch.equal(model[1].weight, head.weight)


def test_numbers_of_numpy_are_numbers() -> None:
    network = small_network(
        features=np.int64(32), depth=np.int64(3), seed=np.int64(0), basis_size=np.int32(3), tau_empty=np.float32(0.2)
    )
    network.load_state_dict(small_network().state_dict())


def test_what_is_first_seen_in_inference_mode_can_be_trained_on() -> None:
    network = small_network()
    with torch.inference_mode():
        network(some_images())
        network.add_units([UnitSpec(4, 3, 1, 1)])
    train(network, steps=5)


def test_autocast_leaves_the_network_its_precision() -> None:
    networks = [small_network(), small_network()]
    plain = networks[0](some_images())
    with torch.autocast("cpu", torch.bfloat16):
        cast = networks[1](some_images())
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(plain, cast, strict=True))


def test_a_state_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match="not the state of a HashRoutedNetwork"):
        small_network().load_state_dict(torch.nn.Linear(2, 2).state_dict())
