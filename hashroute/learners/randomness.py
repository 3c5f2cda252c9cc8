"""Random numbers that belong to a learner, and choices that need none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class RandomStream:
    """A learner's own random numbers: the same seed gives the same learner, whatever else draws numbers.

    Code inside `with stream.use(device)` draws from the stream through torch's default generators. Outside, the
    generators are as if nothing had been drawn.
    """

    def __init__(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed % 2**63).get_state()

    def restore(self, state: Tensor) -> None:
        """Continue from the state of another stream; an error if it is none."""
        torch.Generator().set_state(state.cpu())
        self.state = state.cpu()

    @contextmanager
    def use(self, device: torch.device) -> Iterator[None]:
        """Draw from this stream until the end of the block."""
        cuda = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(devices=cuda):
            torch.set_rng_state(self.state)
            if cuda:
                torch.cuda.manual_seed(int(torch.randint(2**62, ())))
            try:
                yield
            finally:
                self.state = torch.get_rng_state()


@contextmanager
def isolated_rng(seed: int, device: torch.device) -> Iterator[None]:
    """Draw random numbers of a seed; later draws are as if these had not happened."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed % 2**63)
        yield


def evenly_spaced_indices(total: int, count: int) -> Tensor:
    """Indices of `count` evenly spaced rows, or of all rows if there are fewer: (count,)."""
    return torch.linspace(0, total - 1, min(count, total)).round().long()
