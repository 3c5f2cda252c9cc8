"""Checks of what users give to a learner: one line says what was given, what was expected and what to do."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashroute.images import Images
from hashroute.schema import shown
from hashroute.tasks import Scenario, Task
from hashroute.user_data import check_plain


def check_image_shape(image_shape: Any) -> tuple[int, ...]:
    """Channels, height and width, as a tuple of whole numbers."""
    try:
        shape = tuple(map(operator.index, image_shape))
    except TypeError:
        shape = ()
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(
            f"image_shape is {shown(image_shape)}: expected (channels, height, width), such as (3, 32, 32)"
        )
    return shape


ImagesLike = Tensor | Images | NDArray[Any]
"""Images to be answered: a tensor, an array, or images that are read when they are needed."""


def as_images(images: ImagesLike) -> Tensor | Images:
    """An array as a tensor, anything else as it is."""
    if isinstance(images, np.ndarray) and images.dtype.kind in "iuf":
        return torch.as_tensor(np.ascontiguousarray(images))
    if isinstance(images, Tensor) and images.is_nested:  # which has not even a length
        check_plain(images)
    return images  # type: ignore[return-value]


def check_images(images: Any, image_shape: tuple[int, ...]) -> None:
    """Raise an error unless these are images of this shape, uint8 or from 0 to 1."""
    if not isinstance(images, Tensor | Images) or images.dtype == torch.bool:
        kind = "bool" if isinstance(images, Tensor) else type(images).__name__
        raise ValueError(f"images are {kind}: expected a tensor or an array of uint8, or of numbers from 0 to 1")
    if isinstance(images, Tensor):
        check_plain(images)
    shape = tuple(images.shape)
    if shape[:1] == (0,):
        raise ValueError("there are no images: expected at least one")
    if len(shape) != 4 or shape[1:] != image_shape:
        hint = "; give one image as image[None]" if shape == image_shape else ""
        raise ValueError(f"images are of shape {shape}: expected (number, {', '.join(map(str, image_shape))}){hint}")
    if isinstance(images, Tensor) and images.dtype != torch.uint8:
        most = 1 if images.is_floating_point() else 255
        lowest, highest = (each.item() for each in images.aminmax())
        if not (lowest >= 0 and highest <= most):  # NaN fails, too
            wrong = [not (image.min() >= 0 and image.max() <= most) for image in images].index(True)
            raise ValueError(f"image {wrong} has pixels that are not from 0 to {most}: expected these, or uint8")


def tasks_of(given: Sequence[Task | Scenario], at_once: bool) -> list[list[Task]]:
    """What was given to `learn`, as groups of tasks that are learned together."""
    if not given:
        raise ValueError("learn() was given nothing: expected a Task, or a Scenario")
    for each in given:
        if not isinstance(each, Task | Scenario):
            raise ValueError(
                f"learn() was given a {type(each).__name__}: expected a Task; make one with "
                "Task.from_data(name, train=(images, labels), test=(images, labels))"
            )
    if isinstance(given[0], Scenario) and len(given) == 1:
        return [list(given[0].tasks)] if at_once else [[task] for task in given[0].tasks]
    tasks = [each for each in given if isinstance(each, Task)]
    if len(tasks) < len(given):
        raise ValueError(f"learn() was given a Scenario among {len(given)} things: give it alone")
    return [tasks]
