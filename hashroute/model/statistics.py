"""What a model keeps of the features of a task: enough to train its head further when the images are gone.

The features of each class are described by a mean, and all classes of a task by one covariance: some principal
directions with variances, and one variance for all other directions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DIRECTIONS = 32
"""Principal directions that are kept."""
SAMPLES = 1000
"""Images from which the directions are computed, at most."""
LEAST_VARIANCE = 1e-12


@dataclass(frozen=True)
class Spread:
    """A covariance: directions (m, s), their variances (m,), and the variance of all other directions."""

    directions: Tensor
    variances: Tensor
    rest: Tensor

    @classmethod
    def of(cls, centred: Tensor, count: int, total: Tensor | None = None) -> Spread:
        """The spread of rows around 0: (n, s), with at most `count` directions.

        total: the sum of all variances, if rows do not show it.
        """
        rows, size = centred.double(), centred.shape[1]
        if total is None:
            total = rows.square().sum() / max(1, len(rows))
        kept = min(count, len(rows), size - 1)
        values, vectors = torch.linalg.eigh(rows @ rows.T / max(1, len(rows)))  # few rows, many dimensions
        values, vectors = values.flip(0)[:kept].clamp_min(LEAST_VARIANCE), vectors.flip(1)[:, :kept]
        directions = torch.nn.functional.normalize(vectors.T @ rows, dim=1)
        rest = ((total - values.sum()) / (size - kept)).clamp_min(LEAST_VARIANCE)
        return cls(directions.float(), values.float(), rest.float())

    def joined(self, other: Spread, share: float, shift: Tensor | None = None) -> Spread:
        """The spread of two groups; `share` is that of the other one, `shift` the difference of their means."""
        size, count = self.directions.shape[1], max(len(self.variances), len(other.variances))
        parts = [(1 - share, self), (share, other)]
        rows = [(weight * each.variances)[:, None].sqrt() * each.directions for weight, each in parts]
        total = sum(
            weight * (each.variances.sum() + (size - len(each.variances)) * each.rest) for weight, each in parts
        )
        if shift is not None:
            rows.append((share * (1 - share)) ** 0.5 * shift[None])
            total = total + share * (1 - share) * shift.square().sum()
        stacked = torch.cat(rows)
        return Spread.of(stacked * len(stacked) ** 0.5, count, torch.as_tensor(total).double())

    def sample(self, count: int) -> Tensor:
        """(count, s) random rows with this spread."""
        along = torch.randn(count, len(self.variances)) * (self.variances - self.rest).clamp_min(0).sqrt()
        return along @ self.directions + torch.randn(count, self.directions.shape[1]) * self.rest.sqrt()


@dataclass(frozen=True)
class ClassStatistics:
    """The features of a task, by class."""

    counts: Tensor
    """(classes,) how many images each class had."""
    means: Tensor
    """(classes, s)"""
    spread: Spread

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int) -> ClassStatistics:
        """The statistics of features (n, s) with labels (n,)."""
        features, labels = features.float().cpu(), labels.cpu()
        counts = labels.bincount(minlength=classes)
        means = torch.zeros(classes, features.shape[1]).index_add_(0, labels, features) / counts.clamp_min(1)[:, None]
        rows = torch.linspace(0, len(features) - 1, min(SAMPLES, len(features))).round().long()
        return cls(counts, means, Spread.of(features[rows] - means[labels[rows]], DIRECTIONS))

    def joined(self, other: ClassStatistics) -> ClassStatistics:
        """The statistics of both; the other ones have these classes and perhaps more."""
        more = len(other.counts) - len(self.counts)
        counts = torch.cat([self.counts, self.counts.new_zeros(more)])
        means = torch.cat([self.means, self.means.new_zeros(more, self.means.shape[1])])
        both = counts + other.counts
        means = (counts[:, None] * means + other.counts[:, None] * other.means) / both.clamp_min(1)[:, None]
        share = (other.counts.sum() / both.sum()).item()
        return ClassStatistics(both, means, self.spread.joined(other.spread, share))

    def sample(self, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Random features, this many of each class, and their labels."""
        labels = torch.arange(len(self.counts)).repeat_interleave(torch.as_tensor(counts))
        return self.means[labels] + self.spread.sample(len(labels)), labels

    def tensors(self) -> dict[str, Tensor]:
        """The statistics, for a file."""
        spread = self.spread
        parts = {"directions": spread.directions, "variances": spread.variances, "rest": spread.rest}
        return {"counts": self.counts, "means": self.means, **parts}

    @classmethod
    def from_tensors(cls, found: dict[str, Tensor], classes: int, features: int) -> ClassStatistics:
        """The statistics that `tensors` gave, of this many classes and features."""
        count = len(found["variances"]) if "variances" in found and found["variances"].dim() == 1 else 0
        shapes = {"counts": (classes,), "means": (classes, features), "directions": (count, features)}
        shapes |= {"variances": (count,), "rest": ()}
        for name, shape in shapes.items():
            if name not in found or found[name].shape != shape or found[name].is_floating_point() == (name == "counts"):
                raise ValueError(f"{name} of the statistics of features do not fit the model: run hashroute verify")
        if (found["counts"] < 0).any():
            raise ValueError("counts of the statistics of features are below 0: run hashroute verify")
        spread = Spread(found["directions"], found["variances"], found["rest"])
        return cls(found["counts"], found["means"], spread)
