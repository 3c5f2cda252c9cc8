"""Tasks made of data sets, for several scenarios."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from hashroute.data import DATASETS, load_dataset
from hashroute.tasks import Split, Task, choose_classes, hold_out

PHASE = 10_000
"""Training images of a phase in STAM's protocol, at most."""


def dataset_task(dataset: str, name: str, classes: Sequence[int] | None = None) -> Task:
    """A task of some classes of a data set, or of all."""
    content = load_dataset(dataset)
    classes = range(len(content.class_names)) if classes is None else classes
    train, test = (choose_classes(split, classes) for split in (content.train, content.test))
    return labelled_task(dataset, name, train, test, tuple(content.class_names[label] for label in classes))


def labelled_task(dataset: str, name: str, train: Split, test: Split, class_names: tuple[str, ...]) -> Task:
    """A task with the statistics and augmentations of its data set; a tenth of `train` becomes validation."""
    spec = DATASETS[dataset]
    augmentations = frozenset(spec.augmentations)
    return Task(name, *hold_out(train, name), test, class_names, augmentations, spec.mean, spec.std, dataset)


def cifar_task(index: int) -> Task:
    """CIFAR-100 has ten tasks of ten classes, in the order of the labels; this is the one with this index."""
    first = 10 * index
    return dataset_task("cifar-100", f"CIFAR {first}-{first + 9}", range(first, first + 10))


def digit_phases(dataset: str, change: Callable[[Split], Split] = lambda split: split) -> tuple[Task, ...]:
    """Five tasks of two digits each, with at most `PHASE` images to train on, evenly of both digits.

    change: what becomes of all images.
    """
    content = load_dataset(dataset)
    most = round(PHASE / 2 / 0.9)  # of each digit; a tenth is held out
    tasks = []
    for first in range(0, 10, 2):
        train, test = (change(choose_classes(split, (first, first + 1))) for split in (content.train, content.test))
        rows = torch.cat([(train.labels == label).nonzero()[:most, 0] for label in (0, 1)]).sort().values
        names = content.class_names[first : first + 2]
        tasks.append(labelled_task(dataset, f"{first} or {first + 1}", train[rows], test, tuple(names)))
    return tuple(tasks)
