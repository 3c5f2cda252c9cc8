"""Tasks made of data sets, for several scenarios."""

from __future__ import annotations

from collections.abc import Sequence

from hashroute.data import DATASETS, load_dataset
from hashroute.tasks import Split, Task, choose_classes, hold_out


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
