"""The orthonormal bases of all units: which unit knows a hash vector best, and how bases evolve while training.

Section 3.3 of the paper, Algorithms 2 (selection and initialisation), 3 (expansion) and 4 (update).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute.nn.hashing import NEGLIGIBLE, integer_hash

FOREVER = 2**62
"""The limit of an age that is never reached."""


class Selection(NamedTuple):
    """What was selected for each of n hash vectors."""

    units: Tensor
    """(n,) the chosen unit, -1 where no unit was free."""
    bases: Tensor
    """(b, m, s) the bases that vectors were compared with: of each chosen unit, and earlier versions of those."""
    basis: Tensor
    """(n,) the index of the basis for each vector: of its unit before any change by it, or the one it initialised."""
    best: Tensor
    """(n,) |p|^2 of the longest projection on a free unit, -1 if there was none; infinite for an initialisation."""

    def residues(self, hashed: Tensor) -> tuple[Tensor, Tensor]:
        """r = h - B'B h of each vector and its basis, and |r|, detached. hashed: (n, s).

        Where next to nothing is left, as of a vector that initialised its unit, r is 0: noise has no direction.
        """
        rows = self.bases.flatten(0, 1)
        own = torch.arange(len(self.bases), device=rows.device) == self.basis[:, None]
        projections = (hashed @ rows.T).unflatten(1, self.bases.shape[:2]) * own[:, :, None]
        residues = torch.addmm(hashed, projections.flatten(1), rows, alpha=-1)
        sizes = torch.linalg.vector_norm(residues.detach(), dim=1)
        nothing = sizes < max(NEGLIGIBLE, 8 * torch.finfo(hashed.dtype).eps)
        if nothing.any():
            residues, sizes = residues.masked_fill(nothing[:, None], 0.0), sizes.masked_fill(nothing, 0.0)
        return residues, sizes


class Bases(nn.Module):
    """The bases B_k of M units with their ages and counters, as buffers.

    A basis holds at most `size` (m) orthonormal vectors of `features` (s) numbers; unused rows are zero. Vectors come
    in batches, but every change happens as if they came one at a time, in their order.
    """

    vectors: Tensor
    """(M, m, s) B_k, one vector per row."""
    ranks: Tensor
    """(M,) how many vectors of each basis are in use."""
    ages: Tensor
    """(M,) a: selections since the last replacement."""
    limits: Tensor
    """(M,) the age at which a replacement is due: the maximum age alpha, rounded up."""
    replacements: Tensor
    """(M,) replacements so far: alpha was multiplied by rho at each."""
    counters: Tensor
    """(M, m) c: how often each vector had the lowest projection."""
    usage: Tensor
    """(M,) how often each unit was selected in training."""
    initialisations: Tensor
    """() how many units have been initialised: the state of the random choice among empty units."""

    def __init__(
        self,
        units: int,
        size: int,
        features: int,
        *,
        tau_empty: float,
        tau_expand: float,
        max_age: float,
        aging_rate: float,
        seed: int,
    ) -> None:
        super().__init__()
        self.size = size
        self.tau_empty = tau_empty
        self.tau_expand = tau_expand
        self.max_age = max_age
        self.aging_rate = aging_rate
        self.seed = seed
        self.register_buffer("vectors", torch.zeros(0, size, features))
        self.register_buffer("counters", torch.zeros(0, size, dtype=torch.long))
        for name in ("ranks", "ages", "limits", "replacements", "usage"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.long))
        self.register_buffer("initialisations", torch.zeros((), dtype=torch.long))
        self.add(units)

    def __len__(self) -> int:
        return len(self.vectors)

    def add(self, units: int) -> None:
        """Append empty bases for this many units."""
        for name, buffer in list(self.named_buffers()):
            if buffer.dim():
                setattr(self, name, torch.cat([buffer, buffer.new_zeros(units, *buffer.shape[1:])]))
        self.limits[len(self) - units :] = _whole(self.max_age)

    def select(self, hashed: Tensor, used: Tensor | None, evolve: bool) -> Selection:
        """Find for each hash vector the free unit with the largest projection; if evolve, let bases change.

        hashed: (n, features), detached, no row zero. used: (n, M), true where a unit is already in the sample's path.
        """
        projections = (hashed @ self.vectors.flatten(0, 1).T).view(len(hashed), len(self), self.size)
        strength = _strength(projections)
        not_free = self.ranks == 0 if used is None else used | (self.ranks == 0)
        strength.masked_fill_(not_free, -1.0)
        best, units = strength.max(1)
        if not evolve:
            return self._selection(units.masked_fill(best < 0, -1), best)
        if (first := self._first_change(best, units)) is None:
            self._age(units, projections)
            return self._selection(units, best)
        return self._evolve(hashed, projections, strength, best, units, first)

    def _selection(self, units: Tensor, best: Tensor) -> Selection:
        """What was selected, if no basis has changed."""
        chosen, basis = units.unique(return_inverse=True)
        return Selection(units, self.vectors[chosen], basis, best)

    def _evolve(
        self, hashed: Tensor, projections: Tensor, strength: Tensor, best: Tensor, units: Tensor, first: int
    ) -> Selection:
        """Walk from change to change; between two changes nothing depends on the order."""
        met = torch.full_like(units, -1)  # which of the bases in `earlier` a vector met, -1 for its unit's last one
        earlier: list[Tensor] = []
        start, change = 0, first
        while True:
            self._age(units[start:change], projections[start:change])
            start = change + 1
            unit = self._unit_to_initialise(float(best[change]))
            if unit is not None:
                units[change] = unit
                best[change] = math.inf
                self._initialise(unit, hashed[change])
                strength[start:, unit] = 0.0  # nobody has used it yet, so it is free for all
            else:
                unit = int(units[change])
                met[:start].masked_fill_((units[:start] == unit) & (met[:start] < 0), len(earlier))
                earlier.append(self.vectors[unit].clone())
                self._expand_and_age(unit, hashed[change])

            column = hashed[start:] @ self.vectors[unit].T
            projections[start:, unit] = column
            used = strength[start:, unit] < 0
            strength[start:, unit] = _strength(column).masked_fill(used, -1.0)
            best[start:], units[start:] = strength[start:].max(1)
            if (offset := self._first_change(best[start:], units[start:])) is None:
                break
            change = start + offset
        self._age(units[start:], projections[start:])
        last = self._selection(units, best)
        basis = torch.where(met < 0, last.basis + len(earlier), met)
        return Selection(units, torch.cat([*(basis[None] for basis in earlier), last.bases]), basis, best)

    def _first_change(self, best: Tensor, units: Tensor) -> int | None:
        """The first of these vectors that changes a basis. best: (n,) the largest |p|^2, -1 if no unit is free."""
        changing = (best < self.tau_expand**2) & (self.ranks[units] < self.size)
        if (self.ranks == 0).any():
            changing |= best < self.tau_empty**2
        positions = changing.nonzero()[:1, 0].tolist() if changing.any() else []
        due = self.ages + torch.bincount(units, minlength=len(self)) > self.limits
        for unit in due.nonzero()[:, 0].tolist() if due.any() else ():
            wait = int(self.limits[unit] - self.ages[unit])
            positions.append(int((units == unit).nonzero()[wait, 0]))
        return min(positions, default=None)

    def _unit_to_initialise(self, best: float) -> int | None:
        """A random empty unit if one is left and no free unit knows the vector well enough (Algorithm 2)."""
        empty = (self.ranks == 0).nonzero()[:, 0]
        if len(empty) == 0 or best >= self.tau_empty**2:
            return None
        return int(empty[int(integer_hash(self.seed, int(self.initialisations))[0]) % len(empty)])

    def _initialise(self, unit: int, vector: Tensor) -> None:
        """Give an empty unit its first vector (Algorithm 2)."""
        self.usage[unit] += 1
        self.initialisations += 1
        self.vectors[unit, 0] = vector
        self.ranks[unit] = 1

    def _expand_and_age(self, unit: int, vector: Tensor) -> None:
        """Let one vector expand the basis of its unit, or not, and age it (Algorithms 3 and 4)."""
        self.usage[unit] += 1
        basis = self.vectors[unit]
        rank = int(self.ranks[unit])
        projection = basis[:rank] @ vector
        residue = vector - projection @ basis[:rank]
        if projection.norm() < self.tau_expand and rank < self.size and residue.norm() >= NEGLIGIBLE:
            basis[rank] = _orthonormal(vector, basis[:rank])
            rank += 1
            self.ranks[unit] = rank

        if self.ages[unit] >= self.limits[unit]:
            oldest = int(self.counters[unit, :rank].argmax())
            others = torch.cat([basis[:oldest], basis[oldest + 1 : rank]])
            if (vector - (others @ vector) @ others).norm() >= NEGLIGIBLE:
                basis[oldest] = _orthonormal(vector, others)
            self.replacements[unit] += 1
            alpha = self.max_age
            for _ in range(int(self.replacements[unit])):
                alpha *= self.aging_rate
            self.limits[unit] = _whole(alpha)
            self.ages[unit] = 0
            self.counters[unit, oldest] = 0
        else:
            self.ages[unit] += 1
            self.counters[unit, _lowest(basis[:rank] @ vector)] += 1

    def _age(self, units: Tensor, projections: Tensor) -> None:
        """Count the selections of vectors that change no basis (the last lines of Algorithm 4)."""
        if len(units) == 0:
            return
        counts = torch.bincount(units, minlength=len(self))
        self.usage += counts
        self.ages += counts
        own = projections[torch.arange(len(units), device=units.device), units]
        own.masked_fill_(torch.arange(self.size, device=units.device) >= self.ranks[units][:, None], math.inf)
        lowest = torch.bincount(units * self.size + _lowest(own), minlength=self.counters.numel())
        self.counters += lowest.view_as(self.counters)


def _strength(projections: Tensor) -> Tensor:
    """|B_k h|^2 of projections (..., m); negligible values become 0, so that rounding does not decide ties."""
    return F.threshold(projections.square().sum(-1), NEGLIGIBLE**2, 0.0)


def _lowest(projections: Tensor) -> Tensor:
    """The index of the lowest of the projections (..., m); negligible projections are equal."""
    return projections.abs().clamp_min(NEGLIGIBLE).argmin(-1)


def _orthonormal(vector: Tensor, basis: Tensor) -> Tensor:
    """The part of a vector orthogonal to a basis (Gram-Schmidt), normalised; done twice against rounding errors."""
    for _ in range(2):
        vector = vector - (basis @ vector) @ basis
        vector = vector / vector.norm()
    return vector


def _whole(age: float) -> int:
    """The age, rounded up."""
    return FOREVER if age >= FOREVER else math.ceil(age)
