"""Features that a stream without labels sharpens."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hashroute.nn.stream_features import MOST_WINDOWS, WINDOW, StreamFeatures
from support import digits


def images() -> Tensor:
    return torch.cat([task.train.images for task in digits().tasks])


def small(window: int = 40) -> StreamFeatures:
    return StreamFeatures((1, 8, 8), 64, window=window)


def mixed_up() -> Tensor:
    whole = images()
    return whole[torch.randperm(len(whole), generator=torch.Generator().manual_seed(0))]


def test_a_stream_that_changes_has_slow_directions_and_a_mixed_one_has_none() -> None:
    changing, mixed = small(), small()
    changing.observe(images())
    mixed.observe(mixed_up())
    assert torch.equal(changing.sums.gram, mixed.sums.gram)
    assert changing.directions().slow.shape[1] >= 1
    assert mixed.directions().slow.shape[1] == 0
    first, later = (
        changing(task.test.images)[:, changing.directions().principal.shape[1] :] for task in digits().tasks
    )
    between = (first.mean(0) - later.mean(0)).norm()
    assert between > 2 * torch.maximum(first.std(0).norm(), later.std(0).norm())


def test_both_parts_weigh_the_same() -> None:
    features = small()
    features.observe(images())
    principal, slow = features(images()).split(features.directions().principal.shape[1], 1)[:2]
    assert principal.norm(dim=1).allclose(torch.ones(1))
    assert slow.square().sum(1).mean().item() == pytest.approx(1, abs=0.05)


def test_how_a_stream_is_cut_into_batches_does_not_matter() -> None:
    one, several = small(), small()
    one.observe(images())
    for part in images().split(33):
        several.observe(part)
    for ours, theirs in zip(one.state_dict().values(), several.state_dict().values(), strict=True):
        assert torch.equal(ours, theirs)
    assert torch.equal(one(images()[:5]), several(images()[:5]))


def test_windows_grow_so_that_their_number_is_bounded() -> None:
    features = small(window=1)
    features.observe(images())
    assert int(features.window) == 4
    assert MOST_WINDOWS / 2 < features.sums.classes <= MOST_WINDOWS
    assert features.seen == len(images())
    assert features.sums.counts[:-1].eq(int(features.window)).all()
    assert features.sums.sums.sum(0).equal(features.fixed(images(), whole=True).sum(0).int())


def test_a_saved_stream_goes_on() -> None:
    one, again = small(), StreamFeatures((1, 8, 8), 64, seed=1)
    one.observe(images()[:100])
    assert one(images()[:3]).isfinite().all()
    again.load_state_dict(one.state_dict())
    for features in (one, again):
        features.observe(images()[100:])
    assert torch.equal(one(images()), again(images()))


def test_the_first_images_come_first() -> None:
    features = StreamFeatures((1, 8, 8), 64)
    assert int(features.window) == WINDOW
    with pytest.raises(ValueError, match=r"has seen 0 images: call observe\(images\) first"):
        features(images()[:2])
