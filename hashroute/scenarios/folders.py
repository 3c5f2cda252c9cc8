"""folders: a user's own images."""

from __future__ import annotations

from pathlib import Path

import torch

from hashroute.data.photos import Photos, open_photos
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario, Task, hold_out
from hashroute.user_data import IN_MEMORY


@register_scenario("folders")
def folders(folder: str | Path, size: int = 32, colour: bool = True) -> Scenario:
    """Read folder/TASK/CLASS/*. Tasks and classes are ordered by name.

    Every image is resized to size x size pixels, in colour or grey. A fifth of each class is for testing, a tenth of
    the rest for validation. Files that cannot be read as an image are left out, with a warning. Images that take more
    than 256 MB together stay on disk and are read while training.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: expected one that contains a folder for each task")
    found = {path: _classes(path) for path in _inside(folder) if path.is_dir()}
    if not found:
        raise ValueError(f"{folder} contains no folder: expected one for each task, with one for each class inside")
    count = sum(len(files) for classes in found.values() for files in classes.values())
    in_memory = count * (3 if colour else 1) * size**2 <= IN_MEMORY
    return Scenario("folders", tuple(_task(path, found[path], size, colour, in_memory) for path in found))


def _inside(folder: Path) -> list[Path]:
    """The content of a folder, by name, without hidden files."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _classes(folder: Path) -> dict[Path, list[Path]]:
    """The files of each class of a task."""
    classes = {path: _inside(path) for path in _inside(folder) if path.is_dir()}
    if len(classes) < 2:
        raise ValueError(f"{folder} has {len(classes)} class folders: expected at least two, each with images")
    return classes


def _task(folder: Path, classes: dict[Path, list[Path]], size: int, colour: bool, in_memory: bool) -> Task:
    photos = Photos([file for files in classes.values() for file in files], size, colour)
    labels = torch.arange(len(classes)).repeat_interleave(torch.tensor([len(files) for files in classes.values()]))
    whole = open_photos(photos, labels, in_memory)
    for path, count in zip(classes, whole.labels.bincount(minlength=len(classes)).tolist(), strict=True):
        if count == 0:
            raise ValueError(f"{path} contains no image: expected the images of class {path.name!r}")
    rest, test = hold_out(whole, folder.name, 0.2)
    return Task(folder.name, *hold_out(rest, folder.name), test, tuple(path.name for path in classes))
