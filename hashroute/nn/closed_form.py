"""A linear head in closed form: discriminant analysis from sums over features, exact in any order of tasks.

Features phi are whole numbers. Kept are G, the sum of phi phi' over all images, and for each class c the sum S_c of phi
and the number n_c of images. These give the means mu_c of the classes and their common covariance
C = (G - sum of n_c mu_c mu_c') / n + r I. The score of a class is the log-density of a Gaussian with its mean and this
covariance, up to a constant: it is linear in phi, and a rare class counts as much as a frequent one.

The sums are exact: they do not depend on the order of the data, new classes are new columns, and subtracting the sums
of a task gives exactly the sums without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hashroute import distributed

CHUNK = 1000
"""Rows whose products are summed in float32 at once: with features up to 127 these sums are exact."""

NEVER = -1e6
"""The score of a class without images."""

MOST_SHRUNK = 0.9
"""The share of the identity in a covariance that is shrunk, at most."""


class Solution(NamedTuple):
    """A linear head: the score of class c is phi . weight[:, c] + bias[c]."""

    weight: Tensor
    """(s, classes)"""
    bias: Tensor
    """(classes,)"""

    def __call__(self, features: Tensor) -> Tensor:
        """features: (n, s). Returns scores: (n, classes).

        Large terms cancel, so the sums have double precision where the device has it.
        """
        kind = torch.float32 if self.weight.device.type == "mps" else torch.float64
        return torch.addmm(self.bias.to(kind), features.to(self.weight.device, kind), self.weight.to(kind)).float()


class ClosedForm(nn.Module):
    """The sums of all data seen so far, over s features.

    Args:
        features: s.
    """

    gram: Tensor
    """(s (s + 1) / 2,) the lower triangle of G, row by row; int32 while that is large enough, then int64."""
    sums: Tensor
    """(classes, s) S_c; int32 while that is large enough, then int64."""
    counts: Tensor
    """(classes,) n_c."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.features = features
        self.register_buffer("gram", torch.zeros(features * (features + 1) // 2, dtype=torch.int32))
        self.register_buffer("sums", torch.zeros(0, features, dtype=torch.int32))
        self.register_buffer("counts", torch.zeros(0, dtype=torch.int64))

    @property
    def classes(self) -> int:
        """How many classes there are."""
        return len(self.counts)

    def reserve(self, classes: int) -> None:
        """Make room for this many classes."""
        more = classes - self.classes
        if more > 0:
            self.sums = torch.cat([self.sums, self.sums.new_zeros(more, self.features)])
            self.counts = torch.cat([self.counts, self.counts.new_zeros(more)])

    @torch.no_grad()
    def add(self, features: Tensor, classes: Tensor, sign: int = 1) -> None:
        """Add data to the sums, or subtract it with sign -1.

        features: (n, s) whole numbers from -127 to 127. classes: (n,) indices.
        """
        self.reserve(int(classes.max()) + 1)
        lower = _lower_triangle(self.features, self.gram.device)
        for rows, own in zip(features.split(CHUNK), classes.split(CHUNK), strict=True):
            sums = torch.zeros(self.sums.shape, dtype=torch.int64, device=self.sums.device)
            sums.index_add_(0, own, rows.long())
            self._add(sign * (rows.T @ rows).flatten()[lower].long(), sign * sums)
            self.counts.index_add_(0, own, torch.full_like(own, sign))

    @torch.no_grad()
    def merge(self, other: ClosedForm, columns: Tensor, sign: int = 1) -> None:
        """Add the sums of other data, or subtract them with sign -1. columns: the class here of each class there."""
        self.reserve(int(columns.max()) + 1)
        sums = torch.zeros(self.sums.shape, dtype=torch.int64, device=self.sums.device)
        sums.index_add_(0, columns, other.sums.long())
        self._add(sign * other.gram.long(), sign * sums)
        self.counts.index_add_(0, columns, sign * other.counts)

    def sum_over_ranks(self) -> None:
        """Add up the sums of all processes, where each has data of its own."""
        if distributed.ranks() > 1:
            gram, sums = self.gram.long(), self.sums.long()
            distributed.sum_over_ranks([gram, sums, self.counts])
            self.gram, self.sums = _narrow(gram), _narrow(sums)

    def drop_first(self, classes: int) -> None:
        """Remove the first classes, whose sums must be subtracted before."""
        self.sums, self.counts = self.sums[classes:].clone(), self.counts[classes:].clone()

    def _add(self, gram: Tensor, sums: Tensor) -> None:
        self.gram, self.sums = _narrow(self.gram.long() + gram), _narrow(self.sums.long() + sums)

    def square(self) -> Tensor:
        """(s, s) G, in double precision on the CPU."""
        lower = torch.zeros(self.features, self.features, dtype=torch.float64)
        lower.view(-1)[_lower_triangle(self.features, lower.device)] = self.gram.cpu().double()
        return lower + lower.tril(-1).T

    def solve(self, ridge: float) -> Solution:
        """The head of all data so far. ridge: r, in units of the mean variance of a feature."""
        return next(self.solutions([ridge]))

    @torch.no_grad()
    def solutions(self, ridges: Sequence[float]) -> Iterator[Solution]:
        """The heads of all data so far, one for each ridge.

        Few images underestimate the covariance, so scores are scaled by n / (n + s).
        """
        mean, means, within, variance = self._moments()
        count, empty = self.counts.cpu().double().sum(), self.counts.cpu() == 0
        diagonal, centred = within.diagonal().clone(), (means - mean).T
        for ridge in ridges:
            within.diagonal().copy_(diagonal + max(ridge, 1e-9) * variance)
            try:
                factor = torch.linalg.cholesky(within)
            except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
                raise ValueError(
                    "the sums of the shared head are damaged: no images have such sums; restore their file"
                ) from None
            weight = torch.cholesky_solve(centred, factor) * count / (count + self.features)
            bias = -mean @ weight - (centred * weight).sum(0) / 2
            bias[empty] = NEVER
            yield Solution(weight.float().to(self.gram.device), bias.float().to(self.gram.device))

    @torch.no_grad()
    def shrinkage(self) -> float:
        """The ridge that the sums themselves ask for: oracle approximating shrinkage (Chen, 2010).

        It is the larger, the fewer images there are. It depends on nothing else, so the head does not depend on the
        order of tasks.
        """
        *_, covariance, variance = self._moments()
        count, size = int(self.counts.sum()), self.features
        trace, squares = covariance.trace(), covariance.square().sum()
        below = (count + 1) * (squares - trace.square() / size)
        share = ((squares + trace.square()) / below.clamp_min(1e-30)).clamp(0, MOST_SHRUNK)
        return float(share / (1 - share) * trace / size / variance)

    def _moments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The mean, the means of classes, the covariance within classes, and the mean variance of a feature."""
        counts, sums = self.counts.cpu().double(), self.sums.cpu().double()  # not every device has double precision
        count, gram = counts.sum(), self.square()
        mean, means = sums.sum(0) / count, sums / counts.clamp_min(1)[:, None]
        variance = (gram.diagonal() / count - mean.square()).mean().clamp_min(1e-9)
        return mean, means, (gram - means.T @ sums) / count, variance

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Take the classes and the number of bits of the sums that are loaded."""
        sums = state_dict.get(prefix + "sums")
        if sums is not None and sums.dim() == 2:
            self.reserve(len(sums))
        for name in ("gram", "sums"):
            if (found := state_dict.get(prefix + name)) is not None and found.dtype == torch.int64:
                setattr(self, name, getattr(self, name).long())
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        """What a printed module says about the sums."""
        return f"{self.features} features, {self.classes} classes, {int(self.counts.sum()):,} images"


def _narrow(total: Tensor) -> Tensor:
    """The same numbers in 32 bits, if they fit."""
    return total.int() if int(total.abs().max()) < 2**31 else total


@lru_cache(maxsize=4)
def _lower_triangle(side: int, device: torch.device) -> Tensor:
    """The places of the lower triangle in a flattened square matrix, row by row."""
    rows, columns = torch.tril_indices(side, side, device=device)
    places: Tensor = rows * side + columns
    return places
