"""Sources: images with labels as people have them, made into a task for a model.

A source is a folder of class folders, a list of files (CSV, JSON lines, Parquet), arrays, a Dataset, or a `Task`.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from hashroute.data.photos import check_photos, formats
from hashroute.images import Images
from hashroute.model.lists import LISTS, read_list
from hashroute.model.pixels import FittedImages, fit_images, look_grey, open_files
from hashroute.model.python_data import read_python
from hashroute.schema import one_line, shown
from hashroute.storage import digest_of
from hashroute.tasks import Augmentation, Split, Task, hold_out
from hashroute.user_data import IN_MEMORY

LARGEST_SIZE = 64
"""Images are resized to at most this side unless a size is given."""
SMALLEST_SIZE = 8
LOOKED_AT = 64
"""Images that are looked at to choose the size and the augmentations."""
SHIFTED = 24
"""Images of at least this side are shifted by up to two pixels while they are trained on."""
SKIPPED = ("__MACOSX", "Thumbs.db", "desktop.ini")
TRAIN, HELD_OUT = ("train", "training"), ("test", "val", "valid", "validation", "held_out")


@dataclass
class Source:
    """Images with labels, before they are resized."""

    name: str | None
    images: list[str] | Tensor | Images
    """Files; or (n, channels, height, width), uint8."""
    labels: list[str]
    """The class of each image."""
    classes: list[str]
    """All classes, in the order of their labels."""
    held_out: list[bool] | None = None
    """Which images are not trained on; None lets a tenth be chosen."""
    notes: list[str] = field(default_factory=list)
    """What was found and decided, in plain words."""
    augmentations: frozenset[Augmentation] | None = None
    root: str = "."
    """The folder that files are named from."""

    @property
    def channels(self) -> int:
        """The channels of a model that is made for these images: grey and transparent images count as colour."""
        if isinstance(self.images, list):
            return 3
        count = int(self.images.shape[1])
        return 3 if count in (1, 3, 4) else count

    def size(self) -> int:
        """The side to which these images are resized if nothing else is asked."""
        if isinstance(self.images, list):
            step = max(1, len(self.images) // LOOKED_AT)
            sides = sorted(side for file in self.images[::step] if (side := _side(file)))
            if not sides:
                first = one_line(self.images[0], 150)
                raise ValueError(f"{first} and other files cannot be read as images: expected image files")
            side = sides[len(sides) // 2]
        else:
            side = min(self.images.shape[2:])
        if side < 4:
            raise ValueError(f"images have a side of {side} pixels: expected at least 4")
        return min(side, LARGEST_SIZE) if side >= SMALLEST_SIZE else SMALLEST_SIZE

    def fingerprint(self) -> str:
        """A digest that differs if the images or labels do. Files count by name and content."""
        digest = hashlib.sha256("\0".join([*self.labels, str(self.held_out)]).encode())
        if isinstance(self.images, list):
            names = (os.path.relpath(file, self.root) for file in self.images)
            for name, file in zip(names, self.images, strict=True):
                digest.update(f"\0{name}\0".encode(errors="surrogateescape"))
                digest.update(_content(file).encode())
        elif isinstance(self.images, Tensor):
            digest.update(self.images.contiguous().numpy().tobytes())
        return digest.hexdigest()

    def task(self, name: str, image_shape: Sequence[int], known: Sequence[str] = ()) -> tuple[Task, list[str]]:
        """The task with images of this shape, and what is wrong with files that cannot be read.

        known: classes that the task has already; they come first.
        """
        _, size, _ = image_shape
        class_names = [*known, *(each for each in self.classes if each not in known)]
        index = {each: place for place, each in enumerate(class_names)}
        labels = torch.tensor([index[label] for label in self.labels])
        problems: list[str] = []
        held = None if self.held_out is None else torch.tensor(self.held_out)
        if isinstance(self.images, list):
            rows = torch.arange(len(labels))
            photos = open_files(self.images, image_shape)
            in_memory = math.prod(photos.shape) <= IN_MEMORY
            read, problems = check_photos(photos, rows, in_memory)
            whole = Split(read.images, labels[read.labels])
            held = None if held is None else held[read.labels]
        elif isinstance(self.images, Tensor) and len(self.images) * math.prod(image_shape) <= IN_MEMORY:
            whole = Split(fit_images(self.images, image_shape), labels)
        else:
            whole = Split(FittedImages(self.images, image_shape), labels)
        train, validation = self._split(whole, held, name, class_names, len(known) > 0)
        augmentations = self.augmentations
        if augmentations is None:
            augmentations = _augmentations(train, size)
        return Task(name, train, validation, validation, tuple(class_names), augmentations), problems

    def _split(
        self, whole: Split, held: Tensor | None, name: str, class_names: Sequence[str], further: bool
    ) -> tuple[Split, Split]:
        """Images to train on, and images that are held out."""
        counts = whole.labels.bincount(minlength=len(class_names)).tolist()
        for label, count in enumerate(counts):
            if (count == 1 and held is None) or (count == 0 and not further):
                what = "one readable image" if count else "no readable image"
                raise ValueError(
                    f"class {shown(class_names[label])} of {shown(name)} has {what}: expected at least two"
                )
        if held is None or not held.any():
            return hold_out(whole, name)
        if held.all():
            raise ValueError(f"all images of {name!r} are marked as held out: expected some to train on")
        train, validation = whole[~held], whole[held]
        missing = set(validation.labels.tolist()) - set(train.labels.tolist())
        if missing:
            raise ValueError(
                f"class {shown(class_names[min(missing)])} of {shown(name)} has no training image: expected some"
            )
        return train, validation


def open_sources(source: Any, name: str | None = None) -> list[Source]:
    """What is learned from a source: one task, or several if its items say which task they belong to."""
    if isinstance(source, Source):
        found = [source]
    elif isinstance(source, (str, Path)):
        path = Path(os.path.expanduser(source))
        if path.is_dir():
            found = [_folder(path)]
        elif path.suffix.lower() in LISTS and path.is_file():
            found = [_listed(path)]
        elif path.exists():
            expected = ", ".join(LISTS)
            raise ValueError(f"{path} is not a source: expected a folder of class folders, or a list ({expected})")
        else:
            raise ValueError(f"{path} does not exist: expected a folder of class folders, or a list of files")
    elif isinstance(source, Task):
        found = [_task(source)]
    else:
        found = [Source(*each) for each in read_python(source)]
    if name is not None and len(found) > 1:
        raise ValueError(f"the source has {len(found)} tasks and one name was given: leave the name out")
    return [each if name is None else replace(each, name=name) for each in found]


def _folder(folder: Path) -> Source:
    """A folder of class folders; nested folders are searched. Folders `train` and `test` hold classes each."""
    inside = [path for path in _visible(folder) if path.is_dir()]
    names = {path.name.lower() for path in inside}
    if inside and names <= {*TRAIN, *HELD_OUT} and names & set(TRAIN):
        parts = [(_folder(path), path.name.lower() in HELD_OUT) for path in inside]
        files = [file for part, _ in parts if isinstance(part.images, list) for file in part.images]
        labels = [label for part, _ in parts for label in part.labels]
        held = [out for part, out in parts for _ in part.labels]
        notes = [note for part, _ in parts for note in part.notes]
        return Source(folder.resolve().name, files, labels, sorted(set(labels)), held, notes, root=str(folder))
    found = {path.name: [str(file) for file in _files(path, (folder.resolve(),))] for path in inside}
    empty = [name for name, files in found.items() if not files]
    notes = [f"the class folder {name!r} is left out: no files inside" for name in empty]
    notes += [f"the folder {path.name!r} is left out: it is no class" for path in folder.iterdir() if _foreign(path)]
    found = {name: files for name, files in found.items() if files}
    if not found:
        loose = [path for path in _visible(folder) if path.is_file()]
        what = f"{len(loose)} files and no class folder" if loose else "no class folder"
        raise ValueError(f"{folder} has {what}: expected a folder for each class, with its images inside")
    labels = [name for name, files in found.items() for _ in files]
    return Source(
        folder.resolve().name,
        [file for files in found.values() for file in files],
        labels,
        list(found),
        notes=notes,
        root=str(folder),
    )


def _visible(folder: Path) -> list[Path]:
    """The content of a folder, by name, without hidden files and those of file managers."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith(".") and path.name not in SKIPPED)


def _foreign(path: Path) -> bool:
    """Whether this is a folder that a file manager has made, in an archive for example."""
    return path.name in SKIPPED and path.is_dir()


def _files(folder: Path, above: tuple[Path, ...] = ()) -> list[Path]:
    """All files in a folder and in the folders inside; a link to a folder above is not followed."""
    inside, above = _visible(folder), (*above, folder.resolve())
    deeper = [file for path in inside if path.is_dir() and path.resolve() not in above for file in _files(path, above)]
    return [path for path in inside if path.is_file()] + deeper


def files_of(paths: Sequence[Path]) -> list[Path]:
    """Files as they are, and all files of folders."""
    return [file for path in paths for file in (_files(path) if path.is_dir() else [path])]


def _listed(path: Path) -> Source:
    rows = read_list(path)
    files = [str(path.parent / os.path.expanduser(row.path)) for row in rows]
    labels = [row.label for row in rows]
    splits = {row.split for row in rows} - {""}
    if unknown := splits - {*TRAIN, *HELD_OUT}:
        raise ValueError(f"{path} has the split {shown(min(unknown))}: expected {', '.join([*TRAIN, *HELD_OUT])}")
    held = [row.split in HELD_OUT for row in rows]
    return Source(path.stem, files, labels, sorted(set(labels)), held if any(held) else None, root=str(path.parent))


def _task(task: Task) -> Source:
    """A task: its test images are not used."""
    names = task.class_names
    if isinstance(task.train.images, Tensor) and isinstance(task.validation.images, Tensor):
        images: Tensor | Images = torch.cat([task.train.images, task.validation.images])
        codes, held = torch.cat([task.train.labels, task.validation.labels]), [False] * len(task.train)
        marks: list[bool] | None = held + [True] * len(task.validation)
    else:
        images, codes, marks = task.train.images, task.train.labels, None
    labels = [names[code] for code in codes.tolist()]
    return Source(task.name, images, labels, list(names), marks, augmentations=task.augmentations)


def _augmentations(train: Split, size: int) -> frozenset[Augmentation]:
    """Photographs are mirrored and shifted; grey images may be signs, and are shifted alone."""
    rows = torch.linspace(0, len(train) - 1, min(LOOKED_AT, len(train))).long()
    chosen: set[Augmentation] = {"shift"} if size >= SHIFTED else set()
    if not look_grey(train.images[rows]):
        chosen.add("flip")
    return frozenset(chosen)


def _side(file: str) -> int:
    """The shorter side of an image file; 0 if it cannot be read."""
    try:
        if not Path(file).is_file():  # a pipe would never end
            return 0
        with Image.open(file, formats=formats()) as image:
            return min(image.size)
    except Exception:  # a damaged file can raise anything; it is reported when it is read
        return 0


def _content(file: str) -> str:
    """The digest of a file; empty if it cannot be read."""
    try:
        return digest_of(Path(file)) if Path(file).is_file() else ""  # a pipe would never end
    except OSError:
        return ""
