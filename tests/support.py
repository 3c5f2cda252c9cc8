"""What several tests share."""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hashroute import HashRoutedNetwork, Learner, Scenario, Task, UnitSpec, create_learner, load_scenario
from hashroute.data import DATASETS, data_folder
from hashroute.images import Images
from hashroute.learners import files
from hashroute.learners.entries import Batch, TaskEntry
from hashroute.learners.growth import Decision, Growth, HRNEntry
from hashroute.learners.hrn import HRN
from hashroute.learners.objectives import Objective
from hashroute.recipe import Recipe, recipe_for

NEEDS = {
    "digits": [],
    "pairwise-mnist": ["mnist"],
    "fashion-mnist": ["fashion-mnist", "mnist"],
    "svhn-cifar100": ["svhn", "cifar-100"],
    "split-cifar100": ["cifar-100"],
    "mixed": ["svhn", "cifar-100", "mnist", "fashion-mnist"],
    "upl-mnist": ["mnist"],
    "upl-svhn": ["svhn"],
    "upl-cifar100": ["cifar-100"],
}
"""The data sets that each scenario is made of."""


def is_here(dataset: str) -> bool:
    """Whether the files of a data set are in the data folder; they are not read."""
    return not DATASETS[dataset].missing(data_folder() / DATASETS[dataset].folder)


SMALL_UNITS = (
    UnitSpec(4, 3, 1, 1, norm_groups=1),
    UnitSpec(6, 3, 2, 1),
    UnitSpec(3, 2, 1, 1, max_pool=2),
    UnitSpec(4, 3, 2, 1, norm_groups=2),
)


def small_network(*, seed: int = 0, **settings: Any) -> HashRoutedNetwork:
    """Four small units for 8 x 8 images of two channels."""
    torch.manual_seed(seed)
    return HashRoutedNetwork((2, 8, 8), **{"units": SMALL_UNITS, "features": 32, "seed": seed, **settings})


def some_images(n: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(n, 2, 8, 8, generator=torch.Generator().manual_seed(seed))


def train(network: HashRoutedNetwork, steps: int = 20, seed: int = 0, optimizer: Any = None) -> list[float]:
    """A few steps on a made-up task; returns the losses."""
    optimizer = optimizer or torch.optim.Adam(network.parameters(), 1e-2)
    target = torch.randn(network.features, generator=torch.Generator().manual_seed(seed))
    losses = []
    for step in range(steps):
        loss = (network(some_images(seed=1000 * seed + step)).features @ target - 1).square().mean()
        optimizer.zero_grad()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# ------------------------------------------------------------------------ learners

QUICK: dict[str, dict[str, Any]] = {"ewc": {"samples": 60}}
"""Options with which a learner takes less time."""


@cache
def digits(tasks: int = 2, share: float = 1.0) -> Scenario:
    """The first tasks of `digits`, with a share of their images."""
    return Scenario("digits", load_scenario("digits").tasks[:tasks]).part(share)


def short_recipe(epochs: int = 2, **changes: Any) -> Recipe:
    """The default recipe for `digits`, with few epochs."""
    return replace(recipe_for((1, 8, 8), classes=2), epochs=(epochs,), **changes)


def fresh(name: str = "hrn", epochs: int = 2, **options: Any) -> Any:
    """A learner for `digits` that has learned nothing yet, with options that make it quick."""
    return create_learner(name, (1, 8, 8), short_recipe(epochs), **QUICK.get(name, {}) | options)


def learned(name: str, tasks: int = 2, epochs: int = 2, **options: Any) -> Any:
    """A learner after the first tasks of `digits`: a copy of one that is trained once."""
    return copy.deepcopy(_learned(name, tasks, epochs, **options))


@cache
def _learned(name: str, tasks: int, epochs: int, **options: Any) -> Learner:
    learner = fresh(name, epochs, **options)
    for task in digits(tasks).tasks:
        learner.learn(task)
    return learner


class GrowAlways(Growth):
    """Every fork is kept."""

    always = True

    def earned(self, task: HRNEntry, decision: Decision) -> bool:
        return super().earned(task, decision) or self.always


class Grower(HRN):
    """An `hrn` with a path for every task."""

    Growth = GrowAlways


class Stored(Images):
    """Images of a tensor, as if they were in files; counts how many are read."""

    def __init__(self, images: Tensor) -> None:
        super().__init__(images.shape[1:], len(images))
        self.pixels = images.numpy()
        self.reads = [0]
        self.broken = -1

    def read(self, row: int) -> NDArray[np.uint8]:
        if row == self.broken:
            raise OSError(f"image {row} cannot be read")
        self.reads[0] += 1
        return self.pixels[row]


class Brightness(Objective):
    """Tell how bright an image is: one real number."""

    score_name = "negative error"

    def outputs(self, task: TaskEntry) -> int:  # noqa: ARG002
        return 1

    def prepare(self, batch: Batch) -> Batch:
        return batch._replace(targets=batch.images.mean((1, 2, 3)))

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.mse_loss(outputs[:, 0], targets)

    def scores(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return -(outputs[:, 0] - targets).square()


def accuracy(learner: Learner, task: Task) -> float:
    """The share of right answers to the test images of a task that was learned."""
    return (learner.predict(task.test.images, task.name) == task.test.labels).double().mean().item()


def assert_one_clear_line(make: Callable[[], object], message: str) -> None:
    """A mistake is a ValueError that matches a message and is one line of bearable length."""
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def tensors_of(folder: Path) -> Path:
    """The file with the tensors of the model that was saved in a folder."""
    (found,) = folder.glob("*.safetensors")
    return found


def assert_same(one: Learner, other: Learner) -> None:
    """Two learners are the same, bit for bit, and so are all that they will learn."""
    assert files.describe(one) == files.describe(other)
    ours, theirs = files.state_of(one), files.state_of(other)
    assert ours.keys() == theirs.keys()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


def import_file(path: Path) -> Any:
    """The module in a file that is not part of the package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
