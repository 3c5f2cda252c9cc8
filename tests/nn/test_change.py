"""A change of data is noticed soon, slow ones too, and nothing is noticed while the data stays the same."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hashroute.nn.change import ChangeDetector

FEATURES, RECENT = 60, 80
OLD, NEW = torch.zeros(FEATURES), torch.linspace(-1, 1, FEATURES)
APART = NEW.square().sum().item() / 2
"""The divergence of the new data from the old one, in nats."""


def samples(means: Tensor, seed: int = 0) -> Tensor:
    """A sample around each mean: (n, features)."""
    return means + torch.randn(means.shape, generator=torch.Generator().manual_seed(seed))


def noticed(stream: Tensor, limit: float = APART / 2) -> list[int]:
    """How many images had come at each change that is noticed."""
    detector = ChangeDetector(FEATURES, 3, limit, RECENT)
    looks = enumerate(stream.split(detector.step), 1)
    return [place * detector.step for place, some in looks if detector.look(some)]


@pytest.mark.parametrize("length", [200, 1000])
def test_each_change_is_noticed_once_and_soon(length: int) -> None:
    means = torch.stack([OLD, NEW, OLD]).repeat_interleave(length, 0)
    first, second = noticed(samples(means))
    assert length < first <= length + RECENT
    assert 2 * length < second <= 2 * length + RECENT


def test_data_that_stays_the_same_is_never_taken_for_new() -> None:
    assert noticed(samples(OLD.expand(8000, -1))) == []


def test_a_slow_change_is_noticed() -> None:
    share = torch.linspace(0, 1, 4000)[:, None]
    places = noticed(samples(OLD + share * (NEW - OLD)))
    assert len(places) == 1
    assert 2000 < places[0] < 4000, "half of the divergence is reached at 71 % of the way"


def test_it_keeps_a_bounded_number_of_hash_vectors() -> None:
    detector = ChangeDetector(FEATURES, 3, APART, RECENT)
    for some in samples(OLD.expand(2000, -1)).split(detector.step):
        detector.look(some)
    assert len(detector.first) + len(detector.recent) == 5 * RECENT
    assert detector.recent.untyped_storage().nbytes() <= 4 * FEATURES * 2 * RECENT
