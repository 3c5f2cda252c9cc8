"""What passes in train mode have selected, so that gradient checkpointing can repeat a pass without new changes."""

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from hashroute.nn.bases import Selection

_numbers = count()


class Recording:
    """What one pass in train mode selected, level by level.

    hashed: (n, s) the hash vectors that entered the first level: they tell passes apart.
    """

    def __init__(self, hashed: Tensor) -> None:
        self.key = _key(hashed)
        self.number = next(_numbers)
        self.selections: list[Selection] = []

    def keep(self, result: Tensor) -> None:
        """Stay for as long as a result of the pass can be differentiated."""
        node: Any = result.grad_fn
        if node is not None:
            node.metadata[type(self).__name__] = self


class Recordings:
    """The recordings of the passes that can still be differentiated."""

    def __init__(self) -> None:
        self._kept: WeakSet[Recording] = WeakSet()

    def __reduce__(self) -> tuple[type[Recordings], tuple[()]]:
        return Recordings, ()  # a copy of a network has passed nothing yet

    def new(self, hashed: Tensor) -> Recording:
        """The recording of a pass that begins."""
        recording = Recording(hashed)
        self._kept.add(recording)
        return recording

    def repeated(self, hashed: Tensor) -> Recording | None:
        """The recording of the pass that a backward pass repeats now; None if this is not a repetition."""
        if torch._C._current_graph_task_id() == -1:
            return None
        key = _key(hashed)
        same = [each for each in self._kept if torch.equal(each.key, key)]
        if not same:
            raise ValueError(
                "a backward pass repeats a pass of this network that was not recorded: use torch.utils.checkpoint with "
                "use_reentrant=False"
            )
        return max(same, key=lambda each: each.number)


def _key(hashed: Tensor) -> Tensor:
    return hashed.detach().sum(1)
