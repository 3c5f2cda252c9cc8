"""Files that are whole or absent: a file gets its name only when it is complete and on the disk."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

if TYPE_CHECKING:
    from torch import Tensor


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new file, and give it this name when it is complete. Until then an old file stays."""
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}.unfinished")
    try:
        write(unfinished)
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException as error:
        with suppress(OSError):  # what happened before counts
            unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and str(error.filename) == str(unfinished):  # its name tells nobody anything
            raise type(error)(error.errno, error.strerror, str(path)) from None
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people to read, whole or not at all."""
    text = json.dumps(value, indent=1) + "\n"
    replace_file(path, lambda file: file.write_text(text))


def write_content(folder: Path, content: bytes, ending: str) -> str:
    """Write a file that is named by the SHA-256 of its content, unless it is there; returns its name."""
    name = hashlib.sha256(content).hexdigest() + ending
    if not (folder / name).exists():
        replace_file(folder / name, lambda file: file.write_bytes(content))
    return name


def has_its_content(path: Path) -> bool:
    """Whether a file that is named by the SHA-256 of its content holds this content."""
    return digest_of(path) == path.name.partition(".")[0]


def digest_of(path: Path, kind: str = "sha256") -> str:
    """The SHA-256, or another hash, of a file's content."""
    digest = hashlib.new(kind, usedforsecurity=kind == "sha256")
    with open(path, "rb") as file:
        for part in iter(partial(file.read, 2**20), b""):
            digest.update(part)
    return digest.hexdigest()


def is_content_name(name: str, endings: tuple[str, ...]) -> bool:
    """Whether this is a name that `write_content` gives, with one of these endings."""
    stem, dot, ending = name.partition(".")
    return len(stem) == 64 and set(stem) <= set("0123456789abcdef") and dot + ending in endings


def read_bounded(path: Path, most: int) -> bytes:
    """The content of a regular file of at most this many bytes."""
    check_regular(path, most)
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path} grows while it is read: expected at most {most:,} bytes")
    return content


def check_regular(path: Path, most: int) -> None:
    """Raise an error unless this is a regular file of at most this many bytes: reading others may never end."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(21, "it is a folder, expected a file", str(path))
    if not stat.S_ISREG(found.st_mode):
        raise ValueError(f"{path} is a pipe or a device: expected a file")
    if found.st_size > most:
        raise ValueError(f"{path} has {found.st_size:,} bytes: expected at most {most:,}")


def remove_unfinished(folder: Path, name: str = "*") -> None:
    """Remove incomplete files that a killed process left in a folder; `name` restricts this to one file."""
    for file in folder.glob(f".{name}.*.unfinished"):
        file.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Bring the names of a folder's files to the disk: a new name may otherwise be lost when the power fails."""
    if os.name == "nt":  # which has no such call
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(place)
    finally:
        os.close(place)


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors in a file.

    It is read and not mapped: if another program cut a mapped file short, the process would end. And safetensors 0.8
    loses some bytes whenever it maps a file.
    """
    from safetensors.torch import load

    return load(path.read_bytes())
