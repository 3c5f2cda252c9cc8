"""The files of a run's folder as bytes, to be sent to another machine and back."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from hashroute.storage import is_content_name, read_bounded, replace_file

MOST_BYTES = 2**30
"""All files of a run together, at most."""
NAMES = ("settings.json", "epochs.jsonl", "checkpoint.pt", "learner.json", "samples.json", "error.txt", "result.json")
"""In the order in which they are written: the log before its checkpoint, the result when everything else is there."""
PASSING = ("checkpoint.pt", "error.txt")
"""Files that a later state of the folder may not have any more."""

Files = dict[str, bytes]


def pack(folder: Path) -> Files:
    """The content of each file of a run; an error if it is too much to send. A folder may be missing."""
    files: Files = {}
    room = MOST_BYTES
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if _belongs(path.name):
            if path.stat().st_size > room:
                raise ValueError(f"the files of {folder.name} take more than {MOST_BYTES:,} bytes: do this run locally")
            files[path.name] = read_bounded(path, room)
            room -= len(files[path.name])
    return files


def unpack(files: Files, folder: Path) -> None:
    """Write the files of a run. Stopped at any moment, the folder can be resumed."""
    strange = [name for name in files if not _belongs(name)]
    if strange:
        raise ValueError(f"a worker sent {strange[0]!r:.80}: expected the files of a run")
    folder.mkdir(parents=True, exist_ok=True)
    order = {name: NAMES.index(name) if name in NAMES else 2.5 for name in files}  # tensors before their description
    for name in sorted(files, key=order.__getitem__):
        replace_file(folder / name, partial(_write, files[name]))
    for name in PASSING:
        if files and name not in files:
            (folder / name).unlink(missing_ok=True)


def _write(content: bytes, path: Path) -> None:
    path.write_bytes(content)


def _belongs(name: str) -> bool:
    """Whether a run writes files of this name."""
    return name in NAMES or is_content_name(name, (".safetensors",))
