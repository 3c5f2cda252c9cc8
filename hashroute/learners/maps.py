"""Maps of a frozen stem for the images of a task: computed once, and kept while the task is learned."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from hashroute.images import batches_of
from hashroute.tasks import Split

IN_MEMORY = 2**29
"""Bytes of the maps of a split that are kept in memory, at most. Larger maps go into a temporary file."""

IN_FILE = 2**34
"""Bytes of that file, at most. Still larger maps are computed again in every epoch."""

BATCH = 128
LARGEST = torch.finfo(torch.float16).max


class Maps(Tensor):
    """Marks a tensor (n, channels, height, width) that holds maps of a frozen stem instead of images."""


def keep_maps(split: Split, shape: Sequence[int], compute: Callable[[Tensor], Tensor]) -> Split:
    """The maps of a split with its labels, in memory or in a file; the split itself if there is no room.

    shape: of the maps of one image. The file has no name, so it disappears with the maps or with the process.
    """
    whole = (len(split), *shape)
    size = 2 * math.prod(whole)
    if size > IN_FILE:
        return split
    if size <= IN_MEMORY:
        maps = torch.empty(whole, dtype=torch.float16)
    else:
        try:
            with tempfile.TemporaryFile(prefix="hashroute-maps-") as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)  # a full disk shows now, not while writing
                maps = torch.from_numpy(np.memmap(file, np.float16, "w+", shape=whole))
        except OSError:
            return split
    start = 0
    for images in batches_of(split.images, BATCH):
        maps[start : start + len(images)] = compute(images).clamp(-LARGEST, LARGEST)
        start += len(images)
    return Split(maps.as_subclass(Maps), split.labels)
