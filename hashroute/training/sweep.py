"""A sweep: many runs of one scenario into one result file. Every finished run is kept, so a sweep can be resumed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from filelock import FileLock

from hashroute.learners import learner_names
from hashroute.scenarios import has_published_images
from hashroute.storage import remove_unfinished
from hashroute.training.remote import Engine, run_remotely
from hashroute.training.result import Comparison, RunResult
from hashroute.training.run_folder import differences
from hashroute.training.sweep_runs import SweepRun, SweepSettings, run_one
from hashroute.training.workers import side_by_side


class OtherSettingsError(ValueError):
    """A result file holds results that cannot be compared with those of a sweep."""


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
        jobs: int | None = None,
        on_result: Callable[[SweepRun, RunResult], None] = lambda *_: None,
        on_failure: Callable[[SweepRun, str], None] = lambda *_: None,
        engine: Engine | None = None,
    ) -> list[str]:
        """Do all runs that are left; returns a line for each one that failed.

        Args:
            jobs: number of runs at the same time, each in a process with one thread; by default 1, in this process, or
                as many as the engine has room for.
            on_result: called with each finished run, after it is kept.
            on_failure: called with each failed run and the reason.
            engine: where to run; by default on this machine. Runs need folders then.
        """
        for each in self.left:
            folder = self.settings.folder(each)
            if folder is not None and folder.finished:  # stopped between the end of the run and the result file
                self._add(each, folder.read_result(self._expected[each.name, each.seed]), on_result)
        left = {(each.name, each.seed): each for each in self.left}
        failures = []
        if engine is None:
            outcomes = side_by_side(jobs or 1, run_one, [(self.settings, each) for each in left.values()])
        else:
            outcomes = run_remotely(engine, self.settings, list(left.values()), self._expected, jobs)
        for name, seed, result, problem in outcomes:
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
        differs = self._common_differences(found)
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

    def _common_differences(self, found: Comparison) -> str:
        """What differs beside runs. A file of an earlier version does not say from which images its results are."""
        common = ("scenario", "tasks", "images", "recipe", "profile", "fraction", "folder", "evaluate_on")
        if found.data is not None:
            return differences(found.to_dict(), self._empty.to_dict(), (*common, "data"))
        differs = differences(found.to_dict(), self._empty.to_dict(), common)
        if differs or not found.runs or self._published:
            return differs
        return "data: unknown there, and the images here are not those of a published data set"

    @cached_property
    def _published(self) -> bool:
        """Whether the images are, by the sums of their files, those of published data sets."""
        return has_published_images(self.settings.load(), self.settings.fraction)

    def _discard(self) -> None:
        """Remove the runs of this sweep from the file and from the disk."""
        if self.path.exists():
            found = Comparison.read(self.path)
            own = {each.name for each in self.runs}
            found.runs = [each for each in found.runs if each.name not in own]
            if self._common_differences(found):
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
