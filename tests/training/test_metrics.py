"""Metrics of an accuracy matrix, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hashroute.training import metrics

MATRIX = [[90.0, None, None], [95.0, 80.0, None], [85.0, 70.0, 60.0]]


def test_by_hand() -> None:
    assert metrics.right_after(MATRIX) == [90, 80, 60]
    assert metrics.at_the_end(MATRIX) == [85, 70, 60]
    assert metrics.best_ever(MATRIX) == [95, 80, 60]
    assert metrics.final(MATRIX) == pytest.approx(215 / 3)
    assert metrics.forgetting(MATRIX) == pytest.approx((10 + 10) / 2)
    assert metrics.backward_transfer(MATRIX) == pytest.approx((-5 - 10) / 2)
    separate = [[92.0, None, None], [92.0, 85.0, None], [92.0, 85.0, 63.0]]
    assert metrics.intransigence(MATRIX, separate) == pytest.approx((240 - 230) / 3)


def test_one_task_forgets_nothing() -> None:
    assert metrics.final([[70.0]]) == 70
    assert metrics.forgetting([[70.0]]) == metrics.backward_transfer([[70.0]]) == 0


def test_a_gap_is_an_error() -> None:
    with pytest.raises(ValueError, match="the accuracy matrix has a gap"):
        metrics.forgetting([[90.0, None], [None, 80.0]])


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_answers_are_packed_and_unpacked(right: list[bool]) -> None:
    assert metrics.unpack(metrics.pack(np.array(right))).tolist() == right


def test_an_interval_is_that_of_images_drawn_one_by_one() -> None:
    generator = np.random.default_rng(0)
    theirs = generator.random((2, 2, 400)) < 0.6  # seeds, tasks, images
    ours = theirs ^ (generator.random(theirs.shape) < np.where(theirs, 0.05, 0.25))
    mean, low, high = metrics.ahead(
        *([[metrics.pack(task) for task in seed] for seed in who] for who in (ours, theirs))
    )
    assert mean == pytest.approx(100 * (ours.mean() - theirs.mean()))
    means = []
    for _ in range(2000):
        seeds = generator.integers(2, size=2)
        images = generator.integers(400, size=(2, 400))
        better = (ours.astype(int) - theirs)[seeds]
        means.append(100 * np.mean([better[:, task, images[task]].mean() for task in range(2)]))
    assert (low, high) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=0.4)
    assert 0 < low < mean < high


def test_nobody_is_ahead_of_himself() -> None:
    same = [[metrics.pack(np.array([True, False, True]))]]
    assert metrics.ahead(same, same) == (0, 0, 0)
