"""Signed feature hashing: vectors of any length become vectors of one fixed length."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

NEGLIGIBLE = 1e-6
"""What is left of a vector of size 1 counts as nothing below this: rounding noise has no direction."""


def integer_hash(seed: int, index: NDArray[Any] | int) -> NDArray[np.uint64]:
    """Hash each index under a seed to 64 bits, in integer arithmetic alone (SplitMix64's finaliser, seed first)."""
    with np.errstate(over="ignore"):  # arithmetic modulo 2^64 is meant
        key = _finalise(np.atleast_1d(np.asarray(seed % 2**64, dtype=np.uint64)))
        return _finalise(key + np.atleast_1d(index).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15))


def _finalise(bits: NDArray[np.uint64]) -> NDArray[np.uint64]:
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


class FeatureHash:
    """A feature hashing function, phi: phi(x)_i = sum over j with h(j) = i of xi(j) x_j.

    h and xi are hashes of the index j, so phi takes any length. The table for a length is built once, kept for the
    process and never saved: the seed says it all.
    """

    def __init__(self, features: int, seed: int) -> None:
        self.features = features
        self.seed = seed
        self._tables: dict[tuple[int, torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"features": self.features, "seed": self.seed, "_tables": {}}

    def table(self, length: int, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Bucket h(j) and sign xi(j) of every index j below length: two tensors (length,)."""
        key = (length, device, dtype)
        if key not in self._tables:
            bits = integer_hash(self.seed, np.arange(length))
            buckets = torch.from_numpy(((bits >> np.uint64(32)) % np.uint64(self.features)).astype(np.int64))
            signs = torch.from_numpy((bits & np.uint64(1)).astype(np.int64) * 2 - 1)
            self._tables[key] = (buckets.to(device), signs.to(device, dtype))
        return self._tables[key]

    def __call__(self, values: Tensor) -> Tensor:
        """values: (batch, length). Returns phi of each row: (batch, features)."""
        buckets, signs = self.table(values.shape[1], values.device, values.dtype)
        return values.new_zeros(len(values), self.features).index_add(1, buckets, values * signs)

    def normalised(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """The hash vector h of each map, and which of them are not zero.

        maps: (batch, ...). Returns hashed: (batch, features), each row of norm 1, or 0 if the map is zero or its hash
        cancels out; and alive: (batch,), false for those. A NaN or Inf is an error that names the row.
        """
        flat = maps.flatten(1)
        # phi is linear and h does not depend on scale, so dividing after hashing, by a constant, gives the same h and
        # the same gradient as the division before it that the paper writes, and touches fewer numbers.
        largest = torch.linalg.vector_norm(flat.detach(), ord=float("inf"), dim=1, keepdim=True)
        if not torch.isfinite(largest).all():
            raise NotFiniteError(int((~torch.isfinite(largest[:, 0])).nonzero()[0]))
        hashed = self(flat) / largest.clamp_min(torch.finfo(flat.dtype).tiny)
        norms = torch.linalg.vector_norm(hashed, dim=1, keepdim=True)
        alive = norms.detach()[:, 0] > NEGLIGIBLE
        hashed = hashed / norms.clamp_min(NEGLIGIBLE)
        return (hashed if alive.all() else hashed * alive[:, None]), alive


class NotFiniteError(ValueError):
    """A map holds NaN or Inf; `row` says which of the batch."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} holds NaN or Inf")
        self.row = row
