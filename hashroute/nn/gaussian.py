"""What data was like: a small Gaussian in hash space, from which other data is more or less far.

What is hashed are the edges in images. The Gaussian of a task's hash vectors h has a mean mu, m principal directions V
with variances lambda, and one variance for all other directions. With c = h - mu and q = V c,

    -2 log p(h) = sum_i q_i^2 / lambda_i + (|c|^2 - |q|^2) / rest + sum_i log lambda_i + (s - m) log rest + s log 2 pi

Few samples do not show many directions: a memory of them has fewer, and zeros in place of the others.

Many of them are scored in one matrix product, since V and mu of all stand in one matrix. A sample has a likelihood. A
batch has more: a Gaussian of its own, and what that tells from the remembered one is their divergence.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, pad

LEAST_VARIANCE = 1e-10
"""Of any direction: data that never varies would make everything else infinitely unlikely."""

IMAGES_A_DIRECTION = 25
"""With fewer samples, principal directions would be those of these samples and not of the data."""

EDGES = 8
"""Side of the grid on which edges are remembered."""


def edges(images: Tensor) -> Tensor:
    """Where images rise, fall and bend, and how much: what of them tells one kind of data from another.

    images: (n, channels, height, width). Channels are taken apart into their mean and their differences. Returns the
    square roots of mean slopes to the right, left, down and up, and of mean curvatures across and down, on a grid:
    (n, 6 channels, 8, 8). Brightness has no part in it, and contrast only as a factor.
    """
    images = torch.einsum("kc,nchw->nkhw", _cosines(images.shape[1]).to(images), images)
    across, down = images.diff(dim=3), images.diff(dim=2)
    slopes = [each.clamp_min(0) for slope in (across, down) for each in (slope, -slope)]
    bends = [across.diff(dim=3).abs(), down.diff(dim=2).abs()]
    return torch.cat([adaptive_avg_pool2d(each, EDGES) for each in slopes + bends], 1).sqrt()


@lru_cache
def _cosines(count: int) -> Tensor:
    """(count, count) the orthonormal cosine transform: of colours, brightness, red less blue, and both less green."""
    places = torch.arange(count, dtype=torch.float64, device="cpu")
    waves: Tensor = torch.cos(math.pi * places[:, None] * (places + 0.5) / count) * (2 / count) ** 0.5
    waves[0] /= 2**0.5
    return waves


class GaussianMemories(nn.Module):
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

    @property
    def bytes_each(self) -> int:
        """What one memory weighs."""
        return sum(math.prod(buffer.shape[1:]) * buffer.element_size() for buffer in self.buffers())

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
        room, data = self.directions.shape[1], seen.cpu().double()  # not every device has float64
        features, count = data.shape[1], min(room, len(data) // IMAGES_A_DIRECTION)
        mean = data.mean(0)
        values, vectors = _principal(data - mean, count)
        rest = torch.tensor(1 / features, dtype=data.dtype)  # one sample does not show how they vary: as if at random
        if len(data) > 1:
            rest = ((data.var(0).sum() - values.sum()) / (features - count)).clamp_min(LEAST_VARIANCE)
        new = GaussianMemories(features, room)
        gaussian = {
            "means": mean,
            "directions": pad(vectors, (0, 0, 0, room - count)),
            "variances": torch.maximum(pad(values, (0, room - count)), rest),
            "rests": rest,
        }
        new._buffers |= {name: value.to(getattr(self, name))[None] for name, value in gaussian.items()}
        own = new.log_likelihood(held_out)[:, 0]
        spread = own.std() if len(own) > 1 else torch.zeros_like(own[0])
        least = math.sqrt(features / 2)  # few samples say too little: a Gaussian's deviation is as much
        new._buffers["usual"] = torch.stack([own.mean(), spread.clamp_min(least)])[None].to(self.usual)
        both = zip(self.named_buffers(), new.buffers(), strict=True)
        self._buffers |= {name: torch.cat([ours, theirs]) for (name, ours), theirs in both}

    @torch.no_grad()
    def log_likelihood(self, hashed: Tensor) -> Tensor:
        """hashed: (n, s). Returns log p(h) of every row under every memory: (n, memories)."""
        along, across = self._apart(hashed)
        features, count = self.means.shape[1], self.variances.shape[1]
        volume = self.variances.log().sum(1) + (features - count) * self.rests.log() + features * math.log(2 * math.pi)
        likely: Tensor = -0.5 * ((along.square() / self.variances).sum(2) + across / self.rests + volume)
        return likely.to(self.means)

    @torch.no_grad()
    def divergence(self, hashed: Tensor) -> Tensor:
        """hashed: (n, s), a batch of the same kind. Returns how far its Gaussian is from every memory: (memories,).

        The Kullback-Leibler divergence in nats, directions of a memory taken as those of the batch: near 0 for more of
        the same data, whatever its likelihood. What n samples would differ by in the mean is subtracted.
        """
        n, held = len(hashed), self.directions.any(2)  # (memories, m) not those of zeros
        others = self.means.shape[1] - held.sum(1)
        along, across = self._apart(hashed)  # of which the mean square is variance + shift^2
        one_less = min(1, n - 1)
        shift, spread = along.mean(0), along.var(0, correction=one_less)
        spare = hashed.var(0, correction=one_less).sum() - spread.sum(1)  # summed over all other directions
        drift = (across.mean(0) - spare * (n - 1) / n).clamp_min(0) - spare / n
        inside = (held * (shift.square() / self.variances + _excess(spread, self.variances))).sum(1)
        outside = drift / self.rests + others * _excess(spare / others, self.rests)
        divergence: Tensor = 0.5 * (inside + outside)
        return divergence.to(self.means)

    def _apart(self, hashed: Tensor) -> tuple[Tensor, Tensor]:
        """q, (n, memories, m), and |c|^2 - |q|^2, (n, memories), of which little is left where data hardly varies."""
        exact = torch.float32 if hashed.device.type == "mps" else torch.float64
        hashed, means, directions = (each.to(exact) for each in (hashed, self.means, self.directions))
        several, count, _ = directions.shape
        products = hashed @ torch.cat([directions.flatten(0, 1), means]).T
        centre = (directions @ means[:, :, None])[..., 0]
        along = products[:, : several * count].view(len(hashed), several, count) - centre
        distance = hashed.square().sum(1)[:, None] - 2 * products[:, several * count :] + means.square().sum(1)
        return along, (distance - along.square().sum(2)).clamp_min(0)

    def extra_repr(self) -> str:
        return f"{len(self)} of {self.directions.shape[1]} directions in {self.means.shape[1]} dimensions"


def _principal(centred: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest variances of centred rows, falling, (count,), and the directions they belong to, (count, s)."""
    from scipy.linalg import eigh  # takes a while, and nothing else needs it

    n, features = centred.shape
    if not count:
        return centred.new_zeros(0), centred.new_zeros(0, features)
    covariance = (centred.T @ centred / max(1, n - 1)).numpy()
    values, vectors = eigh(covariance, subset_by_index=[features - count, features - 1])
    return torch.from_numpy(values[::-1].copy()).clamp_min(0), torch.from_numpy(vectors.T[::-1].copy())


def _excess(variances: Tensor, remembered: Tensor) -> Tensor:
    """r - 1 - log r of two variances' ratio r: 0 where they agree, above elsewhere."""
    ratio = variances.clamp_min(LEAST_VARIANCE) / remembered
    return ratio - 1 - ratio.log()
