"""Files that are whole or absent: what is written takes its name only when it is complete and on the disk."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a new file, and give it this name when it is complete; an old one stays until then."""
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


def insert_seed(entry: dict[str, Any], seed: int, values: dict[str, Any]) -> None:
    """Add what a seed gave to the lists of an entry of a result file, seeds in order."""
    place, before = sum(other < seed for other in entry["seeds"]), len(entry["seeds"])
    values = {"seeds": seed, **values}
    for name in dict.fromkeys([*(name for name, kept in entry.items() if isinstance(kept, list)), *values]):
        entry.setdefault(name, [None] * before).insert(place, values.get(name))  # None for what one does not say


def remove_unfinished(folder: Path, name: str = "*") -> None:
    """Remove what a killed process left half-written of a file, or of all files, in a folder."""
    for file in folder.glob(f".{name}.*.unfinished"):
        file.unlink(missing_ok=True)
