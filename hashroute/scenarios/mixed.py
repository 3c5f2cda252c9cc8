"""mixed: a stream of unlike data sets, some of which come back."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from hashroute.data import load_dataset
from hashroute.scenarios.published import AUGMENTATIONS, STATISTICS, dataset_task
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario, Split, Task, hold_out

PART = 5000
"""Images to train and validate on in each task."""

STREAM = (
    *("svhn", "cifar-100", "mnist", "cifar-100", "fashion-mnist"),
    *("cifar-100", "svhn", "cifar-100", "mnist", "cifar-100"),
)
TITLES = {"svhn": "SVHN", "mnist": "MNIST", "fashion-mnist": "Fashion"}


@register_scenario("mixed")
def mixed() -> Scenario:
    """SVHN, CIFAR, MNIST, CIFAR, Fashion, CIFAR, SVHN, CIFAR, MNIST, CIFAR: 5,000 images each, 32 x 32, in colour.

    CIFAR tasks have ten new classes each; the second SVHN and MNIST tasks have the same classes as the first, and new
    images. Test sets are whole.
    """
    tasks: list[Task] = []
    for dataset in STREAM:
        seen = sum(task.dataset == dataset for task in tasks)
        if dataset == "cifar-100":
            first = 10 * seen
            tasks.append(dataset_task(dataset, f"CIFAR {first}-{first + 9}", range(first, first + 10)))
        else:
            tasks.append(_part(dataset, seen))
    return Scenario("mixed", tuple(tasks))


def _part(dataset: str, number: int) -> Task:
    """The part of a data set with this number: every class in proportion, no image in two parts."""
    data = load_dataset(dataset)
    name = TITLES[dataset] if number == 0 else f"{TITLES[dataset]}, part {number + 1}"
    rows = _deal(data.train.labels)[number * PART : (number + 1) * PART]
    if len(rows) < PART:
        raise ValueError(f"{dataset} has {len(data.train)} training images: expected at least {(number + 1) * PART}")
    train, validation = hold_out(_in_colour(data.train[rows]), name)
    mean, std = STATISTICS[dataset]
    return Task(
        name,
        train,
        validation,
        _in_colour(data.test),
        data.class_names,
        frozenset(AUGMENTATIONS[dataset]),
        mean,
        std,
        dataset,
    )


def _deal(labels: Tensor) -> Tensor:
    """All rows in an order in which any stretch has the classes in about the proportion of the whole."""
    generator = torch.Generator().manual_seed(0)
    place = torch.empty(len(labels), dtype=torch.float64)
    for label in labels.unique().tolist():
        members = (labels == label).nonzero()[:, 0]
        shuffled = members[torch.randperm(len(members), generator=generator)]
        place[shuffled] = (torch.arange(len(members), dtype=torch.float64) + 0.5) / len(members)
    return place.argsort(stable=True)


def _in_colour(split: Split) -> Split:
    """Images of 32 x 32 in three channels: zeros around smaller ones, grey ones three times."""
    images = split.images[:]
    border = (32 - images.shape[-1]) // 2
    images = pad(images, (border,) * 4) if border else images
    return Split(images.expand(-1, 3, -1, -1).contiguous() if images.shape[1] == 1 else images, split.labels)
