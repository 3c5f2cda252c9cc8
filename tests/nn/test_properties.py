"""What must hold for any settings and any data."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hashroute import HashRoutedNetwork
from hashroute.nn.bases import Bases
from support import SMALL_UNITS, small_network, some_images, train

PROFILE = settings(max_examples=25, deadline=None)

thresholds = st.floats(0, 1)
network_settings = st.fixed_dictionaries(
    {
        "units": st.integers(4, 8).map(lambda count: (SMALL_UNITS * 2)[:count]),
        "features": st.integers(8, 64),  # more than a basis can span: else projections tie at 1
        "depth": st.integers(2, 4),
        "basis_size": st.integers(1, 6),
        "tau_depth": thresholds,
        "tau_empty": thresholds,
        "tau_expand": thresholds,
        "max_age": st.floats(1, 30),
        "aging_rate": st.floats(1.001, 10),
        "last_residue": st.booleans(),
        "seed": st.integers(0, 2**63),
    }
)


@st.composite
def batches(draw: st.DrawFn) -> list[Tensor]:
    """Hash vectors as they come in practice and as they should not: repeated, opposite, nearly equal."""
    features = draw(st.integers(1, 24))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    spread = draw(st.sampled_from([0.0, 1e-7, 1e-4, 0.1, 10.0]))
    centres = torch.randn(draw(st.integers(1, 6)), features, generator=generator)
    result = []
    for _ in range(draw(st.integers(1, 6))):
        n = draw(st.integers(1, 40))
        which = torch.randint(len(centres), (n,), generator=generator)
        signs = torch.randint(2, (n, 1), generator=generator) * 2 - 1
        vectors = signs * centres[which] + spread * torch.randn(n, features, generator=generator)
        result.append(torch.nn.functional.normalize(vectors, dim=1))
    return result


def assert_orthonormal(bases: Bases) -> None:
    assert (bases.ranks <= bases.size).all()
    used = torch.arange(bases.size) < bases.ranks[:, None]
    torch.testing.assert_close(bases.vectors @ bases.vectors.mT, torch.diag_embed(used.float()), rtol=0, atol=1e-5)


@PROFILE
@given(batches(), st.integers(1, 5), st.integers(1, 8), thresholds, thresholds, st.floats(1, 8), st.floats(1.01, 3))
def test_bases_stay_orthonormal_and_ranks_bounded(
    sequence: list[Tensor], units: int, size: int, tau_empty: float, tau_expand: float, max_age: float, rate: float
) -> None:
    bases = Bases(
        units,
        size,
        sequence[0].shape[1],
        tau_empty=tau_empty,
        tau_expand=tau_expand,
        max_age=max_age,
        aging_rate=rate,
        seed=0,
    )
    for hashed in sequence:
        bases.select(hashed, None, evolve=True)
        assert_orthonormal(bases)
    assert int(bases.usage.sum()) == sum(len(hashed) for hashed in sequence)


@PROFILE
@given(network_settings, st.integers(0, 100))
def test_a_trained_network(chosen: dict[str, Any], seed: int) -> None:
    network = small_network(**chosen)
    for step in range(6):
        routing = network(some_images(12, seed + step))
        assert_orthonormal(network.bases)
    for path in routing.paths.tolist():
        visited = [unit for unit in path if unit >= 0]
        assert len(set(visited)) == len(visited)  # no unit twice
        assert path == visited + [-1] * (len(path) - len(visited))  # nothing after a stop
    assert (routing.residue_l2 <= 1 + 1e-5).all()
    assert (routing.residue_l1[routing.paths < 0] == 0).all()


@PROFILE
@given(network_settings, st.integers(0, 100))
def test_in_eval_a_batch_is_its_samples_in_any_order(chosen: dict[str, Any], seed: int) -> None:
    network = small_network(**chosen).double()
    network(some_images(20, seed).double())
    network.eval()
    images = some_images(9, seed + 1).double()
    whole = network(images)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(seed))
    for other in (
        network(images[order]),
        [torch.cat(parts) for parts in zip(*map(network, images[order].split(1)), strict=True)],
    ):
        for ours, theirs in zip(whole, other, strict=True):
            torch.testing.assert_close(ours[order], theirs, rtol=0, atol=1e-10)


@PROFILE
@given(batches())
def test_residue_is_orthogonal_to_the_chosen_basis(sequence: list[Tensor]) -> None:
    bases = Bases(3, 4, sequence[0].shape[1], tau_empty=0.5, tau_expand=0.7, max_age=3, aging_rate=1.3, seed=0)
    for hashed in sequence:
        selection = bases.select(hashed, None, evolve=True)
        residues, sizes = selection.residues(hashed)
        torch.testing.assert_close(residues.norm(dim=1), sizes)
        along = torch.bmm(selection.bases[selection.basis], residues[:, :, None])
        torch.testing.assert_close(along, torch.zeros_like(along), rtol=0, atol=1e-5)


@PROFILE
@given(st.integers(0, 1000), st.floats(1e-15, 1e15))
def test_scale_changes_neither_the_first_hash_nor_the_first_unit(seed: int, factor: float) -> None:
    network = small_network()
    network(some_images(30))
    network.eval()
    images = some_images(8, seed)
    one, other = (network.image_hash.normalised(batch) for batch in (images, images * factor))
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)
    assert torch.equal(network(images).paths[:, 0], network(images * factor).paths[:, 0])


@PROFILE
@given(st.integers(1, 60), st.integers(1, 500), st.integers(0, 1000))
def test_hash_vectors_have_norm_one_or_zero(features: int, length: int, seed: int) -> None:
    network = HashRoutedNetwork((1, 1, length), features=features)
    maps = torch.randn(12, 1, 1, length, generator=torch.Generator().manual_seed(seed))
    maps[::3] = 0
    norms = network.image_hash.normalised(maps).norm(dim=1)
    assert (norms[::3] == 0).all()
    assert ((norms - 1).abs().lt(1e-5) | (norms == 0)).all()
    assert features < 10 or (norms[1::3] > 0).all()


@pytest.mark.parametrize("rank_two", [False, True])
def test_ties_go_to_the_lowest_index(rank_two: bool) -> None:
    bases = Bases(3, 2, 4, tau_empty=0.0, tau_expand=0.0, max_age=100, aging_rate=2, seed=0)
    bases.vectors[:, 0] = torch.tensor([1.0, 0, 0, 0])
    bases.vectors[:, 1] = torch.tensor([0.0, 1, 0, 0]) * rank_two
    bases.ranks[:] = 1 + rank_two
    vector = torch.tensor([[0.6, 0.6, 0.0, 0.53]])
    assert bases.select(vector, None, evolve=True).units.tolist() == [0]
    assert bases.counters[0].tolist() == [1, 0]
    used = torch.tensor([[True, False, False]])
    assert bases.select(vector, used, evolve=True).units.tolist() == [1]


def test_what_is_left_of_a_known_vector_is_nothing_at_all() -> None:
    """Rounding noise has no direction, so it must not steer the residue penalty's gradient."""
    bases = Bases(1, 2, 300, tau_empty=0.0, tau_expand=0.0, max_age=100, aging_rate=2, seed=0)
    vector = torch.nn.functional.normalize(torch.randn(1, 300), dim=1).requires_grad_()
    for _ in range(2):  # the first initialises the unit
        residues, sizes = bases.select(vector.detach(), None, evolve=True).residues(vector)
        assert not residues.any()
        assert not sizes.any()
        (gradient,) = torch.autograd.grad(residues.abs().sum(), vector)
        assert not gradient.any()


@pytest.mark.parametrize(("dtype", "value"), [(torch.float16, 4000.0), (torch.float16, 6e4), (torch.float32, 3e38)])
def test_large_values_do_not_overflow_the_hash(dtype: torch.dtype, value: float) -> None:
    phi = HashRoutedNetwork((1, 28, 28), features=32).image_hash
    maps = torch.rand(4, 784).clamp_min(0.5)
    hashed = phi.normalised((maps * value).to(dtype)).float()
    torch.testing.assert_close(hashed, phi.normalised(maps), rtol=0, atol=1e-2 if dtype == torch.float16 else 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_sample_that_initialises_a_unit_stops_there_in_any_precision(dtype: torch.dtype) -> None:
    network = small_network().to(dtype)
    routing = network(some_images(1).to(dtype))
    assert (routing.paths[0] >= 0).tolist() == [True, False, False]
    assert not routing.features.any()


def test_a_vector_inside_the_others_replaces_nothing() -> None:
    bases = Bases(1, 2, 3, tau_empty=0.0, tau_expand=0.0, max_age=1, aging_rate=2, seed=0)
    bases.vectors[0] = torch.eye(3)[:2]
    bases.ranks[0] = 2
    bases.counters[0] = torch.tensor([0, 5])
    bases.ages[0] = 1
    bases.select(torch.tensor([[1.0, 0, 0]]), None, evolve=True)
    assert torch.equal(bases.vectors[0], torch.eye(3)[:2])
    assert (bases.ages.item(), bases.limits.item(), bases.counters.tolist()) == (0, 2, [[0, 0]])


def test_training_lowers_the_loss() -> None:
    losses = train(small_network(), steps=120)
    assert sum(losses[-20:]) < 0.7 * sum(losses[:20])
