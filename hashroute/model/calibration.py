"""Calibration: the temperature that makes probabilities right on held-out images."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

COLDEST, HOTTEST = 0.02, 200.0
STEPS = 60


def temperature(scores: Tensor, labels: Tensor) -> float:
    """The temperature T for which softmax(scores / T) gives the labels the highest likelihood.

    scores: (n, classes), minus infinity where a class is ruled out; images whose own class is ruled out do not count.
    """
    scores, labels = scores.double().cpu(), labels.cpu()
    possible = scores.gather(1, labels[:, None])[:, 0].isfinite()
    if not possible.any() or scores.shape[1] < 2:
        return 1.0
    scores, labels = scores[possible], labels[possible]
    scores = scores - scores.amax(1, keepdim=True)
    if (scores.argmax(1) == labels).all():
        # All are right: the likelihood would grow for ever. One more image that is wrong bounds it.
        wrong = scores[:1].roll(1, 1) if len(set(scores[0].tolist())) > 1 else scores[:1]
        scores, labels = torch.cat([scores, wrong]), torch.cat([labels, labels[:1]])

    def cost(log_temperature: float) -> float:
        return F.cross_entropy(scores / math.exp(log_temperature), labels).item()

    low, high = math.log(COLDEST), math.log(HOTTEST)
    ratio = (math.sqrt(5) - 1) / 2
    for _ in range(STEPS):  # golden section: the cost has one minimum
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if cost(left) <= cost(right):
            high = right
        else:
            low = left
    return round(math.exp((low + high) / 2), 6)


def calibration_error(probabilities: Tensor, right: Tensor, bins: int = 15) -> float:
    """The expected calibration error: the mean difference of confidence and accuracy, over bins of confidence.

    probabilities: (n,) of the answers. right: (n,) whether they are right.
    """
    places = (probabilities * bins).long().clamp(0, bins - 1)
    weights = F.one_hot(places, bins).double()
    gaps = (weights.T @ (probabilities.double() - right.double())).abs()
    return (gaps.sum() / len(right)).item()
