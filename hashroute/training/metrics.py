"""Measures of an accuracy matrix: a row after each task, a column for each task, None for tasks not yet learned."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

Matrix = Sequence[Sequence[float | None]]


def right_after(matrix: Matrix) -> list[float]:
    """The accuracy of each task right after it was learned."""
    return [_known(row[task]) for task, row in enumerate(matrix)]


def at_the_end(matrix: Matrix) -> list[float]:
    """The accuracy of each task after the last task."""
    return [_known(value) for value in matrix[-1]]


def final(matrix: Matrix) -> float:
    """Mean accuracy after the last task."""
    return fmean(at_the_end(matrix))


def best_ever(matrix: Matrix) -> list[float]:
    """The highest accuracy of each task at any time."""
    return [max(_known(row[task]) for row in matrix[task:]) for task in range(len(matrix))]


def forgetting(matrix: Matrix) -> float:
    """Best-ever less final accuracy, mean over all tasks but the last; 0 for a single task."""
    lost = [best - last for best, last in zip(best_ever(matrix), at_the_end(matrix), strict=True)]
    return fmean(lost[:-1]) if len(lost) > 1 else 0.0


def backward_transfer(matrix: Matrix) -> float:
    """Final accuracy less accuracy right after learning, mean over all tasks but the last."""
    gained = [last - first for first, last in zip(right_after(matrix), at_the_end(matrix), strict=True)]
    return fmean(gained[:-1]) if len(gained) > 1 else 0.0


def intransigence(matrix: Matrix, separate: Matrix) -> float:
    """Accuracy of separate networks right after learning, less that of this learner, mean over all tasks."""
    return fmean(right_after(separate)) - fmean(right_after(matrix))


def padded(rows: Sequence[Sequence[float]]) -> list[list[float | None]]:
    """A matrix of rows that end with the task that was learned last."""
    return [[*row, *[None] * (len(rows[-1]) - len(row))] for row in rows]


def pack(right: NDArray[np.bool_]) -> str:
    """Pack which answers are correct into text: the number of images, a colon, and bits in base 64."""
    return f"{len(right)}:{base64.b64encode(np.packbits(right).tobytes()).decode()}"


def unpack(text: str) -> NDArray[np.bool_]:
    """Unpack the text that `pack` gave."""
    count, _, bits = text.partition(":")
    return np.unpackbits(np.frombuffer(base64.b64decode(bits), np.uint8), count=int(count)).astype(bool)


def ahead(
    ours: Sequence[Sequence[str]], theirs: Sequence[Sequence[str]], draws: int = 2000, seed: int = 0
) -> tuple[float, float, float]:
    """The lead in accuracy, mean over tasks, and the 95 % interval of a paired bootstrap over seeds and test images.

    ours, theirs: for each seed that both have, the packed answers of each task.
    """
    generator = np.random.default_rng(seed)
    chosen = generator.integers(len(ours), size=(draws, len(ours)))  # seeds
    tasks, drawn = [], []
    for task in range(len(ours[0])):
        better = np.stack(
            [unpack(own[task]).astype(int) - unpack(other[task]) for own, other in zip(ours, theirs, strict=True)]
        )
        # Images with the same answers for all seeds are of one kind: a sample draws how many there are of each kind.
        kinds, counts = np.unique(better, axis=1, return_counts=True)
        samples = generator.multinomial(better.shape[1], counts / better.shape[1], size=draws)
        means = samples @ kinds.T / better.shape[1]  # (draws, seeds)
        tasks.append(better.mean())
        drawn.append(np.take_along_axis(means, chosen, 1).mean(1))
    low, high = np.quantile(np.mean(drawn, 0), [0.025, 0.975])
    return 100 * float(np.mean(tasks)), 100 * float(low), 100 * float(high)


def _known(value: float | None) -> float:
    if value is None:
        raise ValueError(
            "the accuracy matrix has a gap: expected an accuracy for every task from the time it was learned"
        )
    return value
