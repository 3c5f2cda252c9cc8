"""The paper's scenarios: pairs of MNIST, Fashion then MNIST, SVHN then CIFAR-100; and CIFAR-100 alone."""

from __future__ import annotations

from collections.abc import Sequence

from hashroute.data import load_dataset
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Augmentation, Scenario, Task, choose_classes, hold_out

STATISTICS = {
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
    "cifar-100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}
"""Mean and std of each data set's training pixels, as published."""

AUGMENTATIONS: dict[str, tuple[Augmentation, ...]] = {
    "mnist": ("shift",),
    "fashion-mnist": ("flip", "shift"),
    "cifar-100": ("flip", "shift"),
    "svhn": ("shift",),
}


def dataset_task(dataset: str, name: str, classes: Sequence[int] | None = None) -> Task:
    """A task made of some classes of a data set, or of all; a tenth of its training images is for validation."""
    data = load_dataset(dataset)
    classes = range(len(data.class_names)) if classes is None else classes
    train, validation = hold_out(choose_classes(data.train, classes), name)
    names = tuple(data.class_names[label] for label in classes)
    mean, std = STATISTICS[dataset]
    test = choose_classes(data.test, classes)
    return Task(name, train, validation, test, names, frozenset(AUGMENTATIONS[dataset]), mean, std, dataset)


def cifar_tasks() -> list[Task]:
    """CIFAR-100 in ten tasks of ten classes, in the order of the labels."""
    starts = range(0, 100, 10)
    return [dataset_task("cifar-100", f"CIFAR {first}-{first + 9}", range(first, first + 10)) for first in starts]


@register_scenario("pairwise-mnist")
def pairwise_mnist() -> Scenario:
    """MNIST as five pairs of digits: 0 or 1, 2 or 3, ..., 8 or 9."""
    tasks = [dataset_task("mnist", f"{first} or {first + 1}", (first, first + 1)) for first in range(0, 10, 2)]
    return Scenario("pairwise-mnist", tuple(tasks))


@register_scenario("fashion-mnist")
def fashion_mnist() -> Scenario:
    """Ten garments, then ten digits."""
    tasks = (dataset_task("fashion-mnist", "Fashion"), dataset_task("mnist", "MNIST"))
    return Scenario("fashion-mnist", tasks)


@register_scenario("svhn-cifar100")
def svhn_cifar100() -> Scenario:
    """House numbers, then CIFAR-100 in ten tasks of ten classes."""
    return Scenario("svhn-cifar100", (dataset_task("svhn", "SVHN"), *cifar_tasks()))


@register_scenario("split-cifar100")
def split_cifar100() -> Scenario:
    """CIFAR-100 in ten tasks of ten classes."""
    return Scenario("split-cifar100", tuple(cifar_tasks()))
