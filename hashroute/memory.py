"""What data was like: a small Gaussian in hash space, under which other data is more or less likely.

The Gaussian of a task's hash vectors h: mean mu, m principal directions V with variances lambda, and one variance for
all other directions. With c = h - mu and q = V c,

    -2 log p(h) = sum_i q_i^2 / lambda_i + (|c|^2 - |q|^2) / rest + sum_i log lambda_i + (s - m) log rest + s log 2 pi

Many of them are scored in one matrix product, since V and mu of all stand in one matrix.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LEAST_VARIANCE = 1e-10
"""Of any direction: data that never varies would make everything else infinitely unlikely."""


class Memories(nn.Module):
    """The Gaussians of several tasks, over hash vectors of length s.

    Args:
        features: s.
        directions: m.
    """

    means: Tensor
    directions: Tensor
    variances: Tensor
    rests: Tensor
    usual: Tensor

    def __init__(self, features: int, directions: int) -> None:
        super().__init__()
        if not 1 <= directions < features:
            raise ValueError(f"directions is {directions}: expected at least 1 and fewer than features={features}")
        self.register_buffer("means", torch.zeros(0, features))  # mu: (memories, s)
        self.register_buffer("directions", torch.zeros(0, directions, features))  # V: (memories, m, s)
        self.register_buffer("variances", torch.zeros(0, directions))  # lambda: (memories, m)
        self.register_buffer("rests", torch.zeros(0))  # (memories,)
        self.register_buffer("usual", torch.zeros(0, 2))  # mean and deviation of the log-likelihood of its own data

    def __len__(self) -> int:
        return len(self.means)

    def reserve(self, memories: int) -> None:
        """Make room for so many, to load a state into."""
        for name, buffer in self._buffers.items():
            assert buffer is not None
            self._buffers[name] = buffer.new_zeros(memories, *buffer.shape[1:])

    @torch.no_grad()
    def write(self, seen: Tensor, held_out: Tensor) -> None:
        """Add a memory, once and for all.

        seen: (n, s) hash vectors of the data. held_out: (k, s) others of the same data: what is usual comes from them,
        because a Gaussian flatters the samples that it was made of.
        """
        count = self.directions.shape[1]
        data = seen.cpu().double()  # not every device has float64
        mean = data.mean(0)
        _, sizes, vectors = torch.linalg.svd((data - mean) / max(1, len(data) - 1) ** 0.5, full_matrices=False)
        values, vectors = _pad(sizes.square(), count), _pad(vectors, count)
        rest = (values[count:].sum() / (data.shape[1] - count)).clamp_min(LEAST_VARIANCE)
        new = {
            "means": mean,
            "directions": vectors[:count],
            "variances": torch.maximum(values[:count], rest),
            "rests": rest,
            "usual": torch.zeros(2),
        }
        for name, value in new.items():
            buffer = getattr(self, name)
            self._buffers[name] = torch.cat([buffer, value.to(buffer)[None]])
        own = self.log_likelihood(held_out)[:, -1]
        self.usual[-1, 0] = own.mean()
        self.usual[-1, 1] = own.std() if len(own) > 1 else 1.0

    @torch.no_grad()
    def log_likelihood(self, hashed: Tensor) -> Tensor:
        """hashed: (n, s). Returns log p(h) under every memory: (n, memories)."""
        several, count, features = self.directions.shape
        table = torch.cat([self.directions.flatten(0, 1), self.means])  # all that h is multiplied with
        products = hashed @ table.T
        along = (
            products[:, : several * count].view(-1, several, count) - (self.directions @ self.means[:, :, None])[..., 0]
        )
        distance = hashed.square().sum(1)[:, None] - 2 * products[:, several * count :] + self.means.square().sum(1)
        across = (distance - along.square().sum(2)).clamp_min(0)
        volume = self.variances.log().sum(1) + (features - count) * self.rests.log() + features * math.log(2 * math.pi)
        likely: Tensor = -0.5 * ((along.square() / self.variances).sum(2) + across / self.rests + volume)
        return likely

    def extra_repr(self) -> str:
        return f"{len(self)} of {self.directions.shape[1]} directions in {self.means.shape[1]} dimensions"


def _pad(rows: Tensor, count: int) -> Tensor:
    """At least so many rows, zeros where there are too few."""
    return torch.cat([rows, rows.new_zeros(max(0, count - len(rows)), *rows.shape[1:])])
