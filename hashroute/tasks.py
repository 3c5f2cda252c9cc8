"""Split, Task and Scenario: what is learned."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hashroute.images import Images as Images
from hashroute.images import batches_of as batches_of
from hashroute.images import read_ahead


@dataclass(frozen=True, eq=False)
class Split:
    """Images and labels: (n, channels, height, width) of uint8, in memory or not, and (n,) of int64."""

    images: Tensor | Images
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Any) -> Split:
        """Select images and their labels; `Images` are not read."""
        images = self.images[rows] if isinstance(self.images, Tensor) else self.images.take(rows)
        return Split(images, self.labels[rows])

    def read(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Images, read if they are not in memory, and labels."""
        return self.images[rows], self.labels[rows]

    def __repr__(self) -> str:
        return f"Split({len(self)} images of {tuple(self.images.shape[1:])})"


def read_batches(requests: Iterable[tuple[Split, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels for each request, a split and row numbers, in order.

    Tensors are indexed when their turn comes. `Images` are read by threads, a few batches ahead: for these, requests
    are taken before they are needed, so a request must not depend on random numbers that training draws.
    """
    return read_ahead((isinstance(split.images, Images), partial(split.read, rows)) for split, rows in requests)


Augmentation = Literal["flip", "shift"]
Data = Split | tuple[Tensor, Tensor] | Iterable[tuple[Any, Any]]
"""Images with labels: a split, two tensors, or a Dataset of pairs."""


@dataclass(frozen=True)
class Task:
    """One task: images to learn from, to choose settings with and to test on, and what its labels mean.

    Labels run from 0 to the number of classes less one, whatever they were in the data set.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    class_names: tuple[str, ...]
    augmentations: frozenset[Augmentation] = frozenset()
    """Changes of an image that keep its label: mirroring it, shifting it by two pixels."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """Of the data set's pixels, channel by channel, from 0 to 1: the published experiments scale by these."""
    dataset: str = ""
    """The data set that the images come from; by default one of the task's own."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"a task has the name {self.name!r}: expected text, such as {str(self.name)!r}")
        object.__setattr__(self, "class_names", tuple(self.class_names))
        if not self.dataset:
            object.__setattr__(self, "dataset", self.name)
        unknown = self.augmentations - set(get_args(Augmentation))
        if unknown:
            known = ", ".join(get_args(Augmentation))
            raise ValueError(f"task {self.name!r} has augmentations {sorted(unknown)}: expected some of {known}")
        shapes = {tuple(split.images.shape[1:]) for split in (self.train, self.validation, self.test)}
        if len(shapes) > 1:
            raise ValueError(f"task {self.name!r} has images of different shapes {sorted(shapes)}: make them alike")
        for part, split in (("train", self.train), ("validation", self.validation), ("test", self.test)):
            if len(split) == 0:
                raise ValueError(f"task {self.name!r} has no {part} images: it needs some to train, validate and test")
            if split.images.dtype != torch.uint8 or len(split.images.shape) != 4:
                raise ValueError(
                    f"the {part} images of task {self.name!r} are {split.images.dtype} of shape "
                    f"{tuple(split.images.shape)}: expected torch.uint8 of (number, channels, height, width)"
                )
            check_labels(split, self.name)
            top = int(split.labels.max())
            if int(split.labels.min()) < 0 or top >= len(self.class_names):
                raise ValueError(
                    f"the {part} labels of task {self.name!r} go from {int(split.labels.min())} to {top}: "
                    f"expected 0 to {self.classes - 1}, one for each of its {self.classes} class names"
                )

    @property
    def classes(self) -> int:
        """How many there are."""
        return len(self.class_names)

    @classmethod
    def from_data(
        cls,
        name: str,
        train: Data,
        test: Data,
        class_names: Sequence[str] | None = None,
        augmentations: Iterable[Augmentation] = (),
    ) -> Task:
        """A task from tensors or from Datasets of (image, label); a fixed tenth of train becomes validation.

        Images are uint8, or floating point from 0 to 1. Tasks whose classes have the same names have the same classes:
        classes without names get some that no other task has.
        """
        kept, held = hold_out(whole := _as_split(train, name), name)
        names = class_names or [f"{name}: {label}" for label in range(int(whole.labels.max()) + 1)]
        return cls(name, kept, held, _as_split(test, name), tuple(names), frozenset(augmentations))

    def part(self, fraction: float) -> Task:
        """The same task with a fixed fraction of its images, each class in proportion."""
        train, validation, test = (_fraction(split, fraction) for split in (self.train, self.validation, self.test))
        return replace(self, train=train, validation=validation, test=test)


@dataclass(frozen=True)
class Scenario:
    """An ordered list of tasks, all with images of one shape."""

    name: str
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        if not self.tasks:
            raise ValueError(f"scenario {self.name!r} has no tasks: it needs at least one")
        for task in self.tasks:
            shape = tuple(task.train.images.shape[1:])
            if shape != self.image_shape:
                raise ValueError(
                    f"task {task.name!r} has images of shape {shape}, the tasks before it of {self.image_shape}: "
                    "make them alike"
                )

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return tuple(self.tasks[0].train.images.shape[1:])

    @property
    def images(self) -> list[list[int]]:
        """How many images each task has to train on, to validate and to test."""
        return [[len(task.train), len(task.validation), len(task.test)] for task in self.tasks]

    def part(self, fraction: float) -> Scenario:
        """The same scenario with a fixed fraction of every task's images."""
        return replace(self, tasks=tuple(task.part(fraction) for task in self.tasks))

    def sizes(self) -> str:
        """The same in words, tasks of one size after another taken together."""
        said = []
        for counts, group in itertools.groupby(zip(self.tasks, self.images, strict=True), lambda pair: pair[1]):
            names = [task.name for task, _ in group]
            each = f"{names[0]} to {names[-1]} (each)" if len(names) > 1 else names[0]
            said.append(f"{each} {' / '.join(f'{count:,}' for count in counts)}")
        return f"images to train on / validate / test: {'; '.join(said)}"


def check_labels(split: Split, name: str) -> None:
    """Raise an error unless there is one whole number for each image."""
    if split.labels.dtype != torch.int64 or split.labels.shape != (len(split),):
        raise ValueError(
            f"the labels of task {name!r} are {split.labels.dtype} of shape {tuple(split.labels.shape)}: "
            f"expected torch.int64, one for each of {len(split)} images"
        )


def hold_out(split: Split, name: str, share: float = 0.1) -> tuple[Split, Split]:
    """What is left, and a fixed share of every class: at least one image, and never all."""
    check_labels(split, name)
    generator = torch.Generator().manual_seed(0)
    held = torch.zeros(len(split), dtype=torch.bool)
    for label, members in _classes(split):
        if len(members) < 2:
            raise ValueError(f"class {label} of {name!r} has one image: expected at least two, to hold some out")
        held[_share(members[torch.randperm(len(members), generator=generator)], share)] = True
    return split[~held], split[held]


def choose_classes(split: Split, classes: Sequence[int]) -> Split:
    """The images of these classes, labelled 0, 1, ... in their order."""
    renamed = torch.full((int(max(int(split.labels.max()), *classes)) + 1,), -1)
    renamed[list(classes)] = torch.arange(len(classes))
    labels = renamed[split.labels]
    return Split(split[labels >= 0].images, labels[labels >= 0])


def _fraction(split: Split, fraction: float) -> Split:
    """The first images of every class, the same share of each and at least one."""
    return split[torch.cat([_share(members, fraction) for _, members in _classes(split)]).sort().values]


def _classes(split: Split) -> Iterator[tuple[int, Tensor]]:
    """Every label, and the rows that have it."""
    for label in split.labels.unique().tolist():
        yield label, (split.labels == label).nonzero()[:, 0]


def _share(members: Tensor, share: float) -> Tensor:
    """The first of them, this share and at least one."""
    return members[: max(1, round(share * len(members)))]


def _as_split(data: Data, name: str) -> Split:
    """Images and labels, however they come, as a split."""
    if isinstance(data, Split):
        return data
    try:
        images, labels = data if isinstance(data, tuple) else zip(*data, strict=True)
        pixels = images if isinstance(images, Tensor) else torch.from_numpy(np.stack([_array(i) for i in images]))
        numbers = labels if isinstance(labels, Tensor) else torch.from_numpy(np.stack([_array(i) for i in labels]))
        if len(pixels) != len(numbers) or len(pixels) == 0:
            raise ValueError(f"{len(pixels)} images and {len(numbers)} labels")
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"the data of task {name!r} cannot be used ({error}): expected two tensors, or a Dataset of an image, "
            "(channels, height, width), and a label for each"
        ) from None
    if pixels.is_floating_point():
        if not (pixels.min() >= 0 and pixels.max() <= 1):  # so that NaN fails, too
            raise ValueError(
                f"the images of task {name!r} go from {pixels.min():g} to {pixels.max():g}: "
                "expected numbers from 0 to 1, or uint8"
            )
        pixels = (pixels * 255).round().to(torch.uint8)
    return Split(pixels, numbers if numbers.is_floating_point() else numbers.long())


def _array(value: Any) -> NDArray[Any]:
    """An image, or a label, as an array; a Pillow image has its channels last, or none, and gets them first."""
    if isinstance(value, Tensor):
        found: NDArray[Any] = value.numpy(force=True)
        return found
    array = np.array(value)
    if isinstance(value, Image.Image):
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return array
