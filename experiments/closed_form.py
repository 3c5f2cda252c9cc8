"""Two linear heads from the same sums over fixed features: ridge regression, and discriminant analysis.

Ridge regression fits one-hot labels: rare classes get low scores. Discriminant analysis compares an image with the mean
of each class, by the covariance within classes. Accuracies are averaged over tasks, of at most 2,000 images each.

usage: python experiments/closed_form.py [SCENARIO ...]
Writes experiments/results/closed_form.json.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute import Scenario, load_scenario
from hashroute.nn.closed_form import ClosedForm, Solution
from hashroute.nn.patches import PatchFeatures
from hashroute.storage import write_json
from hashroute.training.workers import keep_memory

OUTPUT = Path(__file__).parent / "results" / "closed_form.json"
FEATURES = 1792
RIDGES = (3e-4, 1e-3, 4e-3)
MOST = 2000


def ridge_regression(sums: ClosedForm, ridge: float) -> Solution:
    """The linear head with the least squared error on one-hot labels, with a penalty."""
    counts, totals = sums.counts.double(), sums.sums.double()
    mean = totals.sum(0) / counts.sum()
    covariance = sums.square() - counts.sum() * torch.outer(mean, mean)
    covariance.diagonal().add_(ridge * covariance.diagonal().mean())
    weight = torch.cholesky_solve(totals.T - torch.outer(mean, counts), torch.linalg.cholesky(covariance))
    return Solution(weight.float(), (counts / counts.sum() - mean @ weight).float())


def share_right(head: Solution, asked: list[tuple[Tensor, Tensor, slice]]) -> dict[str, float]:
    """Percent right, averaged over tasks. asked: features, labels and columns of each task."""
    free, aware = [], []
    for features, labels, columns in asked:
        scores = head(features)
        free.append((scores.argmax(1) == labels + columns.start).double().mean())
        aware.append((scores[:, columns].argmax(1) == labels).double().mean())
    found = {"task-free": free, "task-aware": aware}
    return {name: round(100 * torch.stack(each).mean().item(), 2) for name, each in found.items()}


def measure(scenario: Scenario) -> dict[str, Any]:
    patches, sums = PatchFeatures(scenario.image_shape, FEATURES), ClosedForm(FEATURES)
    asked: dict[str, list[tuple[Tensor, Tensor, slice]]] = {"validation": [], "test": []}
    for task in scenario.tasks:
        mirror, first = "flip" in task.augmentations, sums.classes
        sums.add(patches(task.train.images[:], mirror, whole=True), task.train.labels + first)
        for part, own in asked.items():
            split = getattr(task, part)
            own.append((patches(split.images[:MOST], mirror), split.labels[:MOST], slice(first, sums.classes)))
    heads = {"ridge regression": ridge_regression, "discriminant analysis": ClosedForm.solve}
    return {
        name: {
            str(ridge): {part: share_right(solve(sums, ridge), own) for part, own in asked.items()} for ridge in RIDGES
        }
        for name, solve in heads.items()
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    keep_memory()
    found = {}
    for name in sys.argv[1:] or ["pairwise-mnist", "split-cifar100", "svhn-cifar100", "mixed"]:
        found[name] = measure(load_scenario(name))
        write_json(OUTPUT, {"features": FEATURES, "scenarios": found})
        print(name, found[name], flush=True)
