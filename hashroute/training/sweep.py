"""A sweep: many runs of one scenario into one result file. Every finished run is kept, so a sweep can be resumed."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from filelock import FileLock

from hashroute.devices import find_device
from hashroute.learners import find_learner, learner_names
from hashroute.learners.learner import Learner
from hashroute.learners.registry import import_plugins
from hashroute.recipe import Profile, Recipe
from hashroute.storage import remove_unfinished
from hashroute.tasks import Scenario
from hashroute.training.evaluate import EvaluateOn
from hashroute.training.result import Comparison, RunResult
from hashroute.training.run import AnyLearner, describe, run
from hashroute.training.run_folder import BusyError, RunFolder, RunSettings, differences
from hashroute.training.workers import side_by_side

Record = dict[str, Any]
Watch = Callable[["SweepRun"], AbstractContextManager[Callable[[Record], None]]]


class OtherSettingsError(ValueError):
    """A result file holds results that cannot be compared with those of a sweep."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    name: str
    """The row of the table that it belongs to. Runs of one row differ in their seed alone."""
    learner: AnyLearner
    seed: int = 0
    """An instance has its own seed: 0 stands for it."""
    options: dict[str, Any] = field(default_factory=dict)
    """An instance has its own options."""
    command: str = ""
    """The command that repeats this run, to be recorded."""

    @property
    def kind(self) -> type[Learner]:
        """The class of the learner."""
        return type(self.learner) if isinstance(self.learner, Learner) else find_learner(self.learner)

    def __post_init__(self) -> None:
        if isinstance(self.learner, Learner):
            if self.options:
                raise ValueError(
                    f"{self.name}: options are given with an instance of a learner: give them when you create it"
                )
            if self.seed not in (0, self.learner.seed):
                raise ValueError(
                    f"{self.name}: the run has seed {self.seed}, the instance of its learner {self.learner.seed}: "
                    "give the seed when you create the learner"
                )
            object.__setattr__(self, "seed", self.learner.seed)


@dataclass(frozen=True)
class SweepSettings:
    """What all runs of a sweep have in common."""

    scenario: Scenario | Callable[[], Scenario]
    """The tasks, or a function that loads them: worker processes call it instead of receiving the images."""
    recipe: Recipe
    profile: Profile = "default"
    fraction: float = 1.0
    image_folder: str | None = None
    evaluate_on: EvaluateOn = "test"
    runs: Path | None = None
    """Folder that gets a folder for each run. None keeps results alone."""
    resume: bool = False
    """Continue unfinished runs from their checkpoints."""
    samples: bool = True
    """Whether the folders of runs get two test images of each task, for reports."""
    device: str = "cpu"
    plugins: tuple[str, ...] = ()
    """Modules that worker processes import first."""
    watch: Watch | None = None
    """Opened for each run, in its process: gives a function that is called with the record of each epoch."""

    def load(self) -> Scenario:
        """The tasks."""
        return self.scenario if isinstance(self.scenario, Scenario) else self.scenario()

    def folder(self, each: SweepRun) -> RunFolder | None:
        """The folder of a run, None if it has none."""
        return None if self.runs is None else RunFolder(self.runs / folder_name(each.name, each.seed))

    def describe(self, each: SweepRun, scenario: Scenario) -> RunSettings:
        """Everything that the numbers of a run depend on; an error if its learner has a recipe of its own."""
        if isinstance(each.learner, Learner) and each.learner.recipe != self.recipe:
            differs = differences(each.learner.recipe.to_dict(), self.recipe.to_dict())
            raise ValueError(
                f"{each.name}: the instance of its learner has another recipe than the sweep ({differs}): "
                "create the learner with the recipe of the sweep"
            )
        return describe(
            scenario,
            each.learner,
            self.recipe,
            each.seed,
            each.options,
            self.fraction,
            self.evaluate_on,
            each.name,
        )


class Sweep:
    """Runs that are not in the result file yet are done; each one is added to the file when it is finished.

    Several sweeps may write to one file at the same time.

    Args:
        settings: what all runs have in common.
        runs: the runs, in the order in which they are done.
        path: the result file. An existing one is continued.
        command: gives the command that repeats a comparison, to be recorded in the file.
        replace: do all runs again and replace what the file and the runs' folders hold of them.
        order: names of rows in table order; other rows follow as their learners are registered.
    """

    def __init__(
        self,
        settings: SweepSettings,
        runs: Sequence[SweepRun],
        path: Path,
        command: Callable[[Comparison], str] = lambda comparison: comparison.command,
        replace: bool = False,
        order: Sequence[str] = (),
    ) -> None:
        self.settings, self.runs, self.path, self._command = settings, runs, path, command
        self._first = list(order)
        scenario = settings.load()
        self._expected = {(each.name, each.seed): settings.describe(each, scenario) for each in runs}
        self._empty = Comparison(
            scenario.name,
            [task.name for task in scenario.tasks],
            scenario.images,
            settings.recipe.to_dict(),
            settings.profile,
            settings.fraction,
            settings.image_folder,
            settings.evaluate_on,
            scenario.digest,
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock():
            remove_unfinished(path.parent, path.name)
            if replace:
                self._discard()
            self.comparison = self._read()
            if not path.exists():
                self.comparison.write(path)  # before the work: a folder without write permission must not cost runs

    @property
    def left(self) -> list[SweepRun]:
        """The runs that the result file does not hold yet."""
        return [each for each in self.runs if self.comparison.find(each.name, each.seed) is None]

    def run(
        self,
        jobs: int = 1,
        on_result: Callable[[SweepRun, RunResult], None] = lambda *_: None,
        on_failure: Callable[[SweepRun, str], None] = lambda *_: None,
    ) -> list[str]:
        """Do all runs that are left; returns a line for each one that failed.

        Args:
            jobs: number of runs at the same time, each in a process with one thread. One job runs in this process.
            on_result: called with each finished run, after it is kept.
            on_failure: called with each failed run and the reason.
        """
        for each in self.left:
            folder = self.settings.folder(each)
            if folder is not None and folder.finished:  # stopped between the end of the run and the result file
                self._add(each, folder.read_result(self._expected[each.name, each.seed]), on_result)
        left = {(each.name, each.seed): each for each in self.left}
        failures = []
        calls = [(self.settings, each) for each in left.values()]
        for name, seed, result, problem in side_by_side(jobs, _run_one, calls):
            each = left[name, seed]
            if result is None:
                failures.append(f"{name}, seed {seed}, failed: {problem}")
                on_failure(each, problem)
            else:
                self._add(each, result, on_result)
        return failures

    def _add(self, each: SweepRun, result: RunResult, on_result: Callable[[SweepRun, RunResult], None]) -> None:
        """Add a run to the file. Runs that other processes have added stay."""
        with self._lock():
            self.comparison = self._read()
            self.comparison.add(result, self._order([*self.comparison.runs, result]))
            self.comparison.command = self._command(self.comparison)
            self.comparison.write(self.path)
        on_result(each, result)

    def _order(self, runs: Sequence[RunResult]) -> list[str]:
        """The rows of these runs in table order; rows of one learner are in the order of this sweep."""
        learners, own = learner_names(), [each.name for each in self.runs]
        rows = {each.name: each.learner for each in runs}

        def place(row: str) -> tuple[int, int, int]:
            return _place(row, self._first), _place(rows[row], learners), own.index(row) if row in own else -1

        return sorted(rows, key=place)

    def _lock(self) -> FileLock:
        return FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=60)

    def _read(self) -> Comparison:
        """The content of the result file; an error if it does not belong to this sweep."""
        if not self.path.exists():
            return Comparison.from_dict(self._empty.to_dict())
        found = Comparison.read(self.path)
        differs = _common_differences(found, self._empty)
        expected = {name: settings for (name, _), settings in self._expected.items()}
        kinds = {each.name: each.kind for each in self.runs}
        for name, results in found.learners.items():
            if name in expected and not differs:
                given = {part: getattr(expected[name], part) for part in ("learner", "version", "options")}
                before = {**results[0].to_dict(), "options": kinds[name].saved_options(results[0].options)}
                part = differences(before, json.loads(json.dumps(given)))
                differs = f"{name}: {part}" if part else ""
        if differs:
            raise OtherSettingsError(
                f"{self.path} holds results with other settings ({differs}): choose another file, or move it away"
            )
        return found

    def _discard(self) -> None:
        """Remove the runs of this sweep from the file and from the disk."""
        if self.path.exists():
            found = Comparison.read(self.path)
            own = {each.name for each in self.runs}
            found.runs = [each for each in found.runs if each.name not in own]
            if _common_differences(found, self._empty):
                self.path.unlink()
            else:
                found.write(self.path)
        for each in self.runs:
            folder = self.settings.folder(each)
            if folder is not None and folder.begun:
                shutil.rmtree(folder.path)


def _place(name: str, names: Sequence[str]) -> int:
    """The place of a name among names, their number if it is not one of them."""
    return names.index(name) if name in names else len(names)


def _common_differences(found: Comparison, expected: Comparison) -> str:
    """What differs between two comparisons beside their runs."""
    common = ("scenario", "tasks", "images", "recipe", "profile", "fraction", "folder", "evaluate_on")
    known = ("data",) if found.data is not None else ()
    return differences(found.to_dict(), expected.to_dict(), common + known)


def _run_one(settings: SweepSettings, each: SweepRun) -> tuple[str, int, RunResult | None, str]:
    """One run, perhaps in a process of its own; returns its result, or what went wrong."""
    folder = settings.folder(each)
    result, problem = None, ""
    try:
        import_plugins(settings.plugins)
        with ExitStack() as stack:
            on_epoch = None if settings.watch is None else stack.enter_context(settings.watch(each))
            result, _ = run(
                settings.load(),
                each.learner,
                settings.recipe,
                each.seed,
                options=None if isinstance(each.learner, Learner) else each.options,
                folder=None if folder is None else folder.path,
                resume=settings.resume,
                device=find_device(settings.device),
                fraction=settings.fraction,
                evaluate_on=settings.evaluate_on,
                on_epoch=on_epoch,
                command=each.command,
                name=each.name,
                keep_samples=settings.samples,
            )
    except BusyError as error:
        problem = str(error)
    except OSError as error:
        problem = f"{error.filename or (folder and folder.path)}: {error.strerror or error}"
    except Exception as error:
        problem = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        if folder is not None:
            with suppress(OSError):
                problem += f" (see {folder.write_error(traceback.format_exc())})"
    return each.name, each.seed, result, " ".join(problem.split())


def row_name(learner: str, options: Mapping[str, Any]) -> str:
    """The name of a row: `hrn`, or `hrn(max_units=6)` for a learner with unusual options."""
    return f"{learner}({', '.join(changed(options))})" if options else learner


def changed(values: Mapping[str, Any]) -> list[str]:
    """`name=value` for each value; a long value is replaced by a few digits of its hash."""
    found = []
    for name, value in values.items():
        text = value if isinstance(value, str) else json.dumps(value)
        short = text if len(text) <= 24 else "#" + hashlib.sha256(text.encode()).hexdigest()[:6]
        found.append(f"{name}={short}")
    return found


def folder_name(name: str, seed: int) -> str:
    """The name of a run's folder: `hrn-max_units=6-seed0`."""
    plain = name.replace(", ", ",").replace("(", "-").replace(")", "")
    return re.sub(r"[^\w.,=#+-]", "_", f"{plain}-seed{seed}")
