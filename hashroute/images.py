"""Images that are not in memory, and reading them ahead of time with threads."""

from __future__ import annotations

import copy
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import Self

THREADS = min(4, os.cpu_count() or 1)
"""How many threads read."""
AHEAD = 4
"""How many batches are read before they are needed."""

DIGESTED = 1000
"""How many evenly spaced images stand for all of them in a digest."""

Result = TypeVar("Result")


class Images(ABC):
    """Images that are read when they are indexed. Files and Datasets that do not fit in memory are used this way.

    A subclass implements `read`. Indexing takes what a tensor takes (numbers, slices, masks) and returns a uint8
    tensor; `take` selects images without reading them.

    Args:
        image_shape: channels, height and width.
        count: the number of images.
    """

    dtype = torch.uint8

    def __init__(self, image_shape: Sequence[int], count: int) -> None:
        self.image_shape = tuple(image_shape)
        self._rows = torch.arange(count)

    @abstractmethod
    def read(self, row: int) -> NDArray[np.uint8]:
        """Read one image: (channels, height, width). Several threads may call this at the same time."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of images, channels, height and width."""
        return (len(self), *self.image_shape)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, rows: Any) -> Tensor:
        chosen = self._rows[rows]
        if chosen.dim() == 0:
            return torch.from_numpy(self._checked(int(chosen)).copy())
        pixels = np.empty((len(chosen), *self.image_shape), np.uint8)
        for place, row in enumerate(chosen.tolist()):
            pixels[place] = self._checked(row)
        return torch.from_numpy(pixels)

    def _checked(self, row: int) -> NDArray[np.uint8]:
        image = self.read(row)
        if image.shape != self.image_shape:
            raise ValueError(
                f"image {row} has the shape {image.shape}, the first one {self.image_shape}: resize them to one shape"
            )
        return image

    def contents(self) -> Iterator[bytes]:
        """What a digest of these images reads: the pixels of up to DIGESTED of them, evenly spaced."""
        rows = torch.linspace(0, len(self) - 1, min(DIGESTED, len(self))).long()
        yield from (self._checked(row).tobytes() for row in self._rows[rows].tolist())

    def take(self, rows: Any) -> Self:
        """Select images without reading them."""
        taken = copy.copy(self)
        taken._rows = self._rows[rows]
        return taken

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} images of {self.image_shape})"


def batches_of(images: Tensor | Images, size: int) -> Iterator[Tensor]:
    """Consecutive batches; those of `Images` are read ahead of time."""
    if isinstance(images, Tensor):
        yield from images.split(size)
    else:
        rows = torch.arange(len(images)).split(size)
        yield from read_ahead((True, partial(images.__getitem__, part)) for part in rows)


def read_ahead(jobs: Iterable[tuple[bool, Callable[[], Result]]]) -> Iterator[Result]:
    """Run jobs and return their results in order.

    Each job comes with whether it is slow. Slow jobs run on threads, a few ahead of the one that is needed; other jobs
    run when their result is needed. An error in a job is raised where its result would be returned. The threads end
    with the iterator, also when it is closed early.
    """
    pool: ThreadPoolExecutor | None = None
    waiting: deque[Callable[[], Result]] = deque()
    try:
        for slow, job in jobs:
            if slow:
                pool = pool or ThreadPoolExecutor(THREADS, "hashroute-reader")
                job = pool.submit(job).result
            waiting.append(job)
            if pool is None or len(waiting) > AHEAD:
                yield waiting.popleft()()
        while waiting:
            yield waiting.popleft()()
    finally:
        if pool is not None:
            pool.shutdown(cancel_futures=True)
