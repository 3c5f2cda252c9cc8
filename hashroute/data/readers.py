"""Readers of the published files of MNIST, Fashion-MNIST, CIFAR-100 and SVHN. Each checks what it reads."""

from __future__ import annotations

import gzip
import io
import math
import pickle  # the unpickler below finds no code  # nosec B403
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hashroute.data.matlab import read_matlab
from hashroute.schema import one_line
from hashroute.storage import check_regular
from hashroute.tasks import Split

MOST_BYTES = 2**28
"""A file that is larger, or holds more when it is unpacked, is not read."""


@dataclass(frozen=True)
class Dataset:
    """The content of a data set as published: training images, test images and class names."""

    train: Split
    test: Split
    class_names: tuple[str, ...]


class BrokenFileError(ValueError):
    """A file whose content is not what its name promises. The message is one line."""

    def __init__(self, path: Path, problem: str) -> None:
        problem = " ".join(problem.split())
        super().__init__(f"{path} cannot be used: {problem}; delete it to download it again, or replace it")


@contextmanager
def named(path: Path) -> Iterator[None]:
    """Turn any error about a broken file into one that names the file."""
    try:
        yield
    except (BrokenFileError, FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # a corrupt file can raise anything in a parser
        what = one_line(f"{type(error).__name__}: {error}".replace(str(path), "it"), 120)
        raise BrokenFileError(path, f"its content is not what its name promises ({what})") from None


def checked_images(path: Path, images: NDArray[Any], shape: tuple[int, ...], count: int | None) -> Tensor:
    """Return the images as a tensor if their shape and number are as expected."""
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        raise BrokenFileError(path, f"images are {images.dtype} of {images.shape[1:]}, expected uint8 of {shape}")
    if len(images) == 0 or (count is not None and len(images) != count):
        raise BrokenFileError(path, f"{len(images)} images, expected {count or 'some'}")
    return torch.from_numpy(np.ascontiguousarray(images))


def checked_labels(path: Path, labels: NDArray[Any], images: int, least: int, most: int) -> Tensor:
    """Return the labels as a tensor if there is an integer in this range for every image."""
    if labels.shape != (images,) or not np.issubdtype(labels.dtype, np.integer):
        raise BrokenFileError(
            path, f"labels are {labels.dtype} of {labels.shape}, expected one for each of {images} images"
        )
    if labels.min() < least or labels.max() > most:
        raise BrokenFileError(path, f"labels from {labels.min()} to {labels.max()}, expected {least} to {most}")
    return torch.from_numpy(labels.astype(np.int64))


def read_idx_split(images: Path, labels: Path, count: int) -> Split:
    """Read a split of MNIST or Fashion-MNIST."""
    pixels = checked_images(images, read_idx(images, 16 + count * 784)[:, None], (1, 28, 28), count)
    return Split(pixels, checked_labels(labels, read_idx(labels, 8 + count), count, 0, 9))


def read_idx(path: Path, most: int) -> NDArray[np.uint8]:
    """Read a gzipped IDX file of bytes: two zeros, the type, the number of dimensions, the sizes, the values.

    most: bytes that it may hold when it is unpacked.
    """
    with named(path):
        check_regular(path, MOST_BYTES)
        with gzip.open(path) as file:
            content = file.read(most)
            if file.read(1):
                raise BrokenFileError(path, f"it holds more than the {most:,} bytes that are expected")
        if content[:3] != b"\0\0\x08" or content[3] == 0:
            raise BrokenFileError(path, "it is not an IDX file of bytes")
        shape = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
        numbers = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
        if numbers.size != math.prod(shape):
            raise BrokenFileError(path, f"it holds {numbers.size} values, its header promises {math.prod(shape)}")
        return numbers.reshape(shape).copy()


def read_cifar_split(path: Path, count: int) -> Split:
    """Read a split of CIFAR-100 with its hundred fine labels."""
    batch = read_pickle(path)
    with named(path):
        pixels = checked_images(path, np.asarray(batch["data"]).reshape(-1, 3, 32, 32), (3, 32, 32), count)
        return Split(pixels, checked_labels(path, np.asarray(batch["fine_labels"]), count, 0, 99))


def read_cifar_names(path: Path) -> tuple[str, ...]:
    """Read the names of CIFAR-100's fine labels."""
    names = read_pickle(path).get("fine_label_names")
    if not isinstance(names, list) or len(names) != 100:
        raise BrokenFileError(path, "it does not hold the names of 100 classes")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


class _Part:
    """Stands in a pickle for an array of numpy, or for the type of its numbers. numpy itself trusts any pickle."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.state: Any = ()


def _array(part: _Part) -> NDArray[np.uint8]:
    """The array of bytes that this stands for."""
    _, shape, kind, columns_first, content = part.state
    if kind.given[0] not in ("u1", b"u1") or math.prod(shape) != len(content):
        raise ValueError(f"an array of {kind.given[0]} has the shape {shape}, and {len(content)} bytes")
    return np.frombuffer(content, np.uint8).reshape(shape, order="F" if columns_first else "C").copy()


def _latin1(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise ValueError(f"text is encoded as {encoding}")
    return text.encode(encoding)


class _SafeUnpickler(pickle._Unpickler):
    """Allows arrays of bytes and plain containers only, because anything else in a pickle could run code.

    This is Python's own unpickler in Python: the one in C takes as much memory as a number in the file asks for.
    """

    stack: list[Any]
    ALLOWED: ClassVar[dict[tuple[str, str], Callable[..., Any]]] = {
        ("numpy", "ndarray"): _Part,
        ("numpy", "dtype"): _Part,
        ("numpy.core.multiarray", "_reconstruct"): _Part,
        ("numpy._core.multiarray", "_reconstruct"): _Part,
        ("_codecs", "encode"): _latin1,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not allowed in a data file")
        return self.ALLOWED[module, name]

    def load_build(self) -> None:
        """Only stand-ins get a state."""
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Part):
            raise pickle.UnpicklingError(f"it changes a {type(self.stack[-1]).__name__}")
        self.stack[-1].state = state

    dispatch: ClassVar[dict[int, Any]] = {
        **{code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]},
        pickle.BUILD[0]: load_build,
    }


def read_pickle(path: Path) -> dict[str, Any]:
    """Read a pickled dict of arrays of bytes and plain values; keys become text."""
    with named(path):
        check_regular(path, MOST_BYTES)
        content = _SafeUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
        if not isinstance(content, dict):
            raise BrokenFileError(path, f"it holds a {type(content).__name__}, expected a dict")
        texts = {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}
        return {key: _array(value) if isinstance(value, _Part) else value for key, value in texts.items()}


def read_svhn_split(path: Path) -> Split:
    """Read a split of SVHN's cropped digits, where label 10 means the digit 0. Files with fewer images are accepted."""
    with named(path):
        content = read_matlab(path, MOST_BYTES)
        pixels = checked_images(path, content["X"].transpose(3, 2, 0, 1), (3, 32, 32), None)
        return Split(pixels, checked_labels(path, content["y"].ravel(), len(pixels), 1, 10) % 10)
