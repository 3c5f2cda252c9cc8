"""Gaussian memories: the likelihood of hash vectors, the divergence of batches, and the edges that are hashed."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence
from torch.nn.functional import normalize

from hashroute.nn.gaussian import IMAGES_A_DIRECTION, GaussianMemories, edges, texture
from hashroute.nn.hashing import FeatureHash


@settings(max_examples=25, deadline=None)
@given(st.integers(5, 30), st.integers(1, 4), st.integers(8, 130), st.integers(0, 2**16))
def test_a_memory_equals_a_direct_computation_in_float64(size: int, room: int, seen: int, seed: int) -> None:
    count = min(room, seen // IMAGES_A_DIRECTION)
    generator = torch.Generator().manual_seed(seed)

    def some(n: int) -> Tensor:
        spread = torch.linspace(0.2, 2, size, dtype=torch.float64)
        return torch.randn(n, size, generator=generator, dtype=torch.float64) * spread

    memories = GaussianMemories(size, room).double()
    data, others = [some(seen) + shift for shift in (0.0, 0.5)], some(7)
    for part in data:
        memories.write(part, part)
    found = memories.log_likelihood(others)
    for path, part in enumerate(data):
        mean = part.mean(0)
        values, vectors = torch.linalg.eigh(torch.cov(part.T))
        values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
        rest = max(values[count:].sum().item() / (size - count), 1e-10)
        kept = vectors[:, :count]
        variances = values[:count].clamp_min(rest)
        covariance = kept @ torch.diag(variances) @ kept.T + rest * (torch.eye(size) - kept @ kept.T)
        gaussian = MultivariateNormal(mean, covariance)
        torch.testing.assert_close(found[:, path], gaussian.log_prob(others), rtol=1e-6, atol=1e-4)


def test_data_that_hardly_varies_is_scored_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    usual = torch.randn(3, 1, 1000, generator=generator)

    def some(kind: int, n: int = 400) -> Tensor:  # as from cameras that do not move
        moved = usual[kind] + 1e-3 * torch.randn(n, 1000, generator=generator)
        return normalize(moved)

    memories, exact = GaussianMemories(1000, 16), GaussianMemories(1000, 16).double()
    for kind in range(3):
        seen, held_out = some(kind), some(kind, 100)
        memories.write(seen, held_out)
        exact.write(seen.double(), held_out.double())
    others = some(1, 200)
    found, expected = memories.log_likelihood(others)[:, 1], exact.log_likelihood(others.double())[:, 1]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.1)
    torch.testing.assert_close(memories.usual.double(), exact.usual, rtol=0, atol=0.1)
    far = memories.divergence(others)
    torch.testing.assert_close(far[1].double(), exact.divergence(others.double())[1], rtol=0, atol=0.1)
    assert far[1] < 20 < min(far[0], far[2])


def test_own_data_is_familiar_and_other_data_is_not() -> None:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(2, 5, 40, generator=generator)

    def some(kind: int, n: int = 400) -> Tensor:
        noise = 0.1 * torch.randn(n, 40, generator=generator)
        return normalize(torch.randn(n, 5, generator=generator) @ directions[kind] + noise)

    memories = GaussianMemories(40, 8)
    for kind in (0, 1):
        memories.write(some(kind), some(kind, 200))
    for kind in (0, 1):
        known = ((memories.log_likelihood(some(kind)) - memories.usual[:, 0]) / memories.usual[:, 1]).mean(0)
        assert abs(known[kind]) < 0.3
        assert known[1 - kind] < -3


@settings(max_examples=25, deadline=None)
@given(st.integers(5, 30), st.integers(1, 4), st.integers(20, 130), st.integers(0, 2**16))
def test_a_divergence_equals_that_of_two_gaussians(size: int, room: int, seen: int, seed: int) -> None:
    count = min(room, seen // IMAGES_A_DIRECTION)
    generator = torch.Generator().manual_seed(seed)
    spread = torch.linspace(0.2, 2, size, dtype=torch.float64)
    data, batch = (torch.randn(seen, size, generator=generator, dtype=torch.float64) * spread for _ in range(2))
    batch = 0.7 * batch + 0.3
    memories = GaussianMemories(size, room).double()
    memories.write(data, data)
    assert not memories.directions[0, count:].any()
    kept = memories.directions[0, :count]
    outside = torch.eye(size) - kept.T @ kept

    def gaussian(mean: Tensor, along: Tensor, rest: Tensor) -> MultivariateNormal:
        return MultivariateNormal(mean, kept.T @ torch.diag(along) @ kept + rest * outside)

    remembered = gaussian(memories.means[0], memories.variances[0, :count], memories.rests[0])
    across = (outside @ torch.cov(batch.T)).trace()
    along = (batch @ kept.T).var(0) if count else batch.new_zeros(0)
    found = gaussian(batch.mean(0), along, across / (size - count))
    expected = kl_divergence(found, remembered) - 0.5 * across / seen / memories.rests[0]
    torch.testing.assert_close(memories.divergence(batch)[0], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("few", [50, 100, 200])
def test_a_memory_of_few_samples_knows_more_of_the_same_data(few: int) -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.arange(1, 401).float().rsqrt()  # no two directions alike, none that stands out
    data = normalize(torch.randn(2 * few, 400, generator=generator) * spread)
    other = normalize(torch.randn(few, 400, generator=generator) * spread.flip(0))
    memories = GaussianMemories(400, 24)
    memories.write(data[:few], data[:few])
    limit = 0.02 * 400  # the option `recognised` of hrn
    assert memories.divergence(data[few:]) < limit
    assert memories.divergence(other) > 2 * limit


@pytest.mark.parametrize("few", [1, 2, 24])
def test_a_memory_of_a_few_samples_tells_more_of_the_same_data_from_other_data(few: int) -> None:
    generator = torch.Generator().manual_seed(0)
    same, other = torch.randn(2, 60, generator=generator) * 2
    data = normalize(same + torch.randn(few + 200, 60, generator=generator))
    memories = GaussianMemories(60, 4)
    memories.write(data[:few], data[:2])
    memories.write(normalize(other + torch.randn(200, 60, generator=generator)), data[:2])
    assert (memories.log_likelihood(data[few:]).argmax(1) == 0).double().mean() > 0.95
    assert memories.usual[0, 1] >= 30**0.5


def test_data_that_never_varies_is_not_far_from_itself() -> None:
    memories, same = GaussianMemories(20, 6), torch.ones(5, 20) / math.sqrt(20)
    memories.write(same, same)
    assert memories.divergence(same) < 1
    assert memories.divergence(-same) > 1000


def test_data_that_is_too_likely_is_other_data() -> None:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(1200, 40, generator=generator)
    memories = GaussianMemories(40, 8)
    memories.write(data[:800], data[800:1000])
    own, calm = data[1000:], 0.3 * data[1000:]
    assert memories.log_likelihood(calm).mean() > memories.log_likelihood(own).mean()
    assert memories.divergence(own) < 2
    assert memories.divergence(calm) > 10


def test_edges_know_nothing_of_brightness_and_contrast_only_as_a_factor() -> None:
    images = torch.rand(3, 2, 16, 16)
    seen = edges(images)
    assert seen.shape == (3, 12, 8, 8)
    torch.testing.assert_close(edges(4 * images + 1), 2 * seen, rtol=1e-3, atol=1e-3)
    ramp = torch.arange(16.0).expand(1, 1, 16, 16)
    assert edges(ramp)[0].mean((1, 2)).tolist() == pytest.approx([1, 0, 0, 0, 0, 0])
    bowl = ramp.mT.square()  # steeper and steeper down, with a curvature of 2
    right, left, down, up, across, bent = edges(bowl)[0].mean((1, 2)).tolist()
    assert (right, left, up, across) == (0, 0, 0, 0)
    assert down > 1
    assert bent == pytest.approx(2**0.5)


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_edges_take_channels_apart(channels: int) -> None:
    """What is the same in all channels is in the first part alone, and what is taken apart is still all there."""
    grey = torch.rand(4, 1, 16, 16).expand(4, channels, 16, 16)
    seen = edges(grey).view(4, 6, channels, 8, 8)
    torch.testing.assert_close(seen[:, :, 0], edges(channels**0.5 * grey[:, :1]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(seen[:, :, 1:], torch.zeros_like(seen[:, :, 1:]), rtol=0, atol=2e-3)
    slopes = torch.randn(channels, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    ramps = slopes.view(1, -1, 1, 1) * torch.arange(16)
    right, left = edges(ramps.expand(1, channels, 16, 16)).view(6, channels, 8, 8).square().mean((2, 3))[:2]
    torch.testing.assert_close((right - left).norm(), slopes.norm())


def test_a_memory_of_few_or_equal_samples_is_still_one() -> None:
    memories = GaussianMemories(20, 6)
    memories.write(torch.randn(3, 20), torch.randn(1, 20))
    memories.write(torch.ones(5, 20) / math.sqrt(20), torch.ones(5, 20) / math.sqrt(20))
    assert memories.log_likelihood(torch.randn(4, 20)).isfinite().all()
    assert memories.divergence(torch.randn(4, 20)).isfinite().all()
    assert memories.usual.isfinite().all()
    with pytest.raises(ValueError, match="fewer than features=6"):
        GaussianMemories(6, 6)


def test_what_is_smoother_or_rougher_than_known_images_is_strange() -> None:
    generator = torch.Generator().manual_seed(0)
    blurred = torch.nn.functional.avg_pool2d(torch.rand(800, 1, 24, 24, generator=generator) * 255, 9, 1, 4)
    images = {
        "known": blurred[:700],
        "like these": blurred[700:],
        "constant": torch.full((100, 1, 24, 24), 90.0),
        "noise": torch.rand(100, 1, 24, 24, generator=generator) * 255,
    }
    function = FeatureHash(200, 0)
    found = {name: (function.normalised(edges(each)), texture(edges(each))) for name, each in images.items()}
    memories = GaussianMemories(200, 8)
    hashed, textures = found["known"]
    memories.write(hashed[:500], hashed[500:], textures[500:])
    strange = {
        name: (memories.strangeness(*each) > memories.limits)[:, 0].double().mean() for name, each in found.items()
    }
    assert strange["like these"] <= 0.05
    assert strange["constant"] == 1
    assert strange["noise"] == 1


def strips(count: int, generator: torch.Generator) -> Tensor:
    """Blurred colours that change across more than down."""
    noise = torch.rand(count, 3, 32, 26, generator=generator) * 255
    return torch.nn.functional.avg_pool2d(noise, (9, 3), 1)


@pytest.mark.parametrize("change", ["grey", "turned"])
def test_images_without_the_usual_colour_or_direction_are_strange(change: str) -> None:
    generator = torch.Generator().manual_seed(0)
    known = strips(900, generator)
    other = known[600:].mean(1, keepdim=True).expand(-1, 3, -1, -1) if change == "grey" else known[600:].mT
    textures, strange = texture(edges(known)), texture(edges(other))
    place = {"grey": 2, "turned": 3}[change]
    low, high = textures[:, place].aminmax()
    assert ((strange[:, place] < low) | (strange[:, place] > high)).double().mean() > 0.95
    same = torch.arange(4) != place
    if change == "turned":
        torch.testing.assert_close(strange[:, same], textures[600:][:, same])
    function, memories = FeatureHash(200, 0), GaussianMemories(200, 8)
    hashed = function.normalised(edges(known))
    memories.write(hashed[:400], hashed[400:600], textures[400:600])
    found = memories.strangeness(hashed[600:], textures[600:]), memories.strangeness(hashed[600:], strange)
    usual, unusual = ((each > memories.limits).double().mean() for each in found)
    assert usual < 0.05
    assert unusual > 0.9, "hash vectors are the same, so this is the texture alone"


def test_the_colour_of_images_of_one_channel_says_nothing() -> None:
    assert (texture(edges(torch.rand(5, 1, 12, 12) * 255))[:, 2] == 0).all()


def test_memories_with_the_ranges_of_four_numbers_are_loaded() -> None:
    generator = torch.Generator().manual_seed(0)
    memories, old = GaussianMemories(20, 2), GaussianMemories(20, 2)
    hashed, textures = torch.randn(90, 20, generator=generator), torch.randn(30, 4, generator=generator)
    memories.write(hashed[:60], hashed[60:], textures)
    state = memories.state_dict()
    old.reserve(1)
    old.load_state_dict({**state, "ranges": state["ranges"][:, :4]})
    strange = textures.clone()
    strange[:, 2:] = 1e6
    assert torch.equal(old.strangeness(hashed[60:], textures), old.strangeness(hashed[60:], strange))
    assert (memories.strangeness(hashed[60:], strange) > memories.limits).all()
    strange[:, 1] = 1e6
    assert (old.strangeness(hashed[60:], strange) > old.limits).all()


def test_memories_without_ranges_are_loaded() -> None:
    memories, old = GaussianMemories(20, 2), GaussianMemories(20, 2)
    memories.write(torch.randn(60, 20), torch.randn(30, 20))
    state = {name: value for name, value in memories.state_dict().items() if name not in ("ranges", "limits")}
    old.reserve(1)
    old.load_state_dict(state)
    assert old.limits.isinf().all()
    assert torch.equal(old.means, memories.means)


def test_tables_that_are_kept_follow_every_change() -> None:
    """Answers after a change, whatever it was, are those of memories that never answered before."""
    memories = GaussianMemories(20, 3)
    generator = torch.Generator().manual_seed(0)
    samples = [torch.randn(100, 20, generator=generator) + shift for shift in range(4)]
    asked = torch.randn(5, 20, generator=generator)

    def expected() -> torch.Tensor:
        fresh = GaussianMemories(20, 3)
        fresh.reserve(len(memories))
        fresh.to(memories.means.dtype).load_state_dict(memories.state_dict())
        return fresh.log_likelihood(asked)

    def change_in_place() -> None:
        memories.means[0] += 1

    def load() -> None:
        memories.load_state_dict({name: tensor + 1 for name, tensor in memories.state_dict().items()})

    changes = [lambda: memories.write(samples[0], samples[1]), lambda: memories.write(samples[2], samples[3])]
    for change in (*changes, change_in_place, load, memories.double):
        change()
        assert torch.equal(memories.log_likelihood(asked), expected())
        assert torch.equal(memories.log_likelihood(asked), expected()), "from the kept tables"
    other = copy.deepcopy(memories)
    for _ in range(9):
        other.means[0] += 1
        assert not torch.equal(other.log_likelihood(asked), expected())
    assert torch.equal(memories.log_likelihood(asked), expected())
