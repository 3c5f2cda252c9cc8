"""Split, Task and Scenario: what is learned."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from hashroute.images import Images as Images
from hashroute.images import read_ahead
from hashroute.user_data import check_countable, check_plain, read_data, shape_problem


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

    def contents(self) -> Iterator[bytes]:
        """What a digest of this split reads: its labels and images."""
        yield self.labels.numpy(force=True).tobytes()
        if isinstance(self.images, Images):
            yield from self.images.contents()
        else:
            yield from (part.numpy(force=True).tobytes() for part in self.images.split(4096))

    def __repr__(self) -> str:
        return f"Split({len(self)} images of {tuple(self.images.shape[1:])})"


def read_batches(requests: Iterable[tuple[Split, Tensor]]) -> Iterator[tuple[Tensor, Tensor]]:
    """Images and labels for each request, a split and row numbers, in order.

    Tensors are indexed when their turn comes. `Images` are read by threads, a few batches ahead: for these, requests
    are taken before they are needed, so a request must not depend on random numbers that training draws.
    """
    return read_ahead((isinstance(split.images, Images), partial(split.read, rows)) for split, rows in requests)


Augmentation = Literal["flip", "shift"]
Data = Split | tuple[Any, Any] | Iterable[tuple[Any, Any]]
"""Images with labels: a split, two arrays, or a Dataset or list of pairs."""


@dataclass(frozen=True, eq=False)
class Task:
    """One task: images for training, validation and testing, and the names of its classes.

    Labels are indices into `class_names`, whatever they were in the data set.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    class_names: tuple[str, ...]
    augmentations: frozenset[Augmentation] = frozenset()
    """Changes of an image that keep its label: mirror it, or shift it by up to two pixels."""
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    """Of the data set's pixels, from 0 to 1, per channel. The published experiments scale images by them."""
    dataset: str = ""
    """The data set that the images come from; by default the task is a data set of its own."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise ValueError(f"a task has the name {self.name!r}: expected text, such as {str(self.name)!r}")
        if isinstance(self.class_names, str):
            raise ValueError(f"the class names of task {self.name!r} are text: expected a list with one name per class")
        object.__setattr__(self, "class_names", tuple(self.class_names))
        if not self.dataset:
            object.__setattr__(self, "dataset", self.name)
        unknown = self.augmentations - set(get_args(Augmentation))
        if unknown:
            known = ", ".join(get_args(Augmentation))
            raise ValueError(f"task {self.name!r} has augmentations {sorted(unknown)}: expected some of {known}")
        self._check("train", self.train)
        self._check("validation", self.validation)
        self._check("test", self.test)
        shapes = {tuple(split.images.shape[1:]) for split in (self.train, self.validation, self.test)}
        if len(shapes) > 1:
            raise ValueError(f"task {self.name!r} has images of different shapes {sorted(shapes)}: resize them to one")

    def _check(self, part: str, split: Split) -> None:
        """Raise an error if a split cannot be used."""
        if not isinstance(split, Split):
            found = type(split).__name__
            raise ValueError(f"{part} of task {self.name!r} is a {found}: expected a Split; Task.from_data makes one")
        if len(split) == 0:
            raise ValueError(f"task {self.name!r} has no {part} images: expected at least one")
        if isinstance(split.images, Tensor):
            check_plain(split.images, f"the {part} images of task {self.name!r}")
        if problem := shape_problem(tuple(split.images.shape)):
            raise ValueError(f"the {part} images of task {self.name!r} cannot be used, {problem}")
        if split.images.dtype != torch.uint8:
            raise ValueError(
                f"the {part} images of task {self.name!r} are {split.images.dtype}: "
                "expected torch.uint8, from 0 to 255; convert them with images.to(torch.uint8)"
            )
        check_labels(split, self.name)
        least, most = int(split.labels.min()), int(split.labels.max())
        if least < 0 or most >= self.classes:
            raise ValueError(
                f"the {part} labels of task {self.name!r} go from {least} to {most}: "
                f"expected 0 to {self.classes - 1}, because it has {self.classes} class names"
            )

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.class_names)

    def __repr__(self) -> str:
        counts = " / ".join(str(len(split)) for split in (self.train, self.validation, self.test))
        shape = tuple(self.train.images.shape[1:])
        return f"Task({self.name!r}: {self.classes} classes, {counts} images of {shape} to train / validate / test)"

    @classmethod
    def from_data(
        cls,
        name: str,
        train: Data,
        test: Data,
        class_names: Sequence[str] | None = None,
        augmentations: Iterable[Augmentation] = (),
    ) -> Task:
        """Make a task; a fixed tenth of the training images becomes validation images.

        Args:
            name: of the task.
            train: images and labels: two arrays or tensors, a Dataset or list of pairs, or a `Split`. Images are
                (channels, height, width), uint8 or floating point from 0 to 1, or Pillow images. A Dataset that is
                larger than 256 MB is read while training.
            test: the same, for testing.
            class_names: by label. Classes of two tasks that have the same name are the same class. By default, every
                label in `train` is a class, with a name that no other task has.
            augmentations: changes of an image that keep its label.
        """
        if not isinstance(name, str):
            raise ValueError(
                f"the first argument of Task.from_data is a {type(name).__name__}: expected the task's name"
            )
        whole, tested = _as_split(train, name, "train"), _as_split(test, name, "test")
        if class_names is None:
            values = whole.labels.unique()
            if values[0] < 0:
                raise ValueError(f"the train labels of task {name!r} contain {int(values[0])}: expected numbers from 0")
            class_names = [f"{name}: {value}" for value in values.tolist()]
            whole, tested = _as_indices(whole, values, name, "train"), _as_indices(tested, values, name, "test")
        return cls(name, *hold_out(whole, name), tested, class_names, frozenset(augmentations))  # type: ignore[arg-type]

    @classmethod
    def without_test(cls, name: str, data: Split, class_names: Sequence[str]) -> Task:
        """Make a task of training images alone: those that are held out also stand for test images.

        The only image of a class is trained on, and is also held out.
        """
        counts = torch.bincount(data.labels)
        rows = torch.cat([torch.arange(len(data)), (counts[data.labels] == 1).nonzero()[:, 0]])
        train, held_out = hold_out(data[rows], name)
        return cls(name, train, held_out, held_out, tuple(class_names))

    def part(self, fraction: float) -> Task:
        """The same task with a fixed fraction of the images of every class."""
        train, validation, test = (_fraction(split, fraction) for split in (self.train, self.validation, self.test))
        return replace(self, train=train, validation=validation, test=test)


@dataclass(frozen=True, eq=False)
class Scenario:
    """An ordered list of tasks, all with images of one shape."""

    name: str
    tasks: tuple[Task, ...]

    def __post_init__(self) -> None:
        if isinstance(self.tasks, Task) or not all(isinstance(task, Task) for task in self.tasks):
            raise ValueError(
                f"the tasks of scenario {self.name!r} are not a list of Task: make each with Task.from_data"
            )
        object.__setattr__(self, "tasks", tuple(self.tasks))
        if not self.tasks:
            raise ValueError(f"scenario {self.name!r} has no tasks: expected at least one")
        for task in self.tasks:
            shape = tuple(task.train.images.shape[1:])
            if shape != self.image_shape:
                raise ValueError(
                    f"task {task.name!r} has images of shape {shape}, the tasks before it of {self.image_shape}: "
                    "resize them to one shape"
                )

    @property
    def image_shape(self) -> tuple[int, ...]:
        """Channels, height and width."""
        return tuple(self.tasks[0].train.images.shape[1:])

    @property
    def images(self) -> list[list[int]]:
        """Numbers of training, validation and test images of each task."""
        return [[len(task.train), len(task.validation), len(task.test)] for task in self.tasks]

    @cached_property
    def digest(self) -> str:
        """A hash of all images and labels: results with different data are not mixed."""
        digest = hashlib.sha256()
        for task in self.tasks:
            for split in (task.train, task.validation, task.test):
                for content in split.contents():
                    digest.update(content)
        return digest.hexdigest()[:16]

    def part(self, fraction: float) -> Scenario:
        """The same scenario with a fixed fraction of every task's images."""
        return replace(self, tasks=tuple(task.part(fraction) for task in self.tasks))

    def sizes(self) -> str:
        """The number of images of each task as text; consecutive tasks of one size are named together."""
        parts = []
        for counts, group in itertools.groupby(zip(self.tasks, self.images, strict=True), lambda pair: pair[1]):
            names = [task.name for task, _ in group]
            each = f"{names[0]} to {names[-1]} (each)" if len(names) > 1 else names[0]
            parts.append(f"{each} {' / '.join(f'{count:,}' for count in counts)}")
        return f"images to train on / validate / test: {'; '.join(parts)}"

    def __repr__(self) -> str:
        return f"Scenario({self.name!r}: {len(self.tasks)} tasks, images of {self.image_shape})"


def check_labels(split: Split, name: str) -> None:
    """Raise an error unless there is one integer for each image."""
    check_countable(split.labels, f"the labels of task {name!r}")
    if split.labels.dtype != torch.int64 or split.labels.shape != (len(split),):
        hint = "; convert them with labels.long()" if split.labels.shape == (len(split),) else ""
        hint = "; remove the last dimension with labels[:, 0]" if split.labels.shape == (len(split), 1) else hint
        raise ValueError(
            f"the labels of task {name!r} are {split.labels.dtype} of shape {tuple(split.labels.shape)}: "
            f"expected torch.int64, one for each of {len(split)} images{hint}"
        )


def hold_out(split: Split, name: str, share: float = 0.1) -> tuple[Split, Split]:
    """Split off a fixed share of every class, at least one image: the rest, and what is held out."""
    check_labels(split, name)
    generator = torch.Generator().manual_seed(0)
    held = torch.zeros(len(split), dtype=torch.bool)
    for label, members in _classes(split):
        if len(members) < 2:
            raise ValueError(f"class {label} of {name!r} has one image: expected at least two, because one is held out")
        held[_share(members[torch.randperm(len(members), generator=generator)], share)] = True
    return split[~held], split[held]


def class_indices(tasks: Sequence[Task]) -> list[Tensor]:
    """For each task, the index of each of its classes among those of all tasks: (classes,).

    A class is identified by its name and data set: a task that returns with new images has the same classes.
    """
    known: dict[tuple[str, str], int] = {}
    return [
        torch.tensor([known.setdefault((task.dataset, name), len(known)) for name in task.class_names])
        for task in tasks
    ]


def choose_classes(split: Split, classes: Sequence[int]) -> Split:
    """The images of these classes, labelled 0, 1, ... in their order."""
    labels = torch.full_like(split.labels, -1)
    for index, label in enumerate(classes):
        labels[split.labels == label] = index
    return Split(split[labels >= 0].images, labels[labels >= 0])


def _fraction(split: Split, fraction: float) -> Split:
    """The first images of every class: the same share of each, at least one."""
    return split[torch.cat([_share(members, fraction) for _, members in _classes(split)]).sort().values]


def _classes(split: Split) -> Iterator[tuple[int, Tensor]]:
    """Every label with its rows."""
    for label in split.labels.unique().tolist():
        yield label, (split.labels == label).nonzero()[:, 0]


def _share(members: Tensor, share: float) -> Tensor:
    """The first rows: this share of all, at least one."""
    return members[: max(1, round(share * len(members)))]


def _as_split(data: Data, name: str, part: str) -> Split:
    """Images and labels, however they are given, as a split."""
    if isinstance(data, Split):
        split = data
        if isinstance(split.images, Tensor):
            check_plain(split.images, f"the {part} images of task {name!r}")
    else:
        try:
            split = Split(*read_data(data))
        except ValueError as error:
            raise ValueError(f"the {part} data of task {name!r} cannot be used: {error}") from None
    if len(split) == 0:
        raise ValueError(f"task {name!r} has no {part} images: expected at least one")
    check_labels(split, name)
    return split


def _as_indices(split: Split, values: Tensor, name: str, part: str) -> Split:
    """Replace labels by their place among these values, which are sorted."""
    places = torch.searchsorted(values, split.labels).clamp(max=len(values) - 1)
    strange = split.labels[values[places] != split.labels]
    if len(strange):
        raise ValueError(f"the {part} labels of task {name!r} contain {int(strange[0])}, which no training image has")
    return Split(split.images, places)
