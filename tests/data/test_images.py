"""Images that are not in memory behave like a tensor, and are read ahead of time without leaving threads behind."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from hashroute.images import AHEAD, Images, batches_of
from hashroute.tasks import Split, read_batches


class Generated(Images):
    """Images whose pixels are their number; `seen` has the numbers that were read, `bad` cannot be read."""

    def __init__(self, count: int, bad: int = -1) -> None:
        super().__init__((1, 4, 4), count)
        self.bad = bad
        self.seen: list[int] = []

    def read(self, row: int) -> np.ndarray:
        if row == self.bad:
            raise ValueError(f"image {row} cannot be read")
        self.seen.append(row)
        return np.full((1, 4, 4), row, np.uint8)


def whole(count: int) -> torch.Tensor:
    return torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 4, 4)


def reader_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("hashroute-reader")]


ROWS = [3, -1, slice(2, 9, 3), [4, 4, 0], torch.tensor([5, 1]), torch.arange(20) % 3 == 0, slice(None), slice(0, 0)]


@pytest.mark.parametrize("rows", ROWS, ids=str)
def test_indexing_is_that_of_a_tensor(rows: object) -> None:
    images, tensor = Generated(20), whole(20)
    assert torch.equal(images[rows], tensor[rows])
    if not isinstance(rows, int):
        assert torch.equal(images.take(rows)[:], tensor[rows])
        assert images.take(rows).shape == tensor[rows].shape


def test_taking_a_part_reads_nothing() -> None:
    images = Generated(50)
    split = Split(images, torch.arange(50))[torch.arange(10, 40)][::2]
    assert images.seen == []
    assert split.images[0].unique().tolist() == [10]
    assert split.labels[:3].tolist() == [10, 12, 14]


def test_batches_are_consecutive_and_complete() -> None:
    for images in (Generated(45), whole(45)):
        batches = list(batches_of(images, 10))
        assert [len(batch) for batch in batches] == [10, 10, 10, 10, 5]
        assert torch.equal(torch.cat(batches), whole(45))
    assert not reader_threads()


def test_requests_of_several_splits_come_in_order() -> None:
    files, memory = Split(Generated(60), torch.arange(60)), Split(whole(60), torch.arange(60) + 100)
    order = torch.randperm(60).split(7)
    requests = [(memory if n % 3 == 0 else files, rows) for n, rows in enumerate(order)]
    for (images, labels), (split, rows) in zip(read_batches(requests), requests, strict=True):
        assert torch.equal(images, whole(60)[rows])
        assert torch.equal(labels, split.labels[rows])


def test_tensors_are_indexed_one_request_at_a_time() -> None:
    taken = []
    split = Split(whole(30), torch.arange(30))
    batches = read_batches((split, rows) for rows in torch.arange(30).split(3) if taken.append(rows) is None)
    next(batches)
    assert len(taken) == 1
    assert not reader_threads()


def test_no_more_than_a_few_batches_are_read_ahead() -> None:
    images = Generated(200)
    batches = read_batches((Split(images, torch.arange(200)), rows) for rows in torch.arange(200).split(1))
    next(batches)
    batches.close()
    assert len(images.seen) <= AHEAD + 1
    assert not reader_threads()


def test_an_error_reaches_the_caller_and_ends_the_threads() -> None:
    batches = batches_of(Generated(100, bad=33), 10)
    assert [len(next(batches)) for _ in range(3)] == [10, 10, 10]
    with pytest.raises(ValueError, match=r"^image 33 cannot be read$"):
        next(batches)
    assert not reader_threads()


def test_an_image_of_another_shape_is_an_error() -> None:
    class Uneven(Generated):
        def read(self, row: int) -> np.ndarray:
            return np.zeros((1, 4, 4 if row < 3 else 1), np.uint8)

    with pytest.raises(ValueError, match=r"image 3 has the shape \(1, 4, 1\), the first one \(1, 4, 4\)"):
        Uneven(5)[:]
