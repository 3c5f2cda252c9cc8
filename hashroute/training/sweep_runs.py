"""The runs of a sweep: what each one is, what all have in common, and how one is done."""

from __future__ import annotations

import hashlib
import json
import re
import traceback
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hashroute.devices import find_device
from hashroute.learners import find_learner
from hashroute.learners.learner import Learner
from hashroute.learners.registry import import_plugins
from hashroute.recipe import Profile, Recipe
from hashroute.tasks import Scenario
from hashroute.training.evaluate import EvaluateOn
from hashroute.training.result import RunResult
from hashroute.training.run import AnyLearner, describe, run
from hashroute.training.run_folder import BusyError, RunFolder, RunSettings, differences

Record = dict[str, Any]
Watch = Callable[["SweepRun"], AbstractContextManager[Callable[[Record], None]]]


class StopRun(Exception):
    """Raised by who watches a run, after an epoch: the run ends here, and its folder can be resumed."""


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
    objective: str = "classification"
    """What is learned from a task, by name. An instance of a learner has its own."""
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
            self.objective,
        )


def run_one(settings: SweepSettings, each: SweepRun) -> tuple[str, int, RunResult | None, str]:
    """One run, perhaps in a process of its own; returns its result, or what went wrong.

    A run that was stopped by who watches it has neither.
    """
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
                objective=settings.objective,
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
    except StopRun:
        pass
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
