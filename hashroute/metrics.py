"""What follows from an accuracy matrix: a row after each task, a column for each, None for what is not yet learned."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

Matrix = Sequence[Sequence[float | None]]


def right_after(matrix: Matrix) -> list[float]:
    """Each task's accuracy right after it was learned."""
    return [_known(row[task]) for task, row in enumerate(matrix)]


def at_the_end(matrix: Matrix) -> list[float]:
    """Each task's accuracy after the last."""
    return [_known(value) for value in matrix[-1]]


def final(matrix: Matrix) -> float:
    """Mean accuracy after the last task."""
    return fmean(at_the_end(matrix))


def best_ever(matrix: Matrix) -> list[float]:
    """The highest accuracy that each task ever had."""
    return [max(_known(row[task]) for row in matrix[task:]) for task in range(len(matrix))]


def forgetting(matrix: Matrix) -> float:
    """Best-ever less final accuracy, mean over all tasks but the last; 0 for a single task."""
    lost = [best - last for best, last in zip(best_ever(matrix), at_the_end(matrix), strict=True)]
    return fmean(lost[:-1]) if len(lost) > 1 else 0.0


def backward_transfer(matrix: Matrix) -> float:
    """Final accuracy less that right after learning, mean over all tasks but the last: what later tasks gave."""
    gained = [last - first for first, last in zip(right_after(matrix), at_the_end(matrix), strict=True)]
    return fmean(gained[:-1]) if len(gained) > 1 else 0.0


def intransigence(matrix: Matrix, separate: Matrix) -> float:
    """What separate networks reach right after learning, less what this one does, mean over all tasks."""
    return fmean(right_after(separate)) - fmean(right_after(matrix))


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError(
            "the accuracy matrix has a gap: every task needs an accuracy from the moment it was learned on"
        )
    return value
