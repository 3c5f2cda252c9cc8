"""Images and labels as users have them: arrays, lists of pairs and Datasets."""

from __future__ import annotations

import operator
import threading
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hashroute.images import Images

IN_MEMORY = 256 * 2**20
"""Images of up to this many bytes are read into memory at once. More stay where they are, and are read in training."""

PLAIN: tuple[torch.dtype, ...] = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
PLAIN += (torch.float16, torch.bfloat16, torch.float32, torch.float64)
"""Types of pixels that can be computed with."""
COUNTED = (*PLAIN, torch.bool, torch.uint16, torch.uint32, torch.uint64)
"""Types of labels that can be made whole numbers."""

_ONE_AT_A_TIME = threading.Lock()


class DatasetImages(Images):
    """The images of a map-style Dataset of (image, label), read when they are needed.

    Reader threads take turns, because a Dataset may not expect threads. A Dataset that draws random numbers is not
    reproducible when it is read this way.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        super().__init__(self.item(0)[0].shape, len(dataset))

    def item(self, row: int) -> tuple[NDArray[np.uint8], Any]:
        """Image, as uint8 of (channels, height, width), and label."""
        try:
            with _ONE_AT_A_TIME:
                item = self.dataset[row]
        except Exception as error:  # the Dataset is someone else's code
            kind, what = getattr(self.dataset, "kind", type(self.dataset).__name__), f"{type(error).__name__}: {error}"
            raise ValueError(f"item {row} of the {kind} cannot be read ({what})") from error
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            raise ValueError(f"item {row} is a {type(item).__name__}, expected a pair of image and label")
        return to_uint8(torch.from_numpy(as_array(item[0]))).numpy(), item[1]

    def read(self, row: int) -> NDArray[np.uint8]:
        """Read one image."""
        return self.item(row)[0]


def read_data(data: Any) -> tuple[Tensor | Images, Tensor]:
    """Images and labels from a pair of arrays, a Dataset, or an iterable of pairs.

    A Dataset of more than IN_MEMORY bytes stays where it is. What cannot be used is a ValueError that says why.
    """
    try:
        if isinstance(data, tuple) and len(data) == 2:
            images, labels = _images(data[0]), _labels(data[1])
        elif hasattr(data, "dataset") and hasattr(data, "batch_size"):
            raise ValueError("it is a DataLoader, expected its Dataset: give loader.dataset")
        elif isinstance(data, (str, dict, tuple, Tensor, np.ndarray)) or not _iterable(data):
            raise ValueError(f"it is a {type(data).__name__}, expected (images, labels) or a Dataset of such pairs")
        else:
            mapped = hasattr(data, "__len__") and hasattr(data, "__getitem__")
            images, labels = _items(data if mapped else list(data))
        if len(images) != len(labels) or len(images) == 0:
            raise ValueError(f"it has {len(images)} images and {len(labels)} labels, expected one label for each image")
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(" ".join(str(error).split())) from None
    return images, labels


def check_plain(images: Tensor, what: str = "images") -> None:
    """Raise an error if torch can hardly compute with these images."""
    if strange := _strange(images, PLAIN):
        raise ValueError(f"{what} are {strange}: expected a plain tensor of uint8, or of numbers from 0 to 1")


def check_countable(labels: Tensor, what: str = "labels") -> None:
    """Raise an error unless these labels can be made whole numbers."""
    if strange := _strange(labels, COUNTED):
        raise ValueError(f"{what} are {strange}: expected a plain tensor of whole numbers from 0")


def _strange(values: Tensor, kinds: tuple[torch.dtype, ...]) -> str:
    """What keeps a tensor from being a plain one of these types; empty if it is one."""
    if values.is_nested or values.layout != torch.strided:
        return f"a tensor of the layout {'nested' if values.is_nested else values.layout}"
    if values.is_meta:
        return "a meta tensor, without values"
    return "" if values.dtype in kinds else str(values.dtype)


def to_uint8(pixels: Tensor) -> Tensor:
    """Pixels as they are, or floating-point ones, from 0 to 1, as uint8."""
    check_plain(pixels)
    if not pixels.is_floating_point() or pixels.numel() == 0:
        return pixels
    if not (pixels.min() >= 0 and pixels.max() <= 1):  # NaN fails, too
        raise ValueError(
            f"pixels range from {pixels.min():g} to {pixels.max():g}, expected 0 to 1, or uint8 from 0 to 255"
        )
    return (pixels * 255).round().to(torch.uint8)


def shape_problem(shape: tuple[int, ...]) -> str | None:
    """Why images of this shape, the number of images first, cannot be used; None if they can."""
    given = f"they have the shape {shape}"
    if len(shape) == 3:
        return f"{given}: add the channel, as in images[:, None]"
    if len(shape) != 4 or 0 in shape[1:]:
        return f"{given}: expected (number, channels, height, width)"
    _, channels, height, last = shape
    if last in (1, 3, 4) and channels > 4 and height > 4:
        return f"{given}, with channels last: move them, as in np.moveaxis(images, -1, 1) or images.movedim(-1, 1)"
    return None


def _iterable(data: Any) -> bool:
    return isinstance(data, Iterable) or hasattr(data, "__getitem__")


def _images(images: Any) -> Tensor | Images:
    if isinstance(images, Images):
        return images
    if isinstance(images, np.ndarray) and images.dtype != object:
        with warnings.catch_warnings():  # torch warns of arrays that cannot be written: nothing here writes
            warnings.simplefilter("ignore")
            return to_uint8(torch.from_numpy(images))
    return to_uint8(images if isinstance(images, Tensor) else torch.from_numpy(np.stack([as_array(i) for i in images])))


def _labels(labels: Any) -> Tensor:
    numbers = labels if isinstance(labels, Tensor) else np.asarray(labels)
    if isinstance(numbers, np.ndarray):
        if numbers.dtype.kind not in "iubf":
            raise ValueError(
                f"labels are {numbers.dtype}, expected whole numbers from 0: "
                "names, labels = np.unique(labels, return_inverse=True) makes them"
            )
        numbers = torch.from_numpy(numbers.astype(np.int64) if numbers.dtype.kind != "f" else numbers)
    check_countable(numbers)
    return numbers if numbers.is_floating_point() else numbers.long()


def _items(dataset: Any) -> tuple[Tensor | Images, Tensor]:
    """A Dataset: in memory if it is small; otherwise only its labels are read."""
    if len(dataset) == 0:
        raise ValueError("it has no images")
    images = DatasetImages(dataset)
    small = np.prod(images.shape) <= IN_MEMORY
    if not small and (known := _stored_labels(dataset)) is not None:
        return images, known
    pixels = torch.empty(images.shape if small else 0, dtype=torch.uint8)
    labels = torch.empty(len(dataset), dtype=torch.int64)
    for row in range(len(dataset)):
        image, label = images.item(row)
        labels[row] = _whole_number(label, row)
        if image.shape != images.image_shape:
            raise ValueError(f"image {row} has the shape {image.shape}, the first one {images.image_shape}")
        if small:
            pixels.numpy()[row] = image
    return pixels if small else images, labels


def _whole_number(label: Any, row: int) -> int:
    try:
        return operator.index(label)
    except (TypeError, RuntimeError):  # torch raises both
        raise ValueError(f"the label of item {row} is {label!r:.40}, expected a whole number") from None


def _stored_labels(dataset: Any) -> Tensor | None:
    """The labels that a Dataset keeps as `targets` or `labels`, so that no image is read for them."""
    if hasattr(dataset, "dataset") and hasattr(dataset, "indices"):  # a Subset
        inner = _stored_labels(dataset.dataset)
        return None if inner is None else inner[torch.as_tensor(dataset.indices)]
    if getattr(dataset, "target_transform", None) is not None:
        return None
    for name in ("targets", "labels"):
        kept = np.asarray(getattr(dataset, name, ()))
        if kept.shape == (len(dataset),) and kept.dtype.kind in "iu":
            return torch.from_numpy(kept.astype(np.int64))
    return None


def as_array(value: Any) -> NDArray[Any]:
    """An image as an array, channels first. A Pillow image has its channels last, or none."""
    if isinstance(value, Tensor):
        check_plain(value)
        found: NDArray[Any] = (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
        return found
    array = np.array(value)
    if isinstance(value, Image.Image):
        return array[None] if array.ndim == 2 else array.transpose(2, 0, 1)
    return array
