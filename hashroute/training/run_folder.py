"""The folder of a run: the only reader and writer of its settings, log, checkpoint, samples and result."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict

from filelock import FileLock, Timeout
from typing_extensions import NotRequired

import hashroute
from hashroute.schema import Range, check, one_line, parse_json, read_json
from hashroute.storage import read_bounded, remove_unfinished, replace_file, write_json
from hashroute.training.result import ACCURACY, DecisionValues, Row, RunResult, Score

if TYPE_CHECKING:  # a live table or a report reads folders without it
    from hashroute.learners.learner import Learner

MOST_BYTES = 2**26
"""A larger log is not read."""
WAIT = 5
"""Seconds that a writer waits for another one to end."""
START_AGAIN = "delete the folder to start again"


class BusyError(ValueError):
    """Another process writes into the folder of a run."""


@dataclass(frozen=True)
class RunSettings:
    """Everything that the numbers of a run depend on."""

    scenario: str
    tasks: list[str]
    images: list[list[int]]
    """For each task, the number of images for training, validation and test."""
    learner: str
    name: str
    """The row of the table that the run belongs to."""
    version: int
    at_once: bool
    options: dict[str, Any]
    recipe: dict[str, Any]
    seed: int
    fraction: float = 1.0
    evaluate_on: str = "test"
    objective: str = "classification"
    backbone: str | None = None
    """Digits of the hash of the printed module, where the backbone is a module; None where the recipe has it."""
    data: str | None = None
    """Digits of the hash of all images and labels; None in folders of earlier versions."""

    def new_result(self) -> RunResult:
        """An empty result of a run with these settings."""
        return RunResult(self.learner, self.seed, self.options, self.name, self.version, self.at_once)


class EpochValues(TypedDict):
    """A line of the log. Learners add what they analyse."""

    task: str
    task_index: NotRequired[int]
    epoch: int
    epochs: int
    loss: float | None
    validation_accuracy: float
    images: int
    seconds: float
    accuracy: NotRequired[Row]
    decision: NotRequired[DecisionValues]
    usage: NotRequired[list[float]]
    basis_fill: NotRequired[list[float]]
    ages: NotRequired[list[float]]
    flow: NotRequired[dict[str, list[list[float]]]]
    unchanged_paths: NotRequired[list[float]]


class SampleValues(TypedDict, total=False):
    """A test image in samples.json, with the learner's answers."""

    task: str
    image: str
    label: str
    predicted: str
    task_free: dict[str, str | bool]
    path: list[int] | None
    known_by: str | None
    projections: list[float] | None


class CheckpointValues(TypedDict):
    """The content of checkpoint.pt."""

    log_length: Annotated[int, Range(0, MOST_BYTES)]
    description: dict[str, Any]
    state: dict[str, Any]
    training: dict[str, Any] | None
    result: dict[str, Any]
    paths: list[Any]


@dataclass
class RunRecord:
    """What the folder of a run holds, whether the run is finished, running, stopped or damaged."""

    folder: Path
    settings: RunSettings
    result: RunResult | None = None
    """None until the run is finished."""
    accuracy: list[Row] = field(default_factory=list)
    """A row after each task learned so far, a column for each task."""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    epochs: list[dict[str, Any]] = field(default_factory=list)
    """The log: a record of each epoch."""
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Some test images with the learner's answers."""
    size: int = 0
    """Bytes of the folder's files."""
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    notes: list[str] = field(default_factory=list)
    """What is wrong with the files."""

    @property
    def score(self) -> Score:
        """What the numbers of the accuracy matrix are."""
        if self.result is not None:
            return self.result.score
        return score_of(self.epochs[-1]) if self.epochs else ACCURACY


class RunFolder:
    """A folder with one run. Its files are whole at any moment, whenever the process is killed."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    # ---------------------------------------------------------------- state

    @property
    def begun(self) -> bool:
        """Whether the folder holds a run."""
        return (self.path / "settings.json").exists()

    @property
    def finished(self) -> bool:
        """Whether the folder holds a finished run."""
        return (self.path / "result.json").exists()

    @property
    def checkpoint(self) -> Path:
        """The file with the checkpoint."""
        return self.path / "checkpoint.pt"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the lock of the one process that may write into the folder; it ends with the process."""
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=WAIT)
        try:
            lock.acquire()
        except Timeout:
            raise BusyError(f"{self.path} is being written by another process: wait for it, or end it") from None
        try:
            yield
        finally:
            lock.release()

    # ---------------------------------------------------------------- writing

    def begin(self, settings: RunSettings, resume: bool = False, command: str | None = None) -> dict[str, Any] | None:
        """Prepare the folder for a run; returns the checkpoint to continue from, None to start from the beginning."""
        checkpoint = None
        if self.begun:
            if not resume:
                raise ValueError(f"{self.path} holds a run already: resume it, or delete the folder to start again")
            self.check(settings)
            if self.checkpoint.exists():
                checkpoint = read_checkpoint(self.checkpoint)
        else:
            import torch

            self.path.mkdir(parents=True, exist_ok=True)
            versions = {
                "hashroute": hashroute.__version__,
                "torch": str(torch.__version__),
                "python": platform.python_version(),
            }
            write_json(self.path / "settings.json", {**vars(settings), "versions": versions, "command": command})
        remove_unfinished(self.path)
        (self.path / "error.txt").unlink(missing_ok=True)
        with open(self.path / "epochs.jsonl", "ab") as file:  # an epoch after the checkpoint is trained again
            length = 0 if checkpoint is None else checkpoint["log_length"]
            if length > file.tell():
                raise ValueError(f"{self.path / 'epochs.jsonl'} lacks epochs of its checkpoint: {START_AGAIN}")
            file.truncate(length)
        return checkpoint

    def add_epoch(self, record: dict[str, Any]) -> int:
        """Append an epoch to the log; returns the length of the log in bytes."""
        with open(self.path / "epochs.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
            file.flush()
            os.fsync(file.fileno())
            return file.tell()

    def write_checkpoint(self, state: dict[str, Any], log_length: int) -> None:
        """Replace the checkpoint by one that belongs to the log at this length."""
        from hashroute.learners import checkpoints

        content = checkpoints.pack({"log_length": log_length, **state})
        replace_file(self.checkpoint, lambda file: file.write_bytes(content))

    def finish(self, learner: Learner, samples: list[dict[str, Any]], result: RunResult) -> None:
        """Write the model, the samples and the result, and remove the checkpoint."""
        learner.save(self.path)
        write_json(self.path / "samples.json", samples)
        write_json(self.path / "result.json", result.to_dict())
        self.checkpoint.unlink(missing_ok=True)

    def write_error(self, text: str) -> Path:
        """Keep the traceback of a run that failed; returns its file."""
        path = self.path / "error.txt"
        path.write_text(text)
        return path

    # ---------------------------------------------------------------- reading

    def check(self, settings: RunSettings) -> None:
        """Raise an error unless the folder holds a run with these settings."""
        kept = read_json(self.path / "settings.json", dict, advice=START_AGAIN)
        if settings.data is not None and kept.get("data") is None:
            raise ValueError(
                f"{self.path} holds a run of an earlier version, which does not say from which images it is: "
                f"{START_AGAIN}, or choose another one"
            )
        differs = differences(kept, json.loads(json.dumps(vars(settings))))
        if differs:
            raise ValueError(
                f"{self.path} holds a run with other settings ({one_line(differs, 120)}): "
                "use the same settings to continue it, or choose another folder"
            )

    def read_result(self, settings: RunSettings) -> RunResult:
        """The result of a finished run with these settings; removes what a killed process may have left beside it."""
        self.check(settings)
        self.checkpoint.unlink(missing_ok=True)
        remove_unfinished(self.path)
        path = self.path / "result.json"
        values = read_json(path, dict, advice=START_AGAIN)
        try:
            return RunResult.from_dict(values)
        except ValueError as error:
            raise ValueError(f"{one_line(path, 100)} is damaged ({error}): {START_AGAIN}") from None

    def read_epochs(self, notes: list[str] | None = None) -> list[dict[str, Any]]:
        """The log so far. A last line without an end is still being written and left out."""
        notes = [] if notes is None else notes
        try:
            *lines, rest = read_bounded(self.path / "epochs.jsonl", MOST_BYTES).split(b"\n")
        except (OSError, ValueError):
            notes.append("epochs.jsonl is missing: nothing is known about its epochs")
            return []
        if rest and self.finished:
            notes.append("the last line of epochs.jsonl is incomplete")
        records = []
        for line in lines:
            try:
                records.append(parse_json(line, EpochValues))
            except ValueError:
                notes.append("a line of epochs.jsonl cannot be read, it is left out")
        if not records:
            notes.append("no epoch is finished yet")
        return records

    def read(self) -> RunRecord:
        """All that the folder holds. Files that are missing or damaged are left out and noted."""
        try:
            kept = read_json(self.path / "settings.json", dict)
            known = {item.name: kept[item.name] for item in fields(RunSettings) if item.name in kept}
            record = RunRecord(self.path, RunSettings(**check(known, RunSettings)))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"{one_line(self.path, 100)} is not the folder of a run: its settings.json cannot be read ({error})"
            ) from None
        versions, tasks = kept.get("versions"), len(record.settings.tasks)
        record.versions = (
            {str(name): str(each) for name, each in versions.items()} if isinstance(versions, dict) else {}
        )
        record.command = str(kept.get("command") or "")
        record.size = sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())
        record.epochs = self.read_epochs(record.notes)
        record.samples = self._read_json("samples.json", list[SampleValues], record.notes) or []
        self._take_epochs(record, tasks)
        found = self._read_json("result.json", dict, record.notes)
        if found is not None:
            try:
                result = RunResult.from_dict(found)
            except ValueError as error:
                record.notes.append(f"result.json is damaged ({error})")
            else:
                record.accuracy = [_fitted(row, tasks) for row in result.accuracy[:tasks]]
                record.decisions = result.decisions
                if result.complete(tasks):
                    record.result = result
                else:
                    record.notes.append("its accuracy matrix has gaps")
        return record

    def _read_json(self, name: str, kind: Any, notes: list[str]) -> Any:
        """The content of a file; None if it is missing, or is not of this kind, which is noted."""
        try:
            return read_json(self.path / name, kind)
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            notes.append(f"{name} cannot be read")
            return None

    @staticmethod
    def _take_epochs(record: RunRecord, tasks: int) -> None:
        """Accuracy and decisions so far, from the log."""
        for epoch in record.epochs:
            if "decision" in epoch:
                record.decisions.append(epoch["decision"])
            if "accuracy" in epoch:
                row: Row = epoch["accuracy"]
                known = sum(value is not None for value in row[:tasks])
                while len(record.accuracy) < known - 1:  # tasks learned together have no rows of their own
                    record.accuracy.append([None] * tasks)
                record.accuracy.append(_fitted(row, tasks))


def _fitted(row: Row, tasks: int) -> Row:
    """A row with one value for each task. Values that are missing are None."""
    return [*row, *[None] * tasks][:tasks]


def score_of(record: dict[str, Any]) -> Score:
    """What the accuracies in the record of an epoch are."""
    try:
        name, percent = record.get("score", ACCURACY)
        return Score(str(name), bool(percent))
    except (TypeError, ValueError):
        return ACCURACY


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. It can only hold tensors and plain values."""
    from hashroute.learners import checkpoints

    try:
        values = checkpoints.unpack(path)
    except ValueError as error:
        raise ValueError(f"{error}: {START_AGAIN}") from None
    with usable(path):
        return check(values, CheckpointValues)  # type: ignore[no-any-return]


@contextmanager
def usable(path: Path, *errors: type[Exception]) -> Iterator[None]:
    """Turns what a checkpoint with missing or wrong parts provokes into one line that names it.

    errors: only these; by default all that it may provoke.
    """
    from hashroute.learners.checkpoints import UnfitError, fitting

    try:
        with fitting(*errors):
            yield
    except UnfitError as error:
        raise ValueError(f"{one_line(path, 100)} cannot be used ({error}): {START_AGAIN}") from error


def differences(kept: dict[str, Any], given: dict[str, Any], names: Sequence[str] = ()) -> str:
    """Which entries differ, with both values where they are short: `seed: 0 there, 1 here`. Empty if none does."""
    found = []
    for name in names or given:
        there, here = kept.get(name), given.get(name)
        if there == here:
            continue
        if isinstance(there, dict) and isinstance(here, dict):
            found.append(f"{name} {differences(there, here, list({**there, **here}))}")
        elif max(len(str(there)), len(str(here))) > 40:
            found.append(name)
        else:
            found.append(f"{name}: {there} there, {here} here")
    return ", ".join(found)
