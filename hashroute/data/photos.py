"""Image files of any size, resized when they are read."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from hashroute.images import Images, read_ahead
from hashroute.schema import one_line
from hashroute.tasks import Split

logger = logging.getLogger(__name__)

CHUNK = 32
"""Files that a thread checks at a time."""
MOST_PIXELS = 50_000_000
"""A larger image is not decoded, unless it is a JPEG, which is decoded at a fraction of its size."""
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "MPO", "AVIF", "JPEG2000", "ICO", "TGA", "PCX", "SGI")
"""Formats that are read. Pillow has more, and starts other programs for some of them."""
LISTED = 10
"""Files that a warning names."""


class Photos(Images):
    """Image files as images of size x size pixels, in colour or grey. Nothing is read before it is needed."""

    def __init__(self, files: Sequence[str | Path], size: int, colour: bool = True) -> None:
        if size < 1:
            raise ValueError(f"size is {size}: expected at least 1")
        super().__init__((3 if colour else 1, size, size), len(files))
        self.files = [str(file) for file in files]

    def read(self, row: int) -> NDArray[np.uint8]:
        """Read one file."""
        channels, size, _ = self.image_shape
        return read_photo(self.files[row], size, colour=channels == 3)

    def contents(self) -> Iterator[bytes]:
        """The content of every file."""
        yield from (Path(self.files[row]).read_bytes() for row in self._rows.tolist())


def read_photo(path: str | Path, size: int, colour: bool = True) -> NDArray[np.uint8]:
    """Read an image file as a person sees it: (channels, size, size)."""
    try:
        if not Path(path).is_file():
            raise ValueError("it is not a file")
        with Image.open(path, formats=formats()) as image:
            return photo_pixels(image, size, colour)
    except Exception as error:  # a damaged file can raise anything in a decoder
        reason = one_line(error, 120) or type(error).__name__
        if isinstance(error, UnidentifiedImageError):
            reason = "it is something else"
        raise ValueError(f"{path} cannot be read as an image ({reason})") from None


@cache
def formats() -> tuple[str, ...]:
    """The formats that are read, as far as this Pillow has them."""
    Image.init()
    return tuple(each for each in FORMATS if each in Image.OPEN)


def photo_pixels(image: Image.Image, size: int, colour: bool = True) -> NDArray[np.uint8]:
    """The pixels of an image: (channels, size, size).

    The orientation that a camera stored is applied, transparent pixels become white, and 16 bits become 8.
    """
    image.draft(None, (2 * size, 2 * size))  # a JPEG that is much larger is decoded at a fraction of its size
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(f"it has {image.width:,} x {image.height:,} pixels, expected at most {MOST_PIXELS:,}")
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I;16"):
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.mode in ("I", "F"):
        raise ValueError("pixels of 32 bits have no fixed range")
    if upright.has_transparency_data:
        upright = Image.alpha_composite(Image.new("RGBA", upright.size, "white"), upright.convert("RGBA"))
    plain = upright.convert("RGB" if colour else "L").resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(plain)
    return pixels.transpose(2, 0, 1) if colour else pixels[None]


def open_photos(photos: Photos, labels: Tensor, in_memory: bool) -> Split:
    """Read image files into memory, or only check that they can be read.

    A file that cannot be read is left out; a warning counts and names such files.
    """
    whole, problems = check_photos(photos, labels, in_memory)
    if problems:
        more = f"; and {len(problems) - LISTED} more" if len(problems) > LISTED else ""
        count, total = len(problems), len(photos)
        logger.warning("%d of %d files are left out: %s%s", count, total, "; ".join(problems[:LISTED]), more)
    return whole


def check_photos(photos: Photos, labels: Tensor, in_memory: bool) -> tuple[Split, list[str]]:
    """The files that can be read, in memory if asked, and what is wrong with the others."""
    pixels = torch.empty(photos.shape if in_memory else 0, dtype=torch.uint8)
    readable = torch.ones(len(photos), dtype=torch.bool)
    problems: list[str] = []
    chunks = torch.arange(len(photos)).split(CHUNK)
    for results in read_ahead((True, partial(_try, photos, rows, in_memory)) for rows in chunks):
        for row, image in results:
            if isinstance(image, ValueError):
                readable[row] = False
                problems.append(str(image))
            elif image is not None:
                pixels.numpy()[row] = image
    whole = Split(pixels if in_memory else photos, labels)
    return whole[readable] if problems else whole, problems


def _try(photos: Photos, rows: Tensor, keep: bool) -> list[tuple[int, NDArray[np.uint8] | ValueError | None]]:
    """Try to read these rows. Returns for each row its image (None unless `keep`), or the error."""
    found: list[tuple[int, NDArray[np.uint8] | ValueError | None]] = []
    for row in rows.tolist():
        try:
            image = photos.read(row)
            found.append((row, image if keep else None))
        except ValueError as error:
            found.append((row, error))
    return found
