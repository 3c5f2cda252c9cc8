"""Signed feature hashing: vectors of any length become vectors of one fixed length."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashroute import devices

NEGLIGIBLE = 1e-6
"""A remainder of a unit vector that is shorter than this counts as zero: it is rounding noise."""


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

    h and xi come from hashes of the index j, so phi takes any length. The table for a length is built once, kept for
    the process and never saved: the seed says it all.
    """

    def __init__(self, features: int, seed: int) -> None:
        self.features = features
        self.seed = seed
        self._tables: dict[tuple[int, torch.device], Tensor] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"features": self.features, "seed": self.seed, "_tables": {}}

    def table(self, length: int, device: torch.device | str = "cpu") -> Tensor:
        """Bucket h(j) of every index j below length, plus `features` where the sign xi(j) is -1: (length,)."""
        key = (length, torch.device(device))
        if key not in self._tables:
            bits = integer_hash(self.seed, np.arange(length))
            buckets = self.buckets(bits >> np.uint64(32))
            negative = bits & np.uint64(1)
            with torch.inference_mode(False):  # a table outlives the mode in which it was first needed
                table = torch.from_numpy((buckets + negative * np.uint64(self.features)).astype(np.int64))
                self._tables[key] = table.to(device)
        return self._tables[key]

    def buckets(self, hashed: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The bucket of every index from the upper half of its hash: (length,)."""
        return hashed % np.uint64(self.features)

    def __call__(self, values: Tensor) -> Tensor:
        """values: (batch, length). Returns phi of each row: (batch, features)."""
        # Adding up positive and negative terms apart saves a temporary as large as the values.
        table = self.table(values.shape[1], values.device)
        plus, minus = values.new_zeros(len(values), 2 * self.features).index_add(1, table, values).chunk(2, 1)
        return plus - minus

    def scaled(self, maps: Tensor) -> tuple[Tensor, Tensor]:
        """phi(x / |x|_inf) of each map: (batch, features), and |x|_inf: (batch,), NaN or Inf if x holds one."""
        flat = maps.flatten(1)
        largest = largest_size(flat)
        # phi is linear and h does not depend on scale, so dividing by a constant after hashing gives the same h and the
        # same gradient as the paper's division before it, and touches fewer numbers; unless the sums could overflow.
        divisor = largest.clamp_min(torch.finfo(flat.dtype).tiny)[:, None]
        if devices.all_true(largest < torch.finfo(flat.dtype).max / flat.shape[1]):
            return self(flat) / divisor, largest
        return self(flat / divisor), largest

    def normalised(self, maps: Tensor) -> Tensor:
        """The hash vector h of each map: (batch, features), each row of norm 1 or 0 (see `normalise`)."""
        return normalise(self.scaled(maps)[0])[0]


class EvenHash(FeatureHash):
    """A feature hashing function that fills buckets evenly: no bucket gets a second index before each has one.

    With at most `features` numbers, each has a bucket of its own: the hash changes only their order and signs.
    """

    def buckets(self, hashed: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """The rank of an index among all by its hash, modulo the number of buckets."""
        ranks = np.empty_like(hashed)
        ranks[np.argsort(hashed, kind="stable")] = np.arange(len(hashed), dtype=np.uint64)
        return ranks % np.uint64(self.features)


def largest_size(maps: Tensor) -> Tensor:
    """|x|_inf of each map, without its gradient: (batch,)."""
    values = maps.detach().flatten(1)
    return torch.maximum(values.amax(1), -values.amin(1))  # faster than a norm, and makes no copy


def normalise(hashed: Tensor) -> tuple[Tensor, Tensor]:
    """Hash vectors h from hashed maps, and which of them are not zero.

    hashed: (batch, features), phi of each map, scaled. Returns h: (batch, features), each row of norm 1, or 0 if the
    map is zero or its hash cancels out; and alive: (batch,), false for those.
    """
    norms = torch.linalg.vector_norm(hashed, dim=1, keepdim=True)
    alive = norms.detach()[:, 0] > NEGLIGIBLE
    hashed = hashed / norms.clamp_min(NEGLIGIBLE)
    return (hashed if devices.all_true(alive) else hashed * alive[:, None]), alive
