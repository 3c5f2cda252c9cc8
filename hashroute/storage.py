"""Files that are whole or absent: a file gets its name only when it is complete and on the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new file, and give it this name when it is complete. Until then an old file stays."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.unfinished")
    try:
        write(unfinished)
        with open(unfinished, "rb+") as file:
            os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON for people to read, whole or not at all."""
    text = json.dumps(value, indent=1) + "\n"
    replace_file(path, lambda file: file.write_text(text))


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
