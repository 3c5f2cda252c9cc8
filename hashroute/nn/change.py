"""Noticing that a stream of images has changed: recent hash vectors are compared with those of the episode so far.

A Gaussian describes the first images of an episode and then stays, so that slow changes are noticed, too. The
divergence of the most recent images from it is near 0 while the data stays the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hashroute.nn.gaussian import GaussianMemories

LOOKS = 8
"""How often images are looked at while as many as the recent ones come."""

DOUBLED = 2
"""How often the number of images that describe an episode is doubled. It begins with as many as are recent."""


class ChangeDetector:
    """Notices the end of an episode from hash vectors of the edges in images, in order.

    It keeps the hash vectors of the recent images and of the first images of the episode, and the Gaussian of the
    latter. It notices nothing before it has seen twice as many images as are recent.

    Args:
        features: s, the length of hash vectors.
        directions: of the Gaussian, at most.
        limit: the divergence, in nats, up to which data is the same.
        recent: the number of latest images that are compared with the episode.
    """

    def __init__(self, features: int, directions: int, limit: float, recent: int) -> None:
        self.directions = directions
        self.limit = limit
        self.sizes: list[int] = [recent * 2**times for times in range(DOUBLED + 1)]
        self.step = recent // LOOKS
        self.divergence = 0.0
        """Of the recent images from the episode, at the last look."""
        self.recent = torch.zeros(0, features)
        self.first = torch.zeros(0, features)
        self._episode: GaussianMemories | None = None

    @property
    def full(self) -> bool:
        """Whether there are as many recent images as can be."""
        return len(self.recent) == self.sizes[0]

    def look(self, hashed: Tensor) -> bool:
        """Whether the data has changed; if so, an episode begins after these images. hashed: (step, s)."""
        joined = torch.cat([self.recent, hashed.to(self.recent)])
        older, self.recent = joined[: -self.sizes[0]], joined[-self.sizes[0] :]
        self._describe(older)
        if self._episode is None:
            return False
        self.divergence = self._episode.divergence(self.recent).item()
        # Few images describe an episode badly, which adds to the divergence.
        changed = self.divergence > self.limit * (1 + self.sizes[0] / len(self.first))
        if changed:
            self.recent, self.first, self._episode = hashed[:0].to(joined), joined[:0].clone(), None
        return changed

    def _describe(self, older: Tensor) -> None:
        """Add images to those that describe the episode. Its Gaussian is made anew whenever they have doubled."""
        if len(older) and len(self.first) < self.sizes[-1]:
            self.first = torch.cat([self.first, older])
            if len(self.first) in self.sizes:
                self._episode = GaussianMemories(self.first.shape[1], self.directions)
                self._episode.write(self.first, self.first)
