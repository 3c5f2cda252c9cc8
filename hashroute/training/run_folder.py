"""The folder of a run: the only reader and writer of its settings, log, checkpoint, samples and result."""

from __future__ import annotations

import io
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

import hashroute
from hashroute.storage import remove_unfinished, replace_file, write_json
from hashroute.training.result import ACCURACY, Row, RunResult, Score

if TYPE_CHECKING:  # a live table or a report reads folders without it
    from hashroute.learners.learner import Learner

CHECKPOINT_FORMAT = 4


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

    def new_result(self) -> RunResult:
        """An empty result of a run with these settings."""
        return RunResult(self.learner, self.seed, self.options, self.name, self.version, self.at_once)


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

    def lock(self) -> FileLock:
        """A lock that the one process holds that may write into the folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        return FileLock(self.path / ".lock", timeout=5)

    # ---------------------------------------------------------------- writing

    def begin(self, settings: RunSettings, resume: bool = False, command: str | None = None) -> dict[str, Any] | None:
        """Prepare the folder for a run; returns the checkpoint to continue from, None to start from the beginning."""
        checkpoint = None
        if self.begun:
            if not resume:
                raise ValueError(f"{self.path} holds a run already: resume it, or delete the folder to start again")
            self.check(settings)
            if (self.path / "checkpoint.pt").exists():
                checkpoint = read_checkpoint(self.path / "checkpoint.pt")
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
            file.truncate(0 if checkpoint is None else checkpoint["log_length"])
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
        import torch

        content = io.BytesIO()
        # Not into the file: torch reports a full disk as a RuntimeError without a clear message.
        torch.save({"format": CHECKPOINT_FORMAT, "log_length": log_length, **state}, content)
        replace_file(self.path / "checkpoint.pt", lambda file: file.write_bytes(content.getbuffer()))

    def finish(self, learner: Learner, samples: list[dict[str, Any]], result: RunResult) -> None:
        """Write the model, the samples and the result, and remove the checkpoint."""
        learner.save(self.path)
        write_json(self.path / "samples.json", samples)
        write_json(self.path / "result.json", result.to_dict())
        (self.path / "checkpoint.pt").unlink(missing_ok=True)

    def write_error(self, text: str) -> Path:
        """Keep the traceback of a run that failed; returns its file."""
        path = self.path / "error.txt"
        path.write_text(text)
        return path

    # ---------------------------------------------------------------- reading

    def check(self, settings: RunSettings) -> None:
        """Raise an error unless the folder holds a run with these settings."""
        try:
            kept = json.loads((self.path / "settings.json").read_text())
            differs = differences(kept, json.loads(json.dumps(vars(settings))))
        except (ValueError, AttributeError):
            raise ValueError(
                f"{self.path / 'settings.json'} cannot be read: delete the folder to start again"
            ) from None
        if differs:
            raise ValueError(
                f"{self.path} holds a run with other settings ({differs}): "
                "use the same settings to continue it, or choose another folder"
            )

    def read_result(self, settings: RunSettings) -> RunResult:
        """The result of a finished run with these settings; removes what a killed process may have left beside it."""
        self.check(settings)
        (self.path / "checkpoint.pt").unlink(missing_ok=True)
        remove_unfinished(self.path)
        try:
            return RunResult.from_dict(json.loads((self.path / "result.json").read_text()))
        except ValueError as error:
            raise ValueError(
                f"{self.path / 'result.json'} is damaged ({error}): delete the folder to start again"
            ) from None

    def read_epochs(self, notes: list[str] | None = None) -> list[dict[str, Any]]:
        """The log so far. A last line without an end is still being written and left out."""
        notes = [] if notes is None else notes
        try:
            *lines, rest = (self.path / "epochs.jsonl").read_bytes().split(b"\n")
        except OSError:
            notes.append("epochs.jsonl is missing: nothing is known about its epochs")
            return []
        if rest and self.finished:
            notes.append("the last line of epochs.jsonl is incomplete")
        records = []
        for line in lines:
            try:
                record = json.loads(line)
            except ValueError:
                record = None
            if isinstance(record, dict):
                records.append(record)
            else:
                notes.append("a line of epochs.jsonl cannot be read, it is left out")
        if not records:
            notes.append("no epoch is finished yet")
        return records

    def read(self) -> RunRecord:
        """All that the folder holds. Files that are missing or damaged are left out and noted."""
        try:
            kept = json.loads((self.path / "settings.json").read_text())
            settings = RunSettings(**{item.name: kept[item.name] for item in fields(RunSettings)})
            record = RunRecord(self.path, settings)
            record.versions, record.command = dict(kept.get("versions") or {}), str(kept.get("command") or "")
            tasks = len(settings.tasks)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{self.path} is not the folder of a run: its settings.json cannot be read ({error!r})"
            ) from None
        record.size = sum(file.stat().st_size for file in self.path.iterdir() if file.is_file())
        record.epochs = self.read_epochs(record.notes)
        samples = self._read_json("samples.json", record.notes)
        record.samples = [each for each in samples if isinstance(each, dict)] if isinstance(samples, list) else []
        self._take_epochs(record, tasks)
        found = self._read_json("result.json", record.notes)
        if found is not None:
            try:
                result = RunResult.from_dict(found)
            except ValueError as error:
                record.notes.append(f"result.json is damaged ({error})")
            else:
                record.accuracy, record.decisions = result.accuracy, result.decisions
                if result.complete(tasks):
                    record.result = result
                else:
                    record.notes.append("its accuracy matrix has gaps")
        return record

    def _read_json(self, name: str, notes: list[str]) -> Any:
        """The content of a file; None if it is missing, or cannot be read, which is noted."""
        try:
            return json.loads((self.path / name).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            notes.append(f"{name} cannot be read")
            return None

    @staticmethod
    def _take_epochs(record: RunRecord, tasks: int) -> None:
        """Accuracy and decisions so far, from the log."""
        for epoch in record.epochs:
            try:
                if "decision" in epoch:
                    record.decisions.append(dict(epoch["decision"]))
                if "accuracy" in epoch:
                    row: Row = [None if value is None else float(value) for value in epoch["accuracy"]]
                    known = sum(value is not None for value in row)
                    while len(record.accuracy) < known - 1:  # tasks learned together have no rows of their own
                        record.accuracy.append([None] * tasks)
                    record.accuracy.append((row + [None] * tasks)[:tasks])
            except (TypeError, ValueError):
                record.notes.append("a line of epochs.jsonl cannot be used, it is left out")


def score_of(record: dict[str, Any]) -> Score:
    """What the accuracies in the record of an epoch are."""
    try:
        name, percent = record.get("score", ACCURACY)
        return Score(str(name), bool(percent))
    except (TypeError, ValueError):
        return ACCURACY


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint. It can only hold tensors and plain values."""
    import torch

    try:
        checkpoint: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        found = checkpoint["format"]
    except OSError:
        raise
    except Exception as error:
        raise ValueError(
            f"{path} is not a checkpoint ({type(error).__name__}): delete its folder to start again"
        ) from None
    if found != CHECKPOINT_FORMAT:
        raise ValueError(
            f"{path} has format {found}, this version reads {CHECKPOINT_FORMAT}: "
            "use the version of hashroute that wrote it, or delete its folder to start again"
        )
    return checkpoint


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
