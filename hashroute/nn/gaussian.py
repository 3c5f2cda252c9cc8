"""Gaussian memories: what the data of a task was like, as a small Gaussian over hash vectors of the edges in images.

The Gaussian of the hash vectors h of a task has a mean mu, m principal directions V with variances lambda, and one
variance `rest` for all other directions. With c = h - mu and q = V c,

    -2 log p(h) = sum_i q_i^2 / lambda_i + (|c|^2 - |q|^2) / rest + sum_i log lambda_i + (s - m) log rest + s log 2 pi

A memory of few samples has fewer directions, and zeros in place of the others.

One matrix product scores all memories, because V and mu of all memories form one matrix. A sample has a likelihood. A
batch has a Gaussian of its own, whose divergence from a memory says how different the data is.

The likelihood alone does not show that an image is strange: a smooth image may be more likely than all known data. So a
memory also keeps the usual range of six numbers: the two terms of the likelihood, and the texture of images.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, pad

LEAST_VARIANCE = 1e-10
"""The smallest variance of a direction. Constant data would otherwise make everything else infinitely unlikely."""

IMAGES_A_DIRECTION = 25
"""Samples per principal direction. With fewer, the directions describe the samples and not the data."""

TAIL = 0.005
"""Share of held-out samples on each side that are outside of the usual range of a number."""

FALSE_ALARMS = 0.01
"""Share of held-out samples that a memory may find strange."""

FEW = 10
"""Few samples do not show what is usual: the limit of a memory with n of them is higher by a share of FEW / n."""

LEAST_RANGE = 0.05
"""The smallest distance from the median to the end of a range. All numbers are logarithms."""

EDGES = 8
"""Side of the grid on which edges are averaged."""

FEWER_RANGES = 4
"""Numbers whose ranges memories had before colour and direction were looked at."""

TEXTURES = 4
"""Numbers about the texture of an image."""

NO_SLOPE, FAINT_SLOPE = 1e-3, 0.1
"""Slopes, in steps of 255 from one pixel to the next, that are added before a logarithm."""


def edges(images: Tensor, pool: Callable[[Tensor, int], Tensor] = adaptive_avg_pool2d) -> Tensor:
    """Slopes and curvatures of images, averaged on a grid: they tell kinds of data apart.

    images: (n, channels, height, width). Channels are transformed into their mean and their differences. Returns the
    square roots of mean slopes to the right, left, down and up, and of mean curvatures across and down: (n, 6 channels,
    8, 8). Brightness does not matter, and contrast is only a factor. pool: averages maps on a grid of a side.
    """
    waves = _cosines(images.shape[1]).to(images)
    # Terms are added one by one, so that all machines round in the same way: square roots enlarge small differences.
    weighted = (wave[:, None, None] * channel for wave, channel in zip(waves.T, images.split(1, 1), strict=True))
    images = reduce(torch.add, weighted)
    across, down = images.diff(dim=3), images.diff(dim=2)
    slopes = [each.clamp_min(0) for slope in (across, down) for each in (slope, -slope)]
    bends = [across.diff(dim=3).abs(), down.diff(dim=2).abs()]
    return torch.cat([pool(each, EDGES) for each in slopes + bends], 1).sqrt()


def texture(found: Tensor) -> Tensor:
    """Four numbers about the texture of images, each a logarithm.

    The mean slope; curvature beside slope; slopes of colour beside those of brightness; slopes to the right and left
    beside those down and up. found: (n, 6 channels, 8, 8) what `edges` gives for pixels from 0 to 255. Returns (n, 4).
    Noise and patterns have slopes, or curvatures, that photographs and drawings do not have, and grey images have no
    colour.
    """
    means = found.square().unflatten(1, (6, -1)).mean((3, 4))  # (n, slopes and curvatures, channels)
    slopes, bends = means[:, :4].mean(1), means[:, 4:].mean(1)  # (n, channels)
    across, down = means[:, :2, 0].mean(1), means[:, 2:4, 0].mean(1)
    mean = (slopes.sum(1) + NO_SLOPE).log()
    relative = ((bends[:, 0] + NO_SLOPE) / (slopes[:, 0] + NO_SLOPE)).log()
    colour = ((slopes[:, 1:].sum(1) + FAINT_SLOPE) / (slopes[:, 0] + FAINT_SLOPE)).log()
    if slopes.shape[1] == 1:
        colour = torch.zeros_like(colour)
    direction = ((across + FAINT_SLOPE) / (down + FAINT_SLOPE)).log()
    return torch.stack([mean, relative, colour, direction], 1)


@lru_cache
def _cosines(count: int) -> Tensor:
    """(count, count) the orthonormal cosine transform; for colours: brightness, red - blue, red + blue - 2 green."""
    places = torch.arange(count, dtype=torch.float64, device="cpu")
    waves: Tensor = torch.cos(math.pi * places[:, None] * (places + 0.5) / count) * (2 / count) ** 0.5
    waves[0] /= 2**0.5
    return waves


class GaussianMemories(nn.Module):
    """The Gaussian memories of several tasks, over hash vectors of length s.

    Args:
        features: s.
        directions: m.
    """

    means: Tensor
    directions: Tensor
    variances: Tensor
    rests: Tensor
    usual: Tensor
    ranges: Tensor
    limits: Tensor

    def __init__(self, features: int, directions: int) -> None:
        super().__init__()
        if not 1 <= directions < features:
            raise ValueError(f"directions is {directions}: expected at least 1 and fewer than features={features}")
        self.register_buffer("means", torch.zeros(0, features))  # mu: (memories, s)
        self.register_buffer("directions", torch.zeros(0, directions, features))  # V: (memories, m, s)
        self.register_buffer("variances", torch.zeros(0, directions))  # lambda: (memories, m)
        self.register_buffer("rests", torch.zeros(0))  # (memories,)
        self.register_buffer("usual", torch.zeros(0, 2))  # mean and std of the log-likelihood of its own data
        self.register_buffer(
            "ranges", torch.zeros(0, 2 + TEXTURES, 3)
        )  # median of each number, and distances to its ends
        self.register_buffer("limits", torch.zeros(0))  # the strangeness up to which data is familiar
        self._kept: tuple[tuple[Any, ...], tuple[Tensor, Tensor, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.means)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": None}  # a copy makes its own tables

    @property
    def bytes_each(self) -> int:
        """The bytes of one memory."""
        return sum(math.prod(buffer.shape[1:]) * buffer.element_size() for buffer in self.buffers())

    def reserve(self, memories: int) -> None:
        """Make room for this many memories, to load a state into."""
        for name, buffer in self._buffers.items():
            assert buffer is not None
            self._buffers[name] = buffer.new_zeros(memories, *buffer.shape[1:])

    @torch.no_grad()
    def write(self, seen: Tensor, held_out: Tensor, textures: Tensor | None = None) -> None:
        """Add a memory; it never changes afterwards.

        seen: (n, s) hash vectors of the data. held_out: (k, s) other hash vectors of the same data. They give the usual
        log-likelihood and ranges, because a Gaussian overrates the samples that it was fitted to. textures: (k, 4) of
        the held-out images; without them every texture is familiar.
        """
        room, data = self.directions.shape[1], seen.cpu().double()  # not every device has float64
        features, count = data.shape[1], min(room, len(data) // IMAGES_A_DIRECTION)
        mean = data.mean(0)
        values, vectors = _principal(data - mean, count)
        rest = torch.tensor(
            1 / features, dtype=data.dtype
        )  # one sample does not show a variance: assume a random vector
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
        least = math.sqrt(features / 2)  # the std of a Gaussian's log-likelihood: few samples may show less
        new._buffers["usual"] = torch.stack([own.mean(), spread.clamp_min(least)])[None].to(self.usual)
        new.calibrate(held_out, textures)
        both = zip(self.named_buffers(), new.buffers(), strict=True)
        self._buffers |= {name: torch.cat([ours, theirs]) for (name, ours), theirs in both}

    @torch.no_grad()
    def calibrate(self, held_out: Tensor, textures: Tensor | None = None) -> None:
        """Set the ranges and the limit of a single memory by held-out data: (k, s), and its textures: (k, 4)."""
        facts = self.facts(held_out, textures)[:, 0]
        low, middle, high = facts.quantile(facts.new_tensor([TAIL, 0.5, 1 - TAIL]), 0)
        below, above = (each.clamp_min(LEAST_RANGE) for each in (middle - low, high - middle))
        if textures is None:
            below[2:] = above[2:] = torch.inf
        self._buffers["ranges"] = torch.stack([middle, below, above], 1)[None].to(self.means)
        own = self.strangeness(held_out, textures)[:, 0].double()
        self._buffers["limits"] = (own.quantile(1 - FALSE_ALARMS) * (1 + FEW / len(own)))[None].to(self.means)

    @torch.no_grad()
    def strangeness(self, hashed: Tensor, textures: Tensor | None = None) -> Tensor:
        """(n, memories) how far images are outside of the usual ranges, on either side; compare it with `limits`.

        hashed: (n, s). textures: (n, 4), as `texture` gives them.
        """
        middle, below, above = self.ranges.to(torch.promote_types(hashed.dtype, self.means.dtype)).unbind(2)
        distance = self.facts(hashed, textures) - middle
        strange: Tensor = torch.where(distance < 0, distance / below, distance / above).norm(dim=2)
        return strange.to(self.means)

    def facts(self, hashed: Tensor, textures: Tensor | None = None) -> Tensor:
        """(n, memories, 6) the logs of the two terms of the likelihood, and the texture."""
        along, across = self._apart(hashed)
        terms = ((along.square() / self.variances).sum(2), across / self.rests)
        logs = torch.stack([term.clamp_min(LEAST_VARIANCE).log() for term in terms], 2)
        looks = logs.new_zeros(len(hashed), TEXTURES) if textures is None else textures.to(logs)
        return torch.cat([logs, looks[:, None].expand(-1, len(self), -1)], 2)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *arguments: Any) -> None:
        """Memories that were saved before there were ranges have none, and no limit: infinity."""
        for name, value in (("ranges", 1.0), ("limits", torch.inf)):
            if prefix + name not in state_dict:
                state_dict[prefix + name] = torch.full_like(getattr(self, name), value)
        state_dict[prefix + "ranges"] = all_ranges(state_dict[prefix + "ranges"])
        super()._load_from_state_dict(state_dict, prefix, *arguments)

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
        """The Kullback-Leibler divergence of the Gaussian of a batch from every memory, in nats: (memories,).

        hashed: (n, s). The batch is described along the directions of each memory. The result is near 0 for more of the
        same data, whatever its likelihood: the expected divergence of n samples is subtracted.
        """
        n, held = len(hashed), self.directions.any(2)  # (memories, m) directions that are in use
        others = self.means.shape[1] - held.sum(1)
        along, across = self._apart(hashed)  # its mean square is variance + shift^2
        one_less = min(1, n - 1)
        shift, spread = along.mean(0), along.var(0, correction=one_less)
        spare = hashed.var(0, correction=one_less).sum() - spread.sum(1)  # the sum over all other directions
        drift = (across.mean(0) - spare * (n - 1) / n).clamp_min(0) - spare / n
        inside = (held * (shift.square() / self.variances + _excess(spread, self.variances))).sum(1)
        outside = drift / self.rests + others * _excess(spare / others, self.rests)
        divergence: Tensor = 0.5 * (inside + outside)
        return divergence.to(self.means)

    def _apart(self, hashed: Tensor) -> tuple[Tensor, Tensor]:
        """q, (n, memories, m), and |c|^2 - |q|^2, (n, memories); float64, because data that hardly varies cancels."""
        several, count, _ = self.directions.shape
        rows, centre, squares = self._tables()
        hashed = hashed.to(rows)
        products = hashed @ rows.T
        along = products[:, : several * count].unflatten(1, (several, count)) - centre
        distance = hashed.square().sum(1)[:, None] - 2 * products[:, several * count :] + squares
        return along, (distance - along.square().sum(2)).clamp_min(0)

    def _tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """V and mu of all memories as one matrix, V mu, and |mu|^2. They are kept until a memory changes."""
        if torch.compiler.is_compiling() or self.means.is_inference() or self.directions.is_inference():
            return self._new_tables()
        present = (self.means, self.means._version, self.directions, self.directions._version)
        if self._kept is None or not _same(self._kept[0], present):
            self._kept = present, self._new_tables()
        return self._kept[1]

    def _new_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        exact = torch.float32 if self.means.device.type == "mps" else torch.float64
        means, directions = self.means.to(exact), self.directions.to(exact)
        rows = torch.cat([directions.flatten(0, 1), means])
        return rows, (directions @ means[:, :, None])[..., 0], means.square().sum(1)

    def extra_repr(self) -> str:
        return f"{len(self)} of {self.directions.shape[1]} directions in {self.means.shape[1]} dimensions"


def all_ranges(ranges: Tensor) -> Tensor:
    """Ranges of all six numbers: (..., 6, 3). Memories that were saved with four find anything usual in the others."""
    if ranges.shape[-2:] != (FEWER_RANGES, 3):
        return ranges
    more = ranges.new_tensor([0, torch.inf, torch.inf]).expand(*ranges.shape[:-2], 2 + TEXTURES - FEWER_RANGES, 3)
    return torch.cat([ranges, more], -2)


def _same(ours: tuple[Any, ...], theirs: tuple[Any, ...]) -> bool:
    """Whether these are the same tensors, in the same versions."""
    return all(
        one is other if isinstance(one, Tensor) else one == other for one, other in zip(ours, theirs, strict=True)
    )


def _principal(centred: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The largest variances of centred rows in descending order, (count,), and their directions, (count, s)."""
    from scipy.linalg import eigh  # slow to import, and nothing else needs it

    n, features = centred.shape
    if not count:
        return centred.new_zeros(0), centred.new_zeros(0, features)
    covariance = (centred.T @ centred / max(1, n - 1)).numpy()
    values, vectors = eigh(covariance, subset_by_index=[features - count, features - 1])
    return torch.from_numpy(values[::-1].copy()).clamp_min(0), torch.from_numpy(vectors.T[::-1].copy())


def _excess(variances: Tensor, remembered: Tensor) -> Tensor:
    """r - 1 - log r for the ratio r of two variances: 0 if they agree, positive otherwise."""
    ratio = variances.clamp_min(LEAST_VARIANCE) / remembered
    return ratio - 1 - ratio.log()
