"""Sources that come from Python: arrays, Datasets, DataLoaders, dicts of columns, and items that name their task."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hashroute.images import Images
from hashroute.model.pixels import as_images
from hashroute.user_data import check_countable, read_data

IMAGES, LABELS, TASKS = (
    ("image", "images", "img", "pixels"),
    ("label", "labels", "class", "target"),
    ("task", "task_id"),
)

Found = tuple[str | None, "Tensor | Images", list[str], list[str]]
"""Name, images, the class of each image, and all classes in order."""


def read_python(data: Any) -> Iterator[Found]:
    """The tasks in what a program gives."""
    if hasattr(data, "dataset") and hasattr(data, "batch_size"):
        data = data.dataset  # of a DataLoader
    if isinstance(data, Mapping):
        if "train" in data:
            raise ValueError(f"a dict has the splits {', '.join(map(str, data))[:100]}: give one, as in data['train']")
        wanted = (IMAGES, LABELS, TASKS) if _has(data, TASKS) else (IMAGES, LABELS)
        data = tuple(data[_key(data, names)] for names in wanted)
    if isinstance(data, tuple) and len(data) in (2, 3) and not isinstance(data[0], tuple):
        yield from _arrays(*data)
        return
    if isinstance(data, (int, float, bytes, Tensor, np.ndarray)) or data is None:
        raise ValueError(f"the source is a {type(data).__name__}: expected a folder, (images, labels), or a Dataset")
    names = _class_names(data)
    items = _Items(data)
    images, codes = read_data(items)
    labels = [items.labels[code] for code in codes.tolist()]
    if isinstance(names, (list, tuple)) and all(label.isdigit() and int(label) < len(names) for label in labels):
        labels = [str(names[int(label)]) for label in labels]
    if not items.tasks:
        yield None, images, labels, in_order(labels)
        return
    for task in dict.fromkeys(items.tasks.values()):
        rows = [row for row, name in items.tasks.items() if name == task]
        chosen = [labels[row] for row in rows]
        yield task, images[rows] if isinstance(images, Tensor) else images.take(rows), chosen, in_order(chosen)


def _class_names(data: Any) -> Any:
    """The names of classes that a Dataset knows: as torchvision has them, or as Hugging Face has them."""
    features = getattr(data, "features", None)
    if isinstance(features, Mapping) and _has(features, LABELS):
        return getattr(features[_key(features, LABELS)], "names", None)
    return getattr(data, "classes", None)


def in_order(labels: list[str]) -> list[str]:
    """All classes: by number if they are numbers, otherwise by name."""
    numbers = all(label.lstrip("-").isdigit() for label in labels)
    return sorted(set(labels), key=int if numbers else None)


def _arrays(images: Any, labels: Any, tasks: Any = None) -> Iterator[Found]:
    """Arrays, one label for each image, and perhaps the task of each."""
    pixels = images if isinstance(images, Images) else as_images(images)
    names = _names(labels, len(pixels), "label")
    if tasks is None:
        yield None, pixels, names, in_order(names)
        return
    of_task = _names(tasks, len(pixels), "task")
    for task in dict.fromkeys(of_task):
        rows = [row for row, name in enumerate(of_task) if name == task]
        chosen = [names[row] for row in rows]
        yield task, pixels[rows] if isinstance(pixels, Tensor) else pixels.take(rows), chosen, in_order(chosen)


def _names(values: Any, count: int, what: str) -> list[str]:
    """One name for each image."""
    if isinstance(values, Tensor):
        check_countable(values, f"{what}s")
        values = (values.float() if values.dtype == torch.bfloat16 else values).numpy(force=True)
    array = np.asarray(values)
    if array.shape != (count,):
        raise ValueError(f"{what}s have the shape {array.shape}: expected one for each of {count} images")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all() or (array != array.round()).any():
            raise ValueError(f"{what}s are {array.dtype}: expected whole numbers, or names")
        array = array.astype(np.int64)
    return [_text(value, what) for value in array.tolist()]


class _Items:
    """The items of a Dataset as pairs of an image and a number that stands for its label."""

    def __init__(self, data: Any) -> None:
        self.data = data if hasattr(data, "__len__") and hasattr(data, "__getitem__") else list(data)
        self.kind = type(data).__name__
        """What it is called where an item cannot be read."""
        self.codes: dict[str, int] = {}
        self.tasks: dict[int, str] = {}

    @property
    def labels(self) -> list[str]:
        """What each number stands for."""
        return list(self.codes)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, row: int) -> tuple[Any, int]:
        item = self.data[row]
        if isinstance(item, Mapping):
            task = item[_key(item, TASKS)] if _has(item, TASKS) else None
            image, label = item[_key(item, IMAGES)], item[_key(item, LABELS)]
        elif isinstance(item, (tuple, list)) and len(item) in (2, 3):
            image, label, task = (*item, None)[:3]
        else:
            raise ValueError(f"it is a {type(item).__name__}, expected (image, label)")
        if task is not None:
            self.tasks[row] = _text(task, "task")
        return image, self.codes.setdefault(_text(label), len(self.codes))


def _text(value: Any, what: str = "label") -> str:
    if isinstance(value, Tensor):
        check_countable(value, f"{what}s")
    if value is None or getattr(value, "shape", ()) not in ((), (1,)):
        given = "is missing" if value is None else f"has the shape {tuple(value.shape)}"
        raise ValueError(f"a {what} {given}: expected a number or a name for each image")
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return str(value.item() if hasattr(value, "item") else value)


def _has(data: Mapping[str, Any], names: tuple[str, ...]) -> bool:
    return any(name in data for name in names)


def _key(data: Mapping[str, Any], names: tuple[str, ...]) -> str:
    found = next((name for name in names if name in data), None)
    if found is None:
        raise ValueError(f"a dict has the keys {', '.join(map(str, data))[:100]}: expected one of {', '.join(names)}")
    return found
