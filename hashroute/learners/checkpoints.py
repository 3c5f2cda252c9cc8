"""Checkpoints: files of tensors and plain values that carry a digest of their own content."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute import distributed
from hashroute.schema import one_line, shown
from hashroute.storage import check_regular

FORMAT = 5
"""Files of other formats are not read."""
MOST_BYTES = 2**34
"""A larger file is not read."""
MOST_PARTS = 2**20
"""A file with more values, which may be inside of each other, is not read."""
MOST_REPEATED = 2**28
"""Bytes that tensors may have beyond those in the file, as expanded ones do."""
RAW = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)
"""What wrong values provoke where they are used."""


class UnfitError(ValueError):
    """A checkpoint lacks parts, or has parts that do not fit what continues from it."""


@contextmanager
def fitting(*errors: type[Exception]) -> Iterator[None]:
    """Turns what a checkpoint with missing or wrong parts provokes into an `UnfitError`.

    errors: only these; by default all that it may provoke.
    """
    try:
        yield
    except (UnfitError, distributed.RanksError, OSError, MemoryError):
        raise
    except Exception as error:
        if errors and not isinstance(error, errors):
            raise
        what = error if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        raise UnfitError(one_line(what, 120)) from error


def pack(values: dict[str, Any]) -> memoryview:
    """The content of a file that `unpack` reads."""
    content = io.BytesIO()
    # Not into the file: torch reports a full disk as a RuntimeError without a clear message.
    torch.save({**values, "format": FORMAT, "digest": _digest(values)}, content)
    return content.getbuffer()


def unpack(path: Path) -> dict[str, Any]:
    """The values in a file; an error if they are not those that were written. Nothing in the file is executed."""
    check_regular(path, MOST_BYTES)
    try:
        _check_unpacked(path)
        values: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        _check_plain(values)
        found, digest = values.pop("format"), values.pop("digest", None)
    except OSError:
        raise
    except Exception as error:  # a damaged file can raise anything
        raise ValueError(f"{path} is not a checkpoint ({type(error).__name__})") from None
    if found != FORMAT:
        raise ValueError(f"{path} has format {shown(found)}, this version of hashroute reads {FORMAT}")
    if digest != _digest(values):
        raise ValueError(f"{path} is not a checkpoint (its content has changed)")
    return values


def _check_unpacked(path: Path) -> None:
    """Raise an error if a file would take more memory than it has bytes."""
    with zipfile.ZipFile(path) as file:  # older files of torch are not, and say themselves how large they are
        parts = file.infolist()
    if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
        raise ValueError("its parts are compressed")
    if sum(part.file_size for part in parts) > path.stat().st_size:
        raise ValueError("its parts are larger than itself")


def _check_plain(value: Any) -> None:
    """Raise an error unless values are of bounded number, and tensors hardly larger than what they view."""
    waiting, count, repeated = [value], 0, 0
    while waiting:
        each, count = waiting.pop(), count + 1
        if isinstance(each, Tensor):
            repeated += max(0, each.numel() * each.element_size() - each.untyped_storage().nbytes())
            if repeated > MOST_REPEATED:
                raise ValueError("a tensor is larger than its storage")
        elif isinstance(each, dict | list | tuple):
            waiting.extend(each.values() if isinstance(each, dict) else each)
        if count + len(waiting) > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_PARTS:,} values")


def _digest(values: dict[str, Any]) -> str:
    """A hash of all values, of their types and of their places."""
    digest = hashlib.sha256()
    for part in _parts(values):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield f"dict {len(value)};".encode()
        for name, each in value.items():
            yield f"{name!r};".encode()
            yield from _parts(each)
    elif isinstance(value, list | tuple):
        yield f"list {len(value)};".encode()
        for each in value:
            yield from _parts(each)
    elif isinstance(value, Tensor):
        yield f"{value.dtype} {tuple(value.shape)};".encode()
        yield value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
    else:
        yield f"{value!r};".encode()
