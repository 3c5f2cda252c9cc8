"""Checkpoints: files of tensors and plain values that carry a digest of their own content."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute.schema import shown
from hashroute.storage import check_regular

FORMAT = 5
"""Files of other formats are not read."""
MOST_BYTES = 2**34
"""A larger file is not read."""


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
        values: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
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
