"""The folder of a model: objects that never change, and one manifest that says which of them count.

    MODEL/manifest.json     format, settings, tasks and history
    MODEL/objects/          tensors (.safetensors) and records (.json), each named by the SHA-256 of its content
    MODEL/unfinished/       checkpoints of tasks that are being learned
    MODEL/unreadable/       lists of the files that could not be read, by task

A change writes new objects first and then replaces the manifest. A process that is killed leaves the model before the
change or after it. One process writes at a time; any number of processes read.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar

from filelock import FileLock, Timeout
from safetensors.torch import save
from torch import Tensor
from typing_extensions import NotRequired

from hashroute.schema import one_line, read_format, read_json, shown
from hashroute.storage import (
    check_regular,
    has_its_content,
    is_content_name,
    load_tensors,
    remove_unfinished,
    replace_file,
    sync_folder,
    write_content,
)

FORMAT = 1
"""The format of the folder."""
WAIT = 0.5
"""Seconds that a writer waits for another one to end."""
MOST_CHANGES = 20
"""Changes that can be undone, beside those of private tasks: each keeps a shared head."""
MOST_BYTES = {".json": 2**24, ".safetensors": 2**34}
"""Objects that are larger are not read."""
MOST_MANIFEST = 2**25
"""A larger manifest is not read."""
MOST_TASKS = 10_000
"""Tasks of a model, at most: each takes memory even before it is asked."""
TRIES = 10
"""How often something is read that others change meanwhile."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Change:
    """One step of the history, with what `undo` needs."""

    action: Literal["learn", "rename"]
    """learn: a task is new or was learned further. rename: it got another name."""
    task: str
    """The name of the task after the change."""
    before: str | None = None
    """learn: the record that it had before, None for a new task. rename: its old name."""
    shared: str | None = None
    """learn: the shared head before, unless the task is private."""
    private: bool = False
    """Whether the task is private: then the shared head does not know it."""


@dataclass(frozen=True)
class Manifest:
    """The state of a model: settings, the record of each task, and what was done to get here."""

    settings: dict[str, Any] = field(default_factory=dict)
    tasks: dict[str, str] = field(default_factory=dict)
    """The object with the record of each task, by the name of the task, in the order in which they were learned."""
    history: tuple[Change, ...] = ()
    shared: str | None = None
    """The object with the shared head of all tasks that are not private."""

    def learned(self, task: str, record: str, shared: str | None = None, private: bool = False) -> Manifest:
        """The manifest with a task that is new or was learned further, and the shared head that knows it."""
        change = Change("learn", task, self.tasks.get(task), None if private else self.shared, private)
        tasks, history = {**self.tasks, task: record}, _bounded_history((*self.history, change))
        return replace(self, tasks=tasks, history=history, shared=self.shared if private else shared)

    def renamed(self, old: str, new: str) -> Manifest:
        """The manifest with another name for a task; its history is told with the new name."""
        changed = _renamed(self, old, new)
        return replace(changed, history=(*changed.history, Change("rename", new, old)))

    def undone(self) -> Manifest:
        """The manifest before the last change."""
        last, earlier = self.history[-1], replace(self, history=self.history[:-1])
        if last.action == "rename":
            assert last.before is not None, "a rename has an old name"
            return _renamed(earlier, last.task, last.before)
        tasks = {name: record for name, record in self.tasks.items() if name != last.task or last.before is not None}
        if last.before is not None:
            tasks[last.task] = last.before
        shared = self.shared if last.private else last.shared
        return replace(earlier, tasks=tasks, shared=shared).trimmed()

    def without(self, task: str) -> Manifest:
        """The manifest of a model that never had a task: neither tasks nor history name it."""
        tasks = {name: record for name, record in self.tasks.items() if name != task}
        return replace(self, tasks=tasks, history=tuple(each for each in self.history if each.task != task)).trimmed()

    def trimmed(self) -> Manifest:
        """A model without tasks has no settings: the next task chooses them."""
        return self if self.tasks else Manifest()

    def records(self) -> set[str]:
        """The records that count: those of tasks, and those that `undo` can bring back."""
        earlier = {change.before for change in self.history if change.action == "learn" and change.before is not None}
        return {*self.tasks.values(), *earlier}

    def shared_heads(self) -> set[str]:
        """The shared heads that count."""
        return {name for name in (self.shared, *(change.shared for change in self.history)) if name is not None}


def _bounded_history(history: tuple[Change, ...]) -> tuple[Change, ...]:
    """The last changes. Private tasks do not count, so that the history tells nothing about them."""
    old = [place for place, change in enumerate(history) if not change.private][:-MOST_CHANGES]
    return tuple(change for place, change in enumerate(history) if place not in old)


def _renamed(manifest: Manifest, old: str, new: str) -> Manifest:
    tasks = {new if name == old else name: record for name, record in manifest.tasks.items()}
    history = tuple(replace(each, task=new) if each.task == old else each for each in manifest.history)
    return replace(manifest, tasks=tasks, history=history)


class _Written(TypedDict):
    """The content of manifest.json."""

    format: int
    settings: dict[str, Any]
    tasks: dict[str, str]
    history: list[Change]
    shared: NotRequired[str | None]


class _Record(TypedDict):
    """What every record holds; the rest is the business of `records`."""

    objects: dict[str, str]


class Store:
    """The folder of a model. A folder that does not exist is a model without tasks."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.objects = self.path / "objects"
        self.unfinished = self.path / "unfinished"
        self.unreadable = self.path / "unreadable"
        self._manifest = self.path / "manifest.json"
        self._objects_of: dict[str, set[str]] = {}
        """The objects of records that were read: a record never changes."""

    # ---------------------------------------------------------------- reading

    @property
    def exists(self) -> bool:
        """Whether there is a model in the folder."""
        return self._manifest.is_file()

    def stamp(self) -> tuple[int, int, int] | None:
        """Something that differs after every change; None if there is no model."""
        try:
            found = self._manifest.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size

    def consistently(self, use: Callable[[], Result]) -> Result:
        """Use the files of one version. A change meanwhile may remove some of them: then it is done again."""
        for _ in range(TRIES - 1):
            stamp = self.stamp()
            try:
                return use()
            except FileNotFoundError:
                if self.stamp() == stamp:
                    raise
        return use()

    def read(self) -> Manifest:
        """The manifest as it is now."""
        if not self.exists:
            if self.path.exists() and not (self.path.is_dir() and self._is_ours()):
                raise ValueError(f"{self.path} is not a model: expected a folder that hashroute learn made, or none")
            return Manifest()
        plain = read_format(self._manifest, {FORMAT: _Written}, MOST_MANIFEST)
        manifest = Manifest(
            plain["settings"],
            plain["tasks"],
            tuple(Change(**change) for change in plain["history"]),
            plain.get("shared"),
        )
        if len(manifest.tasks) > MOST_TASKS:
            raise ValueError(f"{self._manifest} is damaged: it has {len(manifest.tasks):,} tasks")
        for name in manifest.records() | manifest.shared_heads():
            self._place(name)
        return manifest

    def _is_ours(self) -> bool:
        """Whether a folder without a manifest is empty, or one that a writer has only just begun."""
        ours = {self.objects.name, self.unfinished.name, self.unreadable.name, ".lock"}
        return all(path.name in ours or path.name.endswith(".unfinished") for path in self.path.iterdir())

    def json(self, name: str) -> dict[str, Any]:
        """The record with this name."""
        advice = "run hashroute verify, and restore it from a copy"
        record: dict[str, Any] = read_json(self._place(name), _Record, MOST_BYTES[".json"], advice)
        for each in record["objects"].values():
            self._place(each)
        return record

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors in the object with this name. The file is mapped, not copied."""
        path = self._place(name)
        try:
            check_regular(path, MOST_BYTES[".safetensors"])
            return load_tensors(path)
        except OSError:
            raise
        except Exception as error:  # safetensors has its own kinds of errors
            raise ValueError(f"{path} is damaged ({one_line(error)}): run hashroute verify") from None

    def size(self, name: str) -> int:
        """The bytes of an object; 0 if it is missing, which whoever reads it says."""
        path = self._place(name)
        return path.stat().st_size if path.exists() else 0

    def _place(self, name: str) -> Path:
        """The path of an object; an error if this is not the name of one."""
        if not is_content_name(name, tuple(MOST_BYTES)):
            raise ValueError(f"{self._manifest} is damaged: {shown(name)} is not the name of an object")
        return self.objects / name

    # ---------------------------------------------------------------- writing

    @contextmanager
    def writing(self) -> Iterator[Manifest]:
        """Hold the lock of the folder, which ends with the process; gives the manifest as it is now."""
        self.read()  # refuse a folder of something else before anything is written
        made = [place for place in (self.path, *self.path.parents) if not place.exists()]
        self.objects.mkdir(parents=True, exist_ok=True)
        for place in made:
            sync_folder(place.parent)
        lock = FileLock(self.path / ".lock", timeout=WAIT)
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(
                f"{self.path} is being changed by another process: wait until it has ended, then repeat the command"
            ) from None
        try:
            manifest = self.read()
            self._sweep(manifest)
            yield manifest
        finally:
            lock.release()

    def put_json(self, record: dict[str, Any]) -> str:
        """Add a record; returns its name."""
        content = json.dumps(record, indent=1, sort_keys=True).encode() + b"\n"
        return write_content(self.objects, content, ".json")

    def put_tensors(self, tensors: dict[str, Tensor]) -> str:
        """Add tensors; returns the name of the object."""
        plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in sorted(tensors.items())}
        return write_content(self.objects, save(plain), ".safetensors")

    def commit(self, manifest: Manifest) -> None:
        """Make a manifest the present one, then remove what no manifest needs any more."""
        plain = {"format": FORMAT, **asdict(manifest)}
        text = json.dumps(plain, indent=1) + "\n"
        sync_folder(self.objects)
        replace_file(self._manifest, lambda file: file.write_text(text))
        sync_folder(self.path)
        self._sweep(manifest)

    def _sweep(self, manifest: Manifest) -> None:
        """Remove objects that nothing refers to, and what killed processes and finished tasks left."""
        needed = self._needed(manifest)
        for folder in (self.path, self.objects, self.unfinished, self.unreadable):
            remove_unfinished(folder)
        for path in self.objects.iterdir():
            if path.name not in needed:
                path.unlink(missing_ok=True)
        known = {task_key(name) for name in manifest.tasks}
        further = {self.checkpoint(*each).name for each in manifest.tasks.items()}
        for path in self.unreadable.glob("*.txt"):
            if path.stem not in known:
                path.unlink(missing_ok=True)
        for path in self.unfinished.glob("*.pt"):
            if path.name not in further and ("-" in path.stem or path.stem in known):
                path.unlink(missing_ok=True)
        for folder in (self.unfinished, self.unreadable):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()

    def _needed(self, manifest: Manifest) -> set[str]:
        records = manifest.records()
        for name in records - set(self._objects_of):
            self._objects_of[name] = set(self.json(name)["objects"].values())
        return records.union(manifest.shared_heads(), *(self._objects_of[name] for name in records))

    # ---------------------------------------------------------------- beside the model

    def checkpoint(self, task: str, record: str | None = None) -> Path:
        """The file for the checkpoint of a task that is being learned; of one that is known, with its record."""
        return self.unfinished / f"{task_key(task)}{f'-{record[:16]}' if record else ''}.pt"

    def write_checkpoint(self, path: Path, write: Callable[[Path], object]) -> None:
        """Replace a checkpoint."""
        self.unfinished.mkdir(exist_ok=True)
        replace_file(path, write)

    def remove_checkpoints(self, task: str) -> bool:
        """Remove the checkpoints of a task; whether there was one."""
        there = list(self.unfinished.glob(f"{task_key(task)}*.pt"))
        for path in there:
            path.unlink(missing_ok=True)
        return bool(there)

    def write_unreadable(self, task: str, problems: list[str]) -> Path | None:
        """List the files of a task that could not be read; returns the file, or None if there is nothing to list."""
        path = self.unreadable / f"{task_key(task)}.txt"
        if not problems:
            path.unlink(missing_ok=True)
            return None
        self.unreadable.mkdir(exist_ok=True)
        replace_file(path, lambda file: file.write_text("".join(f"{line}\n" for line in problems)))
        return path

    # ---------------------------------------------------------------- checking

    def verify(self) -> list[str]:
        """What is wrong with the folder: nothing if every object that counts is there and has its own content."""
        try:
            manifest = self.read()
        except ValueError as error:
            return [str(error)]
        problems, names = [], manifest.records() | manifest.shared_heads()
        for record in sorted(manifest.records()):
            try:
                names |= set(self.json(record)["objects"].values())
            except (ValueError, OSError):  # the loop below says what is wrong with it
                continue
        for name in sorted(names):
            path = self._place(name)
            if not path.is_file():
                problems.append(f"{path} is missing")
            elif not has_its_content(path):
                problems.append(f"{path} is damaged: its content has changed")
        return problems


def task_key(task: str) -> str:
    """A file name for a task, whatever its name is."""
    return hashlib.sha256(task.encode()).hexdigest()[:32]
