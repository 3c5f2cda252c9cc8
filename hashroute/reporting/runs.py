"""The runs of a report, from run folders and result files, in groups that can be compared."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

from hashroute.learners.learner import Style
from hashroute.reporting import learners
from hashroute.training.result import ACCURACY, Comparison, Score
from hashroute.training.run_folder import RunFolder, RunRecord, RunSettings

COMMON = ("scenario", "tasks", "recipe", "fraction", "evaluate_on")
"""Settings that runs must share to be compared: the first fields of a group."""


@dataclass
class Group:
    """Runs of the same tasks with the same recipe."""

    scenario: str
    tasks: list[str]
    recipe: dict[str, Any]
    fraction: float = 1.0
    evaluate_on: str = "test"
    data: str | None = None
    """Digits of the hash of the images, where other runs of the same settings have other images."""
    learners: dict[str, list[RunRecord]] = field(default_factory=dict)
    """The runs of each row of a table, by the name of the row; seeds ascending."""

    heading: str = ""
    """The name of the scenario, with what tells this group from others of the same scenario."""

    @cached_property
    def styles(self) -> dict[str, Style]:
        """The look of each row in figures."""
        return learners.styles(list(self.learners))

    @property
    def score(self) -> Score:
        """What the numbers of the accuracy matrices are."""
        return next((run.score for run in self.runs), ACCURACY)

    @property
    def name(self) -> str:
        """The name that `bench` gave to the folder or file of all runs, such as `digits-epochs=1`, or the scenario."""
        files = [run.folder.stem if run.folder.suffix == ".json" else run.folder.parent.name for run in self.runs]
        names = set(map(printable, files))
        return names.pop() if len(names) == 1 and min(names).startswith(f"{self.scenario}-") else self.scenario

    @property
    def runs(self) -> list[RunRecord]:
        """All runs."""
        return [run for runs in self.learners.values() for run in runs]

    @property
    def seeds(self) -> list[int]:
        """The seeds of all runs."""
        return sorted({run.settings.seed for run in self.runs})

    @property
    def commands(self) -> list[str]:
        """The commands that repeat the runs, as far as they are known."""
        return _merged(run.command for run in self.runs if run.command)

    def levels(self, run: RunRecord) -> int:
        """Units of a path."""
        added = [decision["units_added"] for decision in run.decisions if decision.get("units_added")]
        backbone = self.recipe.get("backbone")
        return int(added[0]) if added else len(backbone) if isinstance(backbone, list) and backbone else 1

    def title(self, run: RunRecord) -> str:
        """The name of a run: that of its row, and the seed where there are several."""
        return run.settings.name + (f", seed {run.settings.seed}" if len(self.seeds) > 1 else "")

    def unit_name(self, run: RunRecord, unit: int) -> str:
        """The name of a unit, as `hashroute inspect` gives it: path.level where a learner decides about paths."""
        if not run.decisions:
            return str(unit)
        path, level = divmod(unit, self.levels(run))
        return f"{path}.{level}"

    def comparison(self) -> Comparison:
        """The finished runs."""
        finished = [
            replace(run.result, name=name) for name, runs in self.learners.items() for run in runs if run.result
        ]
        return Comparison(self.scenario, self.tasks, [], self.recipe, fraction=self.fraction, runs=finished)

    def missing(self) -> list[str]:
        """What is missing in the files, a sentence each."""
        found = []
        for name, runs in self.learners.items():
            lacking = [str(seed) for seed in self.seeds if seed not in {run.settings.seed for run in runs}]
            if lacking:
                found.append(f"{name} has no run with seed {', '.join(lacking)}.")
        if "separate" not in self.learners and len(self.learners) > 1:
            found.append("The learner separate was not run, so there is no intransigence.")
        for run in self.runs:
            found += [f"{self.title(run)}: {note}." for note in run.notes]
            if run.result is None:
                found.append(f"{self.title(run)} is not finished: {_progress(run)}. Tables hold finished runs only.")
            if any(value is not None and not math.isfinite(value) for row in run.accuracy for value in row):
                found.append(f"{self.title(run)} has accuracies that are not numbers.")
        return found


_BENCH = re.compile(r"(hashroute bench [^&]*? --learners)((?: [^-\s]\S*)+)(?: --seeds (\d+))?((?: [^&]*)?)")


def _merged(commands: Iterable[str]) -> list[str]:
    """The same commands, each once; those that differ only in learners and seeds are one."""
    found: dict[tuple[str, str], tuple[list[str], int]] = {}
    for command in commands:
        parts = _BENCH.fullmatch(command)
        start, names, seeds, rest = parts.groups() if parts else (command, "", None, "")
        learners, most = found.get((start, rest), ([], 1))
        found[start, rest] = (
            learners + [name for name in names.split() if name not in learners],
            max(most, int(seeds or 1)),
        )
    return [
        " ".join([start, *learners]) + (f" --seeds {seeds}" if seeds > 1 else "") + rest
        for (start, rest), (learners, seeds) in found.items()
    ]


def _progress(run: RunRecord) -> str:
    text = f"{len(run.accuracy)} of {len(run.settings.tasks)} tasks learned"
    last = run.epochs[-1] if run.epochs else {"accuracy": []}
    if "accuracy" not in last:
        text += f", {last.get('task')} at epoch {last.get('epoch')} of {last.get('epochs')}"
    return text


def collect(paths: Sequence[Path]) -> tuple[list[Group], list[str]]:
    """Read run folders, folders of run folders, and result files.

    Returns groups of runs that can be compared, and a sentence about each folder that was left out.
    """
    groups: dict[str, Group] = {}
    left_out: list[str] = []
    runs = [run for path in paths for run in _read(path, left_out)]
    for run in runs:
        common = [getattr(run.settings, part) for part in COMMON]
        alike = [each.settings.data for each in runs if [getattr(each.settings, part) for part in COMMON] == common]
        data = run.settings.data if len({*alike} - {None}) > 1 else None  # those of earlier versions do not tell
        group = groups.setdefault(json.dumps([*common, run.score, data], sort_keys=True), Group(*common))
        group.data = data
        group.learners.setdefault(run.settings.name, []).append(run)
    for group in groups.values():
        _put_in_order(group)
        group.heading = _heading(group, [other for other in groups.values() if other.scenario == group.scenario])
    return list(groups.values()), left_out


def _heading(group: Group, alike: Sequence[Group]) -> str:
    """The name of the scenario, and the settings in which one of these groups differs from it."""
    shown = {
        "tasks": (group.tasks, f"{len(group.tasks)} tasks"),
        "fraction": (group.fraction, f"{100 * group.fraction:g} % of the images"),
        "evaluate_on": (group.evaluate_on, f"{group.evaluate_on} images"),
        "score": (group.score, group.score.name),
        "data": (group.data, f"images {group.data}"),
    }
    found = [text for part, (own, text) in shown.items() if any(getattr(other, part) != own for other in alike)]
    for name, value in group.recipe.items():
        if any(other.recipe.get(name) != value for other in alike):
            text = ", ".join(map(str, value)) if name == "epochs" else json.dumps(value)
            found.append(f"{name.replace('_', ' ')} {text}" if len(text) <= 24 else f"another {name}")
    return "; ".join([group.scenario, *found])


def group_of(comparison: Comparison, source: str = "") -> Group:
    """The runs of one comparison."""
    group = Group(comparison.scenario, comparison.tasks, comparison.recipe, comparison.fraction, comparison.evaluate_on)
    for run in _runs_of(comparison, source):
        group.learners.setdefault(run.settings.name, []).append(run)
    return group


def _read(path: Path, left_out: list[str]) -> Iterator[RunRecord]:
    if not path.exists():
        raise ValueError(f"{path} does not exist: expected a run folder, a folder of run folders, or a result file")
    if path.is_file():
        comparison = Comparison.read(path)
        if not comparison.runs:
            raise ValueError(f"{path} holds no finished run yet: wait until a run has ended")
        yield from _runs_of(comparison, str(path))
    elif RunFolder(path).begun:
        yield _shown(RunFolder(path).read())
    else:
        found = False
        for settings in sorted(path.rglob("settings.json")):
            try:
                yield _shown(RunFolder(settings.parent).read())
                found = True
            except ValueError as error:
                left_out.append(str(error))
        if not found:
            raise ValueError(f"{path} holds no run: expected a run folder, a folder of run folders, or a result file")


def _runs_of(comparison: Comparison, source: str) -> Iterator[RunRecord]:
    """The runs of a comparison as records of folders without a log."""
    for run in comparison.runs:
        settings = RunSettings(
            comparison.scenario,
            comparison.tasks,
            comparison.images,
            run.learner,
            run.name,
            run.version,
            run.at_once,
            run.options,
            comparison.recipe,
            run.seed,
            comparison.fraction,
            comparison.evaluate_on,
            data=comparison.data,
        )
        yield _shown(
            RunRecord(Path(source), settings, run, run.accuracy, run.decisions, command=comparison.command, size=0)
        )


def _shown(run: RunRecord) -> RunRecord:
    """The same run with names that pages and figures can hold."""
    settings = replace(
        run.settings,
        scenario=printable(run.settings.scenario),
        tasks=printable(run.settings.tasks),
        learner=printable(run.settings.learner),
        name=printable(run.settings.name),
    )
    records = {part: printable(getattr(run, part)) for part in ("decisions", "epochs", "samples", "notes")}
    return replace(run, settings=settings, **records)


Value = TypeVar("Value")


def printable(value: Value) -> Value:
    """The same value with a replacement for every character that cannot be shown: a task may have any name."""
    if isinstance(value, dict):
        return cast(Value, {printable(name): printable(each) for name, each in value.items()})
    if isinstance(value, list):
        return cast(Value, [printable(each) for each in value])
    if isinstance(value, str) and not value.isprintable():
        return cast(Value, "".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in value))
    return value


def _put_in_order(group: Group) -> None:
    """Order rows and seeds, keep each run once, and give runs with different options rows of their own."""
    runs = group.runs
    group.learners = {}
    for run in sorted(runs, key=lambda run: (learners.place(run.settings.name), run.settings.name, run.settings.seed)):
        name, options = run.settings.name, run.settings.options
        others = [each.settings.options for each in runs if each.settings.name == name]
        differing = [key for key in options if any(other.get(key) != options[key] for other in others)]
        if differing:
            name = f"{learners.learner_of(name)}({', '.join(f'{key}={options[key]}' for key in differing)})"
        row = group.learners.setdefault(name, [])
        named = replace(run, settings=replace(run.settings, name=name))
        if row and row[-1].settings.seed == run.settings.seed:
            row[-1] = _fuller(row[-1], named)
        else:
            row.append(named)


def _fuller(one: RunRecord, other: RunRecord) -> RunRecord:
    """The fuller of two records of a run, with what only the other one has."""

    def fullness(run: RunRecord) -> tuple[bool, int, int]:
        return run.result is not None, len(run.accuracy), len(run.epochs)

    kept, left = sorted((one, other), key=fullness, reverse=True)
    if kept.accuracy != left.accuracy:
        kept.notes.append(f"{left.folder} holds other numbers for it; those of {kept.folder} are shown")
        return kept
    return replace(
        kept,
        command=kept.command or left.command,
        size=kept.size or left.size,
        versions=kept.versions or left.versions,
        samples=kept.samples or left.samples,
    )


def longest(group: Group) -> Iterator[RunRecord]:
    """Of each learner one run, for figures of its inside: the first of those with most epochs."""
    for runs in group.learners.values():
        yield max(runs, key=lambda run: len(run.epochs))
