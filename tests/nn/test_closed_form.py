"""The head in closed form: exact in any order, equal to the solution on all data at once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.covariance import oas
from torch import Tensor

from hashroute.nn.closed_form import ClosedForm
from hashroute.nn.patches import LEVELS, PatchFeatures


def some_data(n: int, features: int, classes: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randint(LEVELS + 1, (n, features), generator=generator).float(),
        torch.randint(classes, (n,), generator=generator),
    )


def sums_of(features: Tensor, labels: Tensor) -> ClosedForm:
    sums = ClosedForm(features.shape[1])
    sums.add(features, labels)
    return sums


def equal(one: ClosedForm, other: ClosedForm) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))


@given(st.integers(0, 10**6), st.lists(st.integers(1, 60), min_size=1, max_size=5), st.randoms(use_true_random=False))
@settings(max_examples=30, deadline=None)
def test_any_order_of_parts_gives_the_same_sums_and_the_same_head(seed: int, sizes: list[int], random: object) -> None:
    features, labels = some_data(sum(sizes), 12, 4, seed)
    labels[0] = 3  # all classes have a column from the beginning
    whole = sums_of(features, labels)
    parts = list(zip(features.split(sizes), labels.split(sizes), strict=True))
    random.shuffle(parts)  # type: ignore[attr-defined]
    together = ClosedForm(12)
    for part in parts:
        together.add(*part)
    assert equal(whole, together)
    assert torch.equal(whole.solve(0.1).weight, together.solve(0.1).weight)


@pytest.mark.parametrize("count", [30, 500, 5000])
def test_the_sums_ask_for_a_penalty(count: int) -> None:
    features, labels = some_data(count, 20, 3, 0)
    features = features * torch.linspace(0.1, 1, 20)
    features = features.round()
    data = features.double()
    within = data - torch.stack([data[labels == each].mean(0) for each in range(3)])[labels]
    _, share = oas(within.numpy(), assume_centered=True)
    expected = share / (1 - share) * within.square().mean() / data.var(0, correction=0).mean()
    assert sums_of(features, labels).shrinkage() == pytest.approx(expected.item(), rel=1e-6)


def test_scores_are_log_densities_of_gaussians_with_one_covariance() -> None:
    features, labels = some_data(500, 20, 3, 0)
    features[labels == 1] -= features[labels == 1] % 3  # this class has another mean
    scores = sums_of(features, labels).solve(0.05)(features)
    data = features.double()
    means = torch.stack([data[labels == each].mean(0) for each in range(3)])
    within = data - means[labels]
    penalty = 0.05 * data.var(0, correction=0).mean() * torch.eye(20, dtype=torch.float64)
    gaussians = torch.distributions.MultivariateNormal(means, within.T @ within / 500 + penalty)
    expected = gaussians.log_prob(data[:, None]) * 500 / 520
    ours = scores.double() - scores.double().mean(1, keepdim=True)
    assert torch.allclose(ours, expected - expected.mean(1, keepdim=True), atol=1e-4)


def test_a_rare_class_is_found_as_often_as_a_frequent_one() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(4200) < 200).long()
    features = (60 + 10 * labels[:, None] + 12 * torch.randn(4200, 8, generator=generator)).round().clamp(0, LEVELS)
    right = sums_of(features, labels).solve(1e-3)(features).argmax(1) == labels
    rare, frequent = right[labels == 1].double().mean(), right[labels == 0].double().mean()
    assert rare > 0.85
    assert abs(rare - frequent) < 0.05


def test_a_class_without_images_never_answers() -> None:
    sums = sums_of(*some_data(100, 6, 2, 0))
    sums.reserve(4)
    scores = sums.solve(0.1)(some_data(100, 6, 2, 1)[0])
    assert scores.isfinite().all()
    assert scores.argmax(1).max() < 2


def test_subtracting_a_task_leaves_no_trace() -> None:
    first, second = some_data(300, 10, 2, 1), some_data(200, 10, 4, 2)
    both = sums_of(*first)
    both.reserve(4)
    before = [buffer.clone() for buffer in both.buffers()]
    both.add(*second)
    both.add(*second, sign=-1)
    assert all(torch.equal(a, b) for a, b in zip(before, both.buffers(), strict=True))
    own = sums_of(*second)
    both.merge(own, torch.arange(own.classes))
    both.merge(own, torch.arange(own.classes), sign=-1)
    assert all(torch.equal(a, b) for a, b in zip(before, both.buffers(), strict=True))


def test_sums_that_outgrow_32_bits_stay_exact() -> None:
    features = torch.full((2000, 3), float(LEVELS))
    sums = ClosedForm(3)
    for _ in range(80):
        sums.add(features, torch.zeros(2000, dtype=torch.int64))
    assert sums.gram.dtype == torch.int64
    assert sums.gram.tolist() == [160_000 * LEVELS**2] * 6


def test_state_comes_back() -> None:
    sums = sums_of(*some_data(50, 6, 3, 0))
    other = ClosedForm(6)
    other.load_state_dict(sums.state_dict())
    assert equal(sums, other)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (4, 20, 48)])
def test_features_are_small_whole_numbers_and_always_the_same(shape: tuple[int, int, int]) -> None:
    images = torch.randint(256, (20, *shape), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    patches = PatchFeatures(shape, 64)
    features = patches(images, whole=True)
    assert torch.equal(state, torch.get_rng_state()), "features draw nothing from the global generator"
    assert features.shape == (20, 64)
    assert torch.equal(features, features.round())
    assert 0 <= features.min() <= features.max() <= LEVELS
    assert torch.equal(features, PatchFeatures(shape, 64)(images, whole=True))
    assert not torch.equal(features, PatchFeatures(shape, 64, seed=1)(images, whole=True))
    torch.testing.assert_close(patches(images), patches(images.float() / 255), rtol=0, atol=1e-2)
    assert (features - patches(images)).abs().max() <= 0.5


def test_mirrored_images_have_the_same_averaged_features() -> None:
    images = torch.randint(256, (10, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    patches = PatchFeatures((3, 32, 32), 64)
    assert (patches(images, mirror=True) - patches(images.flip(3), mirror=True)).abs().max() <= 0.1
    assert (patches(images) - patches(images.flip(3))).abs().max() > 1


def test_flat_images_have_features() -> None:
    features = PatchFeatures((1, 16, 16), 64)(torch.zeros(2, 1, 16, 16, dtype=torch.uint8))
    assert torch.isfinite(features).all()


def test_sums_that_no_images_have_are_one_line() -> None:
    sums = ClosedForm(8)
    sums.add(torch.arange(64.0).view(8, 8), torch.arange(8) % 2)
    sums.gram[0] = -1_000_000  # the first square
    with pytest.raises(ValueError, match="the sums of the shared head are damaged: no images have such sums"):
        sums.solve(0.1)
