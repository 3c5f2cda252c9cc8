"""folders: a user's own images, one folder a task, one folder a class inside it."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario, Split, Task, hold_out

logger = logging.getLogger(__name__)


@register_scenario("folders")
def folders(folder: str | Path, size: int = 32, colour: bool = True) -> Scenario:
    """Read folder/TASK/CLASS/*, tasks and classes in the order of their names.

    Every image is scaled to size x size pixels, and grey or colour images become alike; transparent ones are put on
    white. A fifth of each class is for the test, a tenth of the rest for validation. What cannot be read as an image is
    named in a warning and left out.
    """
    folder = Path(folder)
    if size < 1:
        raise ValueError(f"size is {size}: expected at least 1")
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder: expected one with a folder for each task")
    tasks = [_task(path, size, colour) for path in _inside(folder) if path.is_dir()]
    if not tasks:
        raise ValueError(f"{folder} holds no folder: expected one for each task, with one for each class inside")
    return Scenario("folders", tuple(tasks))


def _inside(folder: Path) -> list[Path]:
    """What is in a folder, by name, hidden files left out."""
    return sorted(path for path in folder.iterdir() if not path.name.startswith("."))


def _task(folder: Path, size: int, colour: bool) -> Task:
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    names: list[str] = []
    for path in _inside(folder):
        if not path.is_dir():
            continue
        found = [image for file in _inside(path) if (image := _read(file, size, colour)) is not None]
        if not found:
            raise ValueError(f"{path} holds no image: expected the images of class {path.name!r}")
        images += found
        labels += [len(names)] * len(found)
        names.append(path.name)
    if len(names) < 2:
        raise ValueError(f"{folder} has {len(names)} class folders: expected at least two, each with images")
    whole = Split(torch.from_numpy(np.stack(images)), torch.tensor(labels))
    rest, test = hold_out(whole, folder.name, 0.2)
    return Task(folder.name, *hold_out(rest, folder.name), test, tuple(names))


def _read(path: Path, size: int, colour: bool) -> NDArray[np.uint8] | None:
    """An image as (channels, size, size), None if it cannot be read."""
    try:
        with Image.open(path) as image:
            upright = ImageOps.exif_transpose(image)
            if upright.mode.startswith("I;16"):  # 16 bits a pixel
                upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
            if upright.mode in ("I", "F"):
                raise ValueError("pixels of 32 bits have no fixed range")
            if upright.has_transparency_data:
                upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright.convert("RGBA"))
            plain = upright.convert("RGB" if colour else "L").resize((size, size), Image.Resampling.BILINEAR)
            pixels = np.asarray(plain)
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        logger.warning("%s is left out: it cannot be read as an image (%s)", path, error)
        return None
    return pixels.transpose(2, 0, 1) if colour else pixels[None]
