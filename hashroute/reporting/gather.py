"""Runs for a report, from their folders and from result files, also where a run is still going or was stopped."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashroute.learners import learner_names
from hashroute.recipe import with_defaults

Rows = list[list[float | None]]

_ODD = (KeyError, TypeError, ValueError, AttributeError)
"""What comes of a file that is not of the kind that was looked for."""


@dataclass
class Run:
    """One learner with one seed."""

    learner: str
    seed: int
    options: dict[str, Any]
    source: str
    """The folder or file that it was read from."""
    accuracy: Rows
    """A row after each task learned so far, a column for each task."""
    outcome: dict[str, Any] | None = None
    """What result files hold of a finished run; None where it has not come to its end."""
    records: list[dict[str, Any]] = field(default_factory=list)
    """What was written down of each epoch."""
    decisions: list[dict[str, Any]] = field(default_factory=list)
    samples: list[dict[str, Any]] = field(default_factory=list)
    """Some test images, and what became of them."""
    size: int | None = None
    """Bytes of its folder."""
    versions: dict[str, str] = field(default_factory=dict)
    command: str = ""
    notes: list[str] = field(default_factory=list)
    """What was wrong with its files."""

    @property
    def said(self) -> str:
        """Its name for people."""
        return f"{self.learner}, seed {self.seed}"


@dataclass
class Group:
    """Runs of the same tasks with the same settings: they can be compared."""

    scenario: str
    tasks: list[str]
    recipe: dict[str, Any]
    fraction: float = 1.0
    evaluate_on: str = "test"
    learners: dict[str, list[Run]] = field(default_factory=dict)
    """The runs of each learner, seeds in order."""

    @property
    def runs(self) -> list[Run]:
        """All runs."""
        return [run for runs in self.learners.values() for run in runs]

    @property
    def commands(self) -> list[str]:
        """What to type to get these runs again, as far as it was written down."""
        return list(dict.fromkeys(run.command for run in self.runs if run.command))

    def content(self) -> dict[str, Any]:
        """The finished runs in the form of a result file, for tables."""
        learners = {}
        for name, runs in self.learners.items():
            finished = [run for run in runs if run.outcome is not None]
            if finished:
                parts = [{**(run.outcome or {}), "seeds": run.seed, "accuracy": run.accuracy} for run in finished]
                shared = [part for part in parts[0] if all(part in found for found in parts)]  # older files hold less
                learners[name] = {part: [found[part] for found in parts] for part in shared}
        return {"scenario": self.scenario, "tasks": self.tasks, "learners": learners}

    def missing(self) -> list[str]:
        """What one might look for in vain, a sentence each."""
        said = []
        seeds = {run.seed for run in self.runs}
        for name, runs in self.learners.items():
            lacking = sorted(seeds - {run.seed for run in runs})
            if lacking:
                said.append(f"{name} has no run with seed {', '.join(map(str, lacking))}")
        if "separate" not in self.learners and len(self.learners) > 1:
            said.append("separate was not run: there is no intransigence, and no landmark for plasticity")
        for run in self.runs:
            said += [f"{run.said}: {note}" for note in run.notes]
            if run.outcome is None:
                far = f"{len(run.accuracy)} of {len(self.tasks)} tasks learned"
                if run.records and "accuracy" not in run.records[-1]:
                    last = run.records[-1]
                    far += f", {last.get('task')} at epoch {last.get('epoch')} of {last.get('epochs')}"
                said.append(f"{run.said}, is still going or was stopped: {far}; tables hold finished runs only")
            if any(value is not None and not math.isfinite(value) for row in run.accuracy for value in row):
                said.append(f"{run.said}, has accuracies that are not numbers")
        return said


def gather(paths: Sequence[Path]) -> tuple[list[Group], list[str]]:
    """Read run folders, folders of run folders, and result files.

    Returns runs, those together that can be compared, and a sentence for each folder that was left out.
    """
    groups: dict[str, Group] = {}
    left_out: list[str] = []
    for path in paths:
        for group in _read(path, left_out):
            settings = with_defaults(group.recipe)  # an older file may lack some
            parts = [group.scenario, group.tasks, settings, group.fraction, group.evaluate_on]
            key = json.dumps(parts, sort_keys=True)
            found = groups.setdefault(key, group)
            if found is not group:
                for name, runs in group.learners.items():
                    found.learners.setdefault(name, []).extend(runs)
    for group in groups.values():
        _put_in_order(group)
    return list(groups.values()), left_out


def group_of(content: dict[str, Any], source: str = "") -> Group:
    """The runs in the content of a result file."""
    tasks = [printable(task) for task in content["tasks"]]
    settings = dict(content.get("recipe", {}))
    fraction = float(settings.pop("fraction", 1.0))
    for name in ("profile", "folder"):
        settings.pop(name, None)
    group = Group(printable(content["scenario"]), tasks, settings, fraction)
    for name, entry in content["learners"].items():
        for place, seed in enumerate(entry["seeds"]):
            listed = {part: kept for part, kept in entry.items() if isinstance(kept, list) and part != "seeds"}
            found = {part: kept[place] for part, kept in listed.items() if kept[place] is not None}
            run = Run(
                printable(name), int(seed), entry.get("options", {}), source, [], command=content.get("command", "")
            )
            _take_outcome(run, found, len(tasks))
            group.learners.setdefault(run.learner, []).append(run)
    return group


def _read(path: Path, left_out: list[str]) -> Iterator[Group]:
    """The groups of a path: a group for each run folder, or one for a result file."""
    if not path.exists():
        raise ValueError(f"{path} is not there: give a run's folder, a folder of them, or a result file")
    if path.is_file():
        try:
            group = group_of(json.loads(path.read_text()), str(path))
        except (*_ODD, IndexError) as error:
            raise ValueError(f"{path} is not a result file ({error!r})") from None
        if not group.runs:
            raise ValueError(f"{path} holds no run yet: come back when the first one has ended")
        yield group
        return
    if (path / "settings.json").exists():
        yield _read_folder(path)
        return
    groups = []
    for found in sorted(path.rglob("settings.json")):
        try:
            groups.append(_read_folder(found.parent))
        except ValueError as error:
            left_out.append(str(error))
    if not groups:
        raise ValueError(f"{path} holds no run (a folder with settings.json): give a run's folder, or a result file")
    yield from groups


def _read_folder(folder: Path) -> Group:
    """A group of the one run in a folder."""
    try:
        kept = json.loads((folder / "settings.json").read_text())
        tasks = [printable(task) for task in kept["tasks"]]
        group = Group(printable(kept["scenario"]), tasks, kept["recipe"], kept["fraction"], kept["evaluate_on"])
        run = Run(printable(kept["learner"]), int(kept["seed"]), kept["options"], str(folder), [])
        run.versions, run.command = kept.get("versions") or {}, kept.get("command") or ""
    except _ODD as error:
        raise ValueError(f"{folder} is not a run's folder: its settings.json cannot be read ({error!r})") from None
    group.learners[run.learner] = [run]
    run.size = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())
    run.records = _read_records(run, folder / "epochs.jsonl")
    samples = _read_json(run, folder / "samples.json")
    run.samples = [sample for sample in samples if isinstance(sample, dict)] if isinstance(samples, list) else []
    finished = _read_json(run, folder / "result.json")
    if finished is not None:
        try:
            _take_outcome(run, finished, len(tasks))
            return group
        except _ODD:
            run.notes.append("result.json is not what a run writes")
    for record in run.records:
        try:
            _take_record(run, record, len(tasks))
        except _ODD:
            run.notes.append("a line of epochs.jsonl is not what a run writes")
    return group


def printable(text: object) -> str:
    """A name as pages and figures can hold it: folders may be called anything."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in str(text))


def _take_record(run: Run, record: dict[str, Any], tasks: int) -> None:
    if "decision" in record:
        run.decisions.append(record["decision"])
    if "accuracy" in record:
        row = _row(record["accuracy"], tasks)
        known = sum(value is not None for value in row)
        while len(run.accuracy) < known - 1:  # learned together: nothing was known before
            run.accuracy.append([None] * tasks)
        run.accuracy.append(row)


def _plain(values: Any) -> Any:
    """The same with names that can be shown."""
    if isinstance(values, dict):
        return {printable(name): _plain(value) for name, value in values.items()}
    if isinstance(values, list):
        return [_plain(value) for value in values]
    return printable(values) if isinstance(values, str) else values


def _read_json(run: Run, path: Path) -> Any:
    """What a file of a run holds; None where it is missing, or cannot be read, which is noted."""
    try:
        return json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError):
        run.notes.append(f"{path.name} cannot be read")
        return None


def _read_records(run: Run, path: Path) -> list[dict[str, Any]]:
    """The epochs of a run; a line that is being written does not count yet."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        run.notes.append(f"{path.name} is missing: nothing is known of its epochs")
        return []
    records = []
    for line in lines[:-1]:
        try:
            text = line.decode()
            record = json.loads(text)
        except ValueError:
            run.notes.append(f"a line of {path.name} cannot be read, it is left out")
        else:
            shown = text.isprintable() and "\\" not in text  # most lines: nothing in them needs a look
            records.append(record if shown else _plain(record))
    if not records:
        run.notes.append("no epoch was written down yet")
    return [record for record in records if isinstance(record, dict)]


def _take_outcome(run: Run, outcome: dict[str, Any], tasks: int) -> None:
    lacking = {"images_per_second", "parameters", "bytes_kept", "task_free"} - outcome.keys()
    if lacking:
        raise KeyError(f"there is no {', '.join(sorted(lacking))}")
    matrix = [_row(row, tasks) for row in outcome["accuracy"]]
    run.accuracy, run.decisions = matrix, [_plain(decision) for decision in outcome.get("decisions", [])]
    at_once = len(matrix) == tasks and all(value is None for row in matrix[:-1] for value in row)
    first = tasks - 1 if at_once else 0
    if len(matrix) == tasks and all(None not in matrix[place][: place + 1] for place in range(first, tasks)):
        run.outcome = outcome
    else:
        run.notes.append("its accuracy matrix has gaps")


def _row(values: Sequence[float | None], tasks: int) -> list[float | None]:
    row = [None if value is None else float(value) for value in values]
    return (row + [None] * tasks)[:tasks]


def _put_in_order(group: Group) -> None:
    """Learners as they are registered, seeds in order, each run once; other options make another learner."""
    runs = group.runs
    group.learners = {}
    order = {name: place for place, name in enumerate(learner_names())}
    for run in sorted(runs, key=lambda run: (order.get(run.learner, len(order)), run.learner, run.seed)):
        name = run.learner
        others = [other.options for other in runs if other.learner == name and other.options != run.options]
        differing = [key for key in run.options if any(other.get(key) != run.options[key] for other in others)]
        if differing:
            name += f" ({', '.join(f'{key} {run.options[key]}' for key in differing)})"
        there = group.learners.setdefault(name, [])
        if there and there[-1].seed == run.seed:
            there[-1] = _one_of(there[-1], run)
        else:
            there.append(run)
    for name, runs in group.learners.items():
        for run in runs:
            run.learner = name


def _one_of(one: Run, other: Run) -> Run:
    """The fuller of two records of a run, with what only the other one has."""
    kept, left = sorted(
        (one, other), key=lambda run: (run.outcome is not None, len(run.accuracy), len(run.records)), reverse=True
    )
    if kept.accuracy != left.accuracy:
        kept.notes.append(f"{left.source} holds other numbers for it; those of {kept.source} are shown")
    else:
        kept.command = kept.command or left.command
        kept.size = kept.size or left.size
        kept.versions = kept.versions or left.versions
    return kept
