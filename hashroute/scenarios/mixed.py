"""mixed: ten tasks from four data sets, some of which come back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from hashroute.data import load_dataset
from hashroute.scenarios.from_datasets import cifar_task, labelled_task
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario, Split, Task

PART = 5000
"""Training and validation images of each task."""

STREAM = (
    *("svhn", "cifar-100", "mnist", "cifar-100", "fashion-mnist"),
    *("cifar-100", "svhn", "cifar-100", "mnist", "cifar-100"),
)
TITLES = {"svhn": "SVHN", "mnist": "MNIST", "fashion-mnist": "Fashion"}


@register_scenario("mixed", epochs=(8,), datasets=tuple(sorted(set(STREAM))))
def mixed() -> Scenario:
    """SVHN, CIFAR, MNIST, CIFAR, Fashion, CIFAR, SVHN, CIFAR, MNIST, CIFAR: 5,000 images each, 32 x 32, in colour.

    Each CIFAR task has ten new classes. The second SVHN and MNIST tasks have the classes of the first ones and new
    images. Test sets are complete.
    """
    tasks: dict[int, Task] = {}
    for place, dataset in sorted(enumerate(STREAM), key=lambda each: each[1]):  # each data set is read once
        index = STREAM[:place].count(dataset)
        tasks[place] = cifar_task(index) if dataset == "cifar-100" else _part(dataset, index)
    return Scenario("mixed", tuple(tasks[place] for place in range(len(STREAM))))


def _part(dataset: str, index: int) -> Task:
    """One part of a data set: every class in proportion, no image in two parts."""
    content = load_dataset(dataset)
    name = TITLES[dataset] if index == 0 else f"{TITLES[dataset]}, part {index + 1}"
    rows = _proportional_order(content.train.labels)[index * PART : (index + 1) * PART]
    if len(rows) < PART:
        raise ValueError(f"{dataset} has {len(content.train)} training images: expected at least {(index + 1) * PART}")
    train, test = _in_colour(content.train[rows]), _in_colour(content.test)
    return labelled_task(dataset, name, train, test, content.class_names)


def _proportional_order(labels: Tensor) -> Tensor:
    """All rows, in an order in which every stretch has the classes in about the proportion of the whole."""
    generator = torch.Generator().manual_seed(0)
    place = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        shuffled = members[torch.randperm(len(members), generator=generator)]
        place[shuffled] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    return place.argsort(stable=True)


def _in_colour(split: Split) -> Split:
    """Images of 32 x 32 in three channels: smaller ones get a border of zeros, grey ones are repeated."""
    images = split.images[:]
    border = (32 - images.shape[-1]) // 2
    images = pad(images, (border,) * 4) if border else images
    return Split(images.expand(-1, 3, -1, -1).contiguous() if images.shape[1] == 1 else images, split.labels)
