"""Readers of the usual files of MNIST, Fashion-MNIST, CIFAR-100 and SVHN; each checks what it reads."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images and labels: (n, channels, height, width) of uint8, and (n,) of int64."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, rows: Any) -> Split:
        return Split(self.images[rows], self.labels[rows])


@dataclass(frozen=True)
class Dataset:
    """A data set as it was published: what to train on, what to test on, and what the labels mean."""

    train: Split
    test: Split
    class_names: tuple[str, ...]


class BrokenFileError(ValueError):
    """A file that is not what its name says; the message is one line."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path} cannot be used: {problem}; delete it, and it is downloaded again, or replace it")


def checked(
    path: Path, images: NDArray[Any], labels: NDArray[Any], shape: tuple[int, ...], classes: int, count: int | None
) -> Split:
    """A split, if it has images of this shape, a label from 0 for each, and as many as there should be."""
    if images.dtype != np.uint8 or images.shape[1:] != shape:
        raise BrokenFileError(path, f"images are {images.dtype} of {images.shape[1:]}, expected uint8 of {shape}")
    if len(images) != len(labels):
        raise BrokenFileError(path, f"{len(images)} images and {len(labels)} labels")
    if len(images) == 0 or (count is not None and len(images) != count):
        raise BrokenFileError(path, f"{len(images)} images, expected {count or 'some'}")
    if labels.min() < 0 or labels.max() >= classes:
        raise BrokenFileError(path, f"labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")
    return Split(torch.from_numpy(np.ascontiguousarray(images)), torch.from_numpy(labels.astype(np.int64)))


def read_idx_split(images: Path, labels: Path, count: int) -> Split:
    """A split of MNIST or Fashion-MNIST."""
    return checked(images, read_idx(images)[:, None], read_idx(labels), (1, 28, 28), 10, count)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """A gzipped IDX file of bytes: two zeros, the type, the number of dimensions, the sizes, the numbers."""
    try:
        content = gzip.decompress(path.read_bytes())
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise BrokenFileError(path, f"it is not a whole gzip file ({error})") from None
    if content[:3] != b"\0\0\x08" or len(content) < 4 + 4 * content[3]:
        raise BrokenFileError(path, "it is not an IDX file of bytes")
    shape = struct.unpack(f">{content[3]}I", content[4 : 4 + 4 * content[3]])
    numbers = np.frombuffer(content, np.uint8, offset=4 + 4 * content[3])
    if numbers.size != int(np.prod(shape)):
        raise BrokenFileError(path, f"it holds {numbers.size} numbers, its head promises {'x'.join(map(str, shape))}")
    return numbers.reshape(shape).copy()


def read_cifar_split(path: Path, count: int) -> Split:
    """A split of CIFAR-100, with its hundred fine labels."""
    batch = read_pickle(path)
    try:
        pixels, labels = np.asarray(batch["data"]), np.asarray(batch["fine_labels"])
        return checked(path, pixels.reshape(-1, 3, 32, 32), labels, (3, 32, 32), 100, count)
    except (KeyError, TypeError) as error:
        raise BrokenFileError(path, f"it is not a batch of CIFAR-100 ({error})") from None


def read_cifar_names(path: Path) -> tuple[str, ...]:
    """The names of CIFAR-100's fine labels."""
    names = read_pickle(path).get("fine_label_names")
    if not isinstance(names, list) or len(names) != 100:
        raise BrokenFileError(path, "it does not hold the names of 100 classes")
    return tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)


class _SafeUnpickler(pickle.Unpickler):
    """Allows numpy arrays and plain containers; anything else in a pickle could run code."""

    ALLOWED = frozenset(
        {("numpy", "ndarray"), ("numpy", "dtype"), ("_codecs", "encode")}
        | {(f"numpy.{core}.multiarray", name) for core in ("core", "_core") for name in ("_reconstruct", "scalar")}
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no data file needs")
        return super().find_class(module, name)


def read_pickle(path: Path) -> dict[str, Any]:
    """A pickled dict of arrays and plain values, its keys as text."""
    try:
        content = _SafeUnpickler(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError) as error:
        raise BrokenFileError(path, f"it is not a whole pickle of arrays ({error})") from None
    if not isinstance(content, dict):
        raise BrokenFileError(path, f"it holds a {type(content).__name__}, expected a dict")
    return {key.decode() if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def read_svhn_split(path: Path) -> Split:
    """A split of SVHN's cropped digits; label 10 stands for the digit 0. A part of the published file is fine."""
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    try:
        content = loadmat(path)
        pixels, labels = content["X"], content["y"].ravel()
        if pixels.ndim != 4:
            raise BrokenFileError(path, f"its images have shape {pixels.shape}, expected (32, 32, 3, number)")
    except (MatReadError, ValueError, TypeError, KeyError, OSError, EOFError, zlib.error) as error:
        if isinstance(error, (FileNotFoundError, PermissionError, BrokenFileError)):
            raise
        raise BrokenFileError(path, f"it is not a whole .mat file with X and y ({error})") from None
    if labels.size and (labels.min() < 1 or labels.max() > 10):
        raise BrokenFileError(path, f"labels from {labels.min()} to {labels.max()}, expected 1 to 10")
    return checked(path, pixels.transpose(3, 2, 0, 1), labels % 10, (3, 32, 32), 10, None)
