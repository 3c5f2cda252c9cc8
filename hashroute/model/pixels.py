"""Arrays of images in the shape that a model takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from hashroute.data.photos import Photos, photo_pixels
from hashroute.images import Images
from hashroute.user_data import as_array, check_plain, to_uint8

AT_ONCE = 256
"""Images that are resized together."""
CHANNELS = (1, 3, 4)
"""Grey, colour, colour with transparency: a side of so many pixels is not a side."""


def fit_images(images: Tensor, image_shape: Sequence[int]) -> Tensor:
    """Images (n, channels, height, width), uint8, in the channels and the size of a model."""
    channels, *size = image_shape
    images = _in_channels(images, channels)
    if tuple(images.shape[2:]) == tuple(size):
        return images
    parts = [
        F.interpolate(part.float(), tuple(size), mode="bilinear", antialias=True).round().clamp(0, 255).to(torch.uint8)
        for part in images.split(AT_ONCE)
    ]
    return torch.cat(parts)


def _in_channels(images: Tensor, channels: int) -> Tensor:
    """Grey images become colour ones, and transparent pixels white, where a model takes colour."""
    given = images.shape[1]
    if given == channels:
        return images
    if channels == 3 and given == 1:
        return images.expand(-1, 3, -1, -1)
    if given == 4 and channels in (1, 3):
        opaque = images[:, 3:].float() / 255
        return _in_channels((images[:, :3] * opaque + 255 * (1 - opaque)).round().to(torch.uint8), channels)
    if channels == 1 and given == 3:
        weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
        return (images * weights).sum(1, keepdim=True).round().to(torch.uint8)
    raise ValueError(f"images have {given} channels: the model takes {channels}")


class FittedImages(Images):
    """Images in the shape that a model takes. Each is resized when it is read."""

    def __init__(self, images: Tensor | Images, image_shape: Sequence[int]) -> None:
        super().__init__(image_shape, len(images))
        self.images = images

    def read(self, row: int) -> NDArray[np.uint8]:
        """Read one image."""
        return fit_images(self.images[row][None], self.image_shape)[0].numpy()


def as_images(data: Any) -> Tensor:
    """An array or tensor of images as (n, channels, height, width), uint8; channels may come last or be left out."""
    array = data if isinstance(data, Tensor) else torch.from_numpy(np.array(data))
    check_plain(array)
    if not array.numel():
        raise ValueError(f"images have the shape {tuple(array.shape)}: expected at least one with pixels")
    if array.dim() == 3:
        array = array[:, None]
    if array.dim() != 4:
        raise ValueError(f"images have the shape {tuple(array.shape)}: expected (number, channels, height, width)")
    first, last = array.shape[1] in CHANNELS, array.shape[3] in CHANNELS
    if first and last:
        raise ValueError(
            f"images have the shape {tuple(array.shape)}, which can be read in two ways: resize them first"
        )
    if last:
        array = array.movedim(-1, 1)
    if not array.is_floating_point() and array.dtype != torch.uint8:
        if array.min() < 0 or array.max() > 255:
            raise ValueError(f"pixels range from {array.min()} to {array.max()}: expected 0 to 255, or 0 to 1")
        array = array.to(torch.uint8)
    return to_uint8(array.cpu()).contiguous()


def prediction_images(images: Any, image_shape: Sequence[int]) -> Tensor | Images:
    """What `predict` is given, in the shape that a model takes: one or more paths, Pillow images, arrays or tensors."""
    if isinstance(images, Images):
        return FittedImages(images, image_shape)
    if isinstance(images, (str, Path, Image.Image)):
        images = [images]
    if isinstance(images, (Tensor, np.ndarray)):
        if isinstance(images, Tensor):
            check_plain(images)
        one = images.ndim == 3 and (images.shape[0] in CHANNELS) != (images.shape[2] in CHANNELS)
        return fit_images(as_images(images[None] if one or images.ndim == 2 else images), image_shape)
    if not isinstance(images, Iterable) or isinstance(images, Mapping):
        raise ValueError(f"images are a {type(images).__name__}: expected paths, arrays, tensors or Pillow images")
    several = list(images)
    if not several:
        raise ValueError("there are no images to predict: expected at least one")
    if all(isinstance(each, (str, Path)) for each in several):
        return open_files(several, image_shape)
    return torch.cat([_fit_one(each, image_shape) for each in several])


def _fit_one(image: Any, image_shape: Sequence[int]) -> Tensor:
    """One image in the shape that a model takes: (1, channels, height, width)."""
    channels, size, _ = image_shape
    if isinstance(image, (str, Path)):
        return open_files([image], image_shape)[:]
    if isinstance(image, Image.Image):
        return torch.from_numpy(photo_pixels(image, size, channels == 3)[None].copy())
    array = as_array(image)
    if array.ndim not in (2, 3):
        raise ValueError(f"an image has the shape {tuple(array.shape)}: expected (channels, height, width)")
    return fit_images(as_images(array[None]), image_shape)


def open_files(files: Sequence[str | Path], image_shape: Sequence[int]) -> Photos:
    """Image files in the shape that a model takes."""
    channels, size, width = image_shape
    if channels not in (1, 3) or size != width:
        raise ValueError(f"the model takes images of the shape {tuple(image_shape)}: expected arrays, not files")
    return Photos(files, size, colour=channels == 3)


def look_grey(images: Tensor) -> bool:
    """Whether images have no colour. images: (n, channels, height, width), uint8."""
    if images.shape[1] != 3:
        return True
    values = images.float()
    return bool((values - values.mean(1, keepdim=True)).abs().mean() < 1)
