"""Metrics of an accuracy matrix, by hand."""

import pytest

from hashroute import metrics

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
