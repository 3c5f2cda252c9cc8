"""Features of images that a stream without labels sharpens: nothing is trained, and no image is kept.

Fixed patch features phi are whole numbers, so sums of phi and of phi phi' are exact in any order. Kept are these sums:
of phi for each window of so many images, and of phi phi' for all. They give two kinds of directions:

- principal: along the largest variances of the whole stream, half whitened: divided by the root of the deviation.
- slow: between windows there is more difference than chance explains, because what a stream shows changes slowly.
  With W the covariance within windows, these are the directions in which the means of windows differ most, measured by
  W: linear discriminant analysis with the window in place of a class. A stream that is well mixed has none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute.nn.closed_form import CHUNK, ClosedForm
from hashroute.nn.patches import PatchFeatures

WINDOW = 500

MOST_WINDOWS = 128
"""If there are more windows, each two become one."""

PRINCIPAL = 150
"""Principal directions, at most."""

MOST_SLOW = 32
"""Slow directions, at most."""

RIDGE = 0.02
"""Added to the covariance within windows, in units of the mean variance of a feature."""

CHANCE = 2.0
"""A direction is slow if its singular value is so many times the largest one that chance explains."""


class Directions(NamedTuple):
    """A linear map of features: principal and slow directions."""

    mean: Tensor
    """(s,)"""
    principal: Tensor
    """(s, directions)"""
    slow: Tensor
    """(s, directions)"""


class StreamFeatures(nn.Module):
    """Features of images, made from a stream of images without labels.

    Args:
        image_shape: channels, height and width of the images.
        features: s, the number of fixed patch features.
        seed: of the dictionary of patches.
        window: images of a window, at first. Windows should be shorter than the stream shows the same.
    """

    window: Tensor

    def __init__(self, image_shape: tuple[int, ...], features: int = 1792, seed: int = 0, window: int = WINDOW) -> None:
        super().__init__()
        self.fixed = PatchFeatures(image_shape, features, seed)
        self.sums = ClosedForm(self.fixed.features)  # its classes are the windows
        self.register_buffer("window", torch.tensor(window))
        self._directions: Directions | None = None

    @property
    def seen(self) -> int:
        """How many images the stream had so far."""
        return int(self.sums.counts.sum())

    @torch.no_grad()
    def observe(self, images: Tensor) -> None:
        """Add the next images of the stream to the sums: (n, channels, height, width), uint8 or from 0 to 1."""
        self._directions = None
        for part in images.split(CHUNK):
            features = self.fixed(part, whole=True)
            windows = (self.seen + torch.arange(len(part), device=features.device)) // self.window
            self.sums.add(features, windows)
            while self.sums.classes > MOST_WINDOWS:
                self._halve()

    def _halve(self) -> None:
        """Make one window of each two."""
        pairs, self.window = torch.arange(self.sums.classes) // 2, self.window * 2
        fewer = ClosedForm(self.sums.features)
        fewer.merge(self.sums, pairs)
        self.sums = fewer

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """(n, directions) principal directions, then slow ones: each part has a mean square norm of 1."""
        mean, principal, slow = self.directions()
        centred = self.fixed(images) - mean
        return torch.cat([F.normalize(centred @ principal), centred @ slow], 1)

    @torch.no_grad()
    def directions(self) -> Directions:
        """The directions of the stream so far."""
        if self.seen < 2:
            raise ValueError(f"StreamFeatures has seen {self.seen} images: call observe(images) first")
        if self._directions is None:
            self._directions = self._solve()
        return self._directions

    def _solve(self) -> Directions:
        from scipy.linalg import eigh  # slow to import

        counts, sums = self.sums.counts.cpu().double(), self.sums.sums.cpu().double()
        count, size = counts.sum(), self.sums.features
        mean = sums.sum(0) / count
        covariance = self.sums.square() / count - mean[:, None] * mean
        kept = min(PRINCIPAL, size)
        values, vectors = eigh(covariance.numpy(), subset_by_index=[size - kept, size - 1])
        least = 1e-6 * covariance.diagonal().mean() + 1e-9
        scale = torch.from_numpy(values.copy()).clamp_min(least).pow(-0.25)
        principal = torch.from_numpy(vectors.copy()) * scale
        shifts = (sums / counts[:, None] - mean) * (counts / count).sqrt()[:, None]  # (windows, s)
        within = covariance - shifts.T @ shifts
        within.diagonal().add_(RIDGE * covariance.diagonal().mean())
        lower = torch.linalg.cholesky(within)
        between = torch.linalg.solve_triangular(lower, shifts.T, upper=False)
        sides, lengths, _ = torch.linalg.svd(between, full_matrices=False)
        chance = (math.sqrt(size) + math.sqrt(len(counts))) / count.sqrt()
        some = sides[:, :MOST_SLOW][:, lengths[:MOST_SLOW] > CHANCE * chance]
        slow = torch.linalg.solve_triangular(lower.T, some, upper=True)
        slow = slow / (slow * (covariance @ slow)).sum().clamp_min(1e-9).sqrt()
        place = self.sums.sums.device
        return Directions(*(each.float().to(place) for each in (mean, principal, slow)))

    def extra_repr(self) -> str:
        """What a printed module says about the stream."""
        return f"{self.seen:,} images seen, in {self.sums.classes} windows"
