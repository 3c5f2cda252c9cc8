"""Optuna searches the options of learners. A trial is a run, or one for each seed, measured on validation images.

Trials are kept in an SQLite file, with a study for each learner. A search that was stopped continues its study.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock, Timeout

from hashroute.integrations.installed import check_installed
from hashroute.learners.options import Space, Span
from hashroute.training import metrics
from hashroute.training.evaluate import Measure, measured
from hashroute.training.result import RunResult
from hashroute.training.run_folder import differences
from hashroute.training.sweep_runs import Record, StopRun, SweepRun, SweepSettings, row_name, run_one

if TYPE_CHECKING:
    import optuna

PATIENCE = 60
"""Seconds that a process waits for another one to write to the file."""


class Trial(NamedTuple):
    """One trial of a search."""

    learner: str
    number: int
    options: dict[str, Any]
    """The options that are searched."""
    value: float | None = None
    """What is maximised, mean over seeds; None if the trial was pruned or failed."""
    runs: tuple[dict[str, Any], ...] = ()
    """For each seed that was finished: `seed`, `final` accuracy, `forgetting` and `task_free` accuracy, in percent."""
    problem: str = ""
    """Why it failed."""


@dataclass(frozen=True)
class OptionSearch:
    """A search for the options of one learner."""

    settings: SweepSettings
    """What all runs have in common."""
    learner: str
    space: Space
    usual: dict[str, Any]
    """Options that are not searched."""
    storage: Path
    """The SQLite file."""
    measure: Measure = "task-aware"
    """What is maximised. Trials are pruned by task-aware accuracy: the other is measured after the last task only."""
    seeds: int = 1

    def __post_init__(self) -> None:
        check_installed("a search with trials", "optuna", "search")

    def begin(self, trials: int) -> list[int]:
        """Open the study; returns the indices of the trials that are left, up to this number.

        A trial that was stopped in the middle is repeated. So is one that failed.
        """
        from optuna.trial import TrialState

        with self._study() as study:
            given = self._identity()
            differs = differences(study.user_attrs.get("settings", given), given)
            if differs:
                raise ValueError(
                    f"{self.storage} holds a search of {self.learner} with other settings ({differs}): "
                    "choose another file, or move it away"
                )
            study.set_user_attr("settings", given)
            for stopped in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
                study.tell(stopped.number, state=TrialState.FAIL)
            done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
            indices = {each.user_attrs["index"] for each in done}
        return [index for index in range(trials) if index not in indices]

    def run_trial(self, index: int) -> Trial:
        """Do the trial with this index: the options that Optuna suggests, with each seed."""
        from optuna.trial import TrialState

        with self._study(index) as study:
            suggested = study.ask({name: _distribution(values) for name, values in self.space.items()})
            suggested.set_user_attr("index", index)
            options = {name: suggested.params[name] for name in self.space}
            trial = self._run(options, index, suggested)
            suggested.set_user_attr("runs", trial.runs)
            state = TrialState.COMPLETE if trial.value is not None else TrialState.PRUNED
            study.tell(suggested, trial.value, TrialState.FAIL if trial.problem else state)
        return trial

    def trials(self) -> list[Trial]:
        """All trials that were finished or pruned, in order."""
        from optuna.trial import TrialState

        with self._study() as study:
            done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
            found = [
                Trial(
                    self.learner,
                    each.user_attrs["index"],
                    {name: each.params[name] for name in self.space},
                    each.value if each.state == TrialState.COMPLETE else None,
                    tuple(each.user_attrs["runs"]),
                )
                for each in done
            ]
        return sorted(found, key=lambda each: each.number)

    def _run(self, options: dict[str, Any], index: int, suggested: optuna.Trial) -> Trial:
        """The runs of a trial with these options; none after one that is pruned or fails."""
        watched = replace(self.settings, watch=partial(self._prune, suggested))
        results: list[RunResult] = []
        problem = ""
        for seed in range(self.seeds):
            each = SweepRun(row_name(self.learner, options), self.learner, seed, {**self.usual, **options})
            _, _, result, problem = run_one(watched, each)
            if result is None:
                break
            results.append(result)
        runs = tuple(
            {
                "seed": result.seed,
                "final": metrics.final(result.accuracy),
                "forgetting": metrics.forgetting(result.accuracy),
                "task_free": result.task_free.get("all_classes"),
            }
            for result in results
        )
        value = fmean(measured(each, self.measure) for each in results) if len(results) == self.seeds else None
        return Trial(self.learner, index, options, value, runs, problem)

    @contextmanager
    def _prune(self, suggested: optuna.Trial, each: SweepRun) -> Iterator[Callable[[Record], None]]:
        """Reports the accuracy after each task to Optuna, and stops a run that is behind most others."""

        def tell(record: Record) -> None:
            row = record.get("accuracy")
            if row is None or self.measure != "task-aware":
                return
            known = [value for value in row if value is not None]
            step = each.seed * len(row) + len(known)
            # A task that is not learned yet counts as 0: Optuna compares the best value so far, so values must grow.
            suggested.report(sum(known) / len(row), step)
            if step < self.seeds * len(row) and suggested.should_prune():
                raise StopRun

        yield tell

    def _identity(self) -> dict[str, Any]:
        """All that makes trials comparable, as plain values."""
        run = self.settings.describe(SweepRun(self.learner, self.learner, 0, self.usual), self.settings.load())
        space = {name: asdict(each) if isinstance(each, Span) else each for name, each in self.space.items()}
        values = {**vars(run), "space": space, "measure": self.measure, "seeds": self.seeds}
        plain: dict[str, Any] = json.loads(json.dumps(values))
        return plain

    @contextmanager
    def _study(self, index: int = 0) -> Iterator[optuna.Study]:
        """The study of the learner. index: of the trial that is suggested next, which seeds the suggestion."""
        import optuna
        from sqlalchemy import URL
        from sqlalchemy.exc import DatabaseError

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        url = URL.create("sqlite", database=str(self.storage)).render_as_string()
        try:
            storage = optuna.storages.RDBStorage(url, {"connect_args": {"timeout": PATIENCE}})
        except DatabaseError:
            raise ValueError(f"{self.storage} holds no search: choose another file, or move it away") from None
        try:
            yield optuna.create_study(
                storage=storage,
                sampler=optuna.samplers.TPESampler(seed=index),
                pruner=optuna.pruners.MedianPruner(),
                study_name=self.learner,
                direction="maximize",
                load_if_exists=True,
            )
        finally:
            storage.remove_session()
            storage.engine.dispose()


@contextmanager
def writing(storage: Path) -> Iterator[None]:
    """Hold the lock of the one search that may write to a file; it ends with the process."""
    lock = FileLock(storage.with_name(f".{storage.name}.lock"), timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise ValueError(f"{storage} is being written by another search: wait for it, or end it") from None
    try:
        yield
    finally:
        lock.release()


def best(trials: list[Trial]) -> Trial | None:
    """The trial with the highest value, the first of equals; None if none was finished."""
    finished = [each for each in trials if each.value is not None]
    return max(finished, key=lambda each: each.value or 0.0, default=None)


def _distribution(values: Span | tuple[Any, ...]) -> optuna.distributions.BaseDistribution:
    """What Optuna draws from."""
    from optuna import distributions

    if not isinstance(values, Span):
        return distributions.CategoricalDistribution(values)
    if isinstance(values.low, int) and isinstance(values.high, int):
        return distributions.IntDistribution(values.low, values.high, log=values.log)
    return distributions.FloatDistribution(values.low, values.high, log=values.log)
