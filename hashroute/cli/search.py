"""hashroute search: choose learner options on validation images."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from hashroute.cli.options import (
    UNSET,
    check_counts,
    check_folder,
    check_fraction,
    load_tasks,
    parse_option,
    say,
    scenario_name,
)

if TYPE_CHECKING:
    from hashroute.integrations.optuna import Trial
    from hashroute.learners.options import Space
    from hashroute.tasks import Scenario
    from hashroute.training.evaluate import Measure
    from hashroute.training.result import Comparison, RunResult
    from hashroute.training.sweep_runs import SweepRun, SweepSettings

Grid = Mapping[str, tuple[Any, ...]]
Chosen = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search."""

    scenario: tyro.conf.Positional[str] = "digits"
    """Scenario to learn."""
    learners: Annotated[tuple[str, ...], UNSET] = ()
    """Learners whose options are searched; by default all that have a grid of values, or ranges for trials."""
    trials: Annotated[int | None, UNSET] = None
    """Let Optuna choose the options of this many trials of each learner, instead of trying a grid. A trial that is
    behind most others after a task is stopped."""
    measure: Literal["task-aware", "task-free"] = "task-aware"
    """Accuracy after the last task that the best options have: with the task given, or without."""
    recipe: Literal["default", "paper"] = "default"
    """How learners are trained. `paper`: the published settings. `default`: our recommended settings."""
    fraction: float = 0.2
    """Share of every task's training images. Validation images are all used."""
    folder: Annotated[Path | None, UNSET] = None
    """Images of the scenario `folders`: one folder per task, in it one folder per class."""
    size: Annotated[int | None, UNSET] = None
    """Height and width to which the scenario `folders` scales images, in pixels."""
    tasks: Annotated[int | None, UNSET] = None
    """Number of tasks to use, from the first one on; by default all."""
    values: Annotated[tuple[str, ...], UNSET] = ()
    """Values to try instead of a learner's own, for example gpm.threshold=0.5,0.6; with trials also a range, such as
    gpm.threshold=0.5:0.99, or ewc.weight=1:1e6:log."""
    seeds: int = 1
    """Number of runs of each combination of values, or of each trial."""
    jobs: int = 1
    """Number of runs at the same time, each in a process with one thread."""
    output: Annotated[Path | None, UNSET] = None
    """File of all runs; by default NAME-search.json, or the SQLite file NAME-search.db for trials. An existing one is
    continued."""
    plugins: Annotated[tuple[str, ...], UNSET] = ()
    """Python modules to import first. They register your own learners, scenarios, backbones or objectives."""

    def command(self) -> str:
        """The command of this search."""
        parts = ["hashroute", "search", self.scenario, "--recipe", self.recipe, "--fraction", f"{self.fraction:g}"]
        parts += ["--trials", str(self.trials)] if self.trials else []
        parts += ["--measure", self.measure] if self.measure != "task-aware" else []
        parts += ["--folder", str(self.folder)] if self.folder else []
        parts += ["--size", str(self.size)] if self.size else []
        parts += ["--tasks", str(self.tasks)] if self.tasks else []
        parts += ["--learners", *self.learners] if self.learners else []
        parts += ["--values", *self.values] if self.values else []
        parts += ["--seeds", str(self.seeds)] if self.seeds > 1 else []
        parts += ["--plugins", *self.plugins] if self.plugins else []
        return shlex.join(parts)


def run_search(settings: SearchSettings, console: Console) -> int:
    """Try options of each learner, write the best ones; returns how many runs failed."""
    from rich.table import Table

    from hashroute.learners.registry import import_plugins
    from hashroute.recipe import result_name
    from hashroute.scenarios import scenario_recipe
    from hashroute.training.sweep_runs import SweepSettings

    check_counts(
        seeds=settings.seeds, jobs=settings.jobs, tasks=settings.tasks, trials=settings.trials, size=settings.size
    )
    check_fraction(settings.fraction)
    check_folder(settings.scenario, settings.folder, settings.size)
    import_plugins(settings.plugins)
    spaces = _spaces(settings)
    load = partial(_load, settings.scenario, settings.folder, settings.size, settings.fraction, settings.tasks)
    scenario = load()
    recipe = scenario_recipe(scenario, settings.recipe)
    name = result_name(scenario_name(settings.scenario, settings.folder), settings.recipe)
    path = settings.output or Path(f"{name}-search.{'db' if settings.trials else 'json'}")
    shared = SweepSettings(
        load,
        recipe,
        settings.recipe,
        settings.fraction,
        None if settings.folder is None else str(settings.folder.resolve()),
        evaluate_on="validation",
        plugins=settings.plugins,
    )
    search = _try_trials if settings.trials else _try_grids
    chosen, failures = search(settings, console, shared, spaces, path)
    table = Table("learner", "best options on validation images", header_style="")
    for learner, options in chosen.items():
        table.add_row(learner, ", ".join(f"{name} {_short(value)}" for name, value in options.items()))
    console.print(table)
    for failure in failures:
        say(console, failure)
    say(console, f"all runs in {path}; use the best options with: hashroute bench --tuned {_tuned(path)}")
    return len(failures)


def _tuned(path: Path) -> Path:
    """The file with the best options that belongs to the file of all runs."""
    return path.with_name(f"{path.stem.removesuffix('-search')}-tuned.json")


def _try_grids(
    settings: SearchSettings, console: Console, shared: SweepSettings, grids: Mapping[str, Grid], path: Path
) -> tuple[Chosen, list[str]]:
    """Try every combination of each learner's grid; returns the best options, and a line for each failure."""
    from hashroute.storage import write_json
    from hashroute.training import metrics
    from hashroute.training.sweep import Sweep
    from hashroute.training.sweep_runs import SweepRun, row_name

    usual = _usual(grids, shared.load())
    runs = [
        SweepRun(row_name(learner, options), learner, seed, {**usual[learner], **options})
        for learner, grid in grids.items()
        for options in combinations(grid)
        for seed in range(settings.seeds)
    ]

    def command(comparison: Comparison) -> str:
        before = comparison.command.split(" && ") if comparison.command else []
        return " && ".join(dict.fromkeys([*before, settings.command()]))

    sweep = Sweep(shared, runs, path, command)
    done = itertools.count(1)
    total = len(sweep.left)

    def on_result(each: SweepRun, result: RunResult) -> None:
        final, lost = metrics.final(result.accuracy), metrics.forgetting(result.accuracy)
        text = f"{each.name}, seed {each.seed}: {final:.2f} %, forgetting {lost:.2f}"
        say(console, f"{next(done)} of {total}: {text}")

    failures = sweep.run(settings.jobs, on_result)
    chosen = choose(sweep.comparison, grids, settings.measure)
    write_json(_tuned(path), {"command": sweep.comparison.command, "trials": str(path.name), "chosen": chosen})
    return chosen, failures


def _try_trials(
    settings: SearchSettings, console: Console, shared: SweepSettings, spaces: Mapping[str, Space], path: Path
) -> tuple[Chosen, list[str]]:
    """Do the trials that are left; returns the best options, and a line for each failure."""
    from hashroute.integrations.optuna import OptionSearch, writing
    from hashroute.training.workers import side_by_side

    assert settings.trials is not None
    usual = _usual(spaces, shared.load())
    searches = {
        learner: OptionSearch(shared, learner, space, usual[learner], path, settings.measure, settings.seeds)
        for learner, space in spaces.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing(path):
        calls = [(each, index) for each in searches.values() for index in each.begin(settings.trials)]
        before = len(searches) * settings.trials - len(calls)
        if before > 0:
            say(console, f"{before} of {before + len(calls)} trials are already there")
        chosen, failures = _keep(settings, shared, searches, _tuned(path)), []
        for place, trial in enumerate(side_by_side(settings.jobs, OptionSearch.run_trial, calls), 1):
            name = f"{trial.learner}({', '.join(f'{name}={_short(each)}' for name, each in trial.options.items())})"
            say(console, f"{place} of {len(calls)}: {name}: {_outcome(trial)}")
            if trial.problem:
                failures.append(f"{name} failed: {trial.problem}")
            chosen = _keep(settings, shared, searches, _tuned(path))
    return chosen, failures


def _keep(settings: SearchSettings, shared: SweepSettings, searches: Mapping[str, Any], tuned: Path) -> Chosen:
    """Write all trials so far, and the best options, for people and for `bench --tuned`; returns the latter."""
    from hashroute.integrations.optuna import best
    from hashroute.storage import write_json

    scenario = shared.load()
    trials = {learner: search.trials() for learner, search in searches.items()}
    chosen = {learner: found.options for learner, each in trials.items() if (found := best(each)) is not None}
    every = [trial for each in trials.values() for trial in each]
    content = {
        "scenario": scenario.name,
        "tasks": [task.name for task in scenario.tasks],
        "fraction": settings.fraction,
        "measure": f"mean {settings.measure} accuracy on validation images after the last task, percent",
        "command": settings.command(),
        "recipe": shared.recipe.to_dict(),
        "chosen": chosen,
        "trials": [
            {"learner": trial.learner, "options": trial.options, **run}
            for trial in every
            if trial.value is not None
            for run in trial.runs
        ],
        "pruned": [{"learner": each.learner, "options": each.options} for each in every if each.value is None],
    }
    write_json(tuned, content)
    return chosen


def _outcome(trial: Trial) -> str:
    """How a trial ended, in words."""
    if trial.problem:
        return "failed"
    return "stopped, behind most others" if trial.value is None else f"{trial.value:.2f} %"


def _spaces(settings: SearchSettings) -> dict[str, Any]:
    """By learner, the values of its options to try, and spans of values if there are trials."""
    from hashroute.learners import find_learner, learner_names
    from hashroute.learners.options import Span, options_from_dict

    def own(learner: str) -> Mapping[str, Any]:
        kind = find_learner(learner)
        return (kind.space or kind.grid) if settings.trials else kind.grid

    learners = settings.learners or [name for name in learner_names() if own(name)]
    spaces: dict[str, dict[str, Any]] = {learner: dict(own(learner)) for learner in learners}
    for text in settings.values:
        learner, name, given = parse_option("--values", text, list(spaces))
        kind = find_learner(learner)
        whole = isinstance(getattr(kind.Options(), name, None), int)
        values = _parse_values(text, given, int if whole else float, ranges=settings.trials is not None)
        spaces[learner][name] = values
        for value in (values.low, values.high) if isinstance(values, Span) else values:
            options_from_dict(kind, {name: value})
    for learner, space in spaces.items():
        if not space:
            raise ValueError(f"learner {learner!r} has no options to search: leave it out, or add --values")
    return spaces


def _parse_values(text: str, given: str, kind: type[int] | type[float], ranges: bool) -> Any:
    """The values, or the span, that a text names."""
    from hashroute.learners.options import Span

    numbers = "whole numbers" if kind is int else "numbers"
    parts = given.split(":")
    log = parts[2:] == ["log"]
    if len(parts) > 1 and not ranges:
        raise ValueError(f"--values has {text!r}: a range needs --trials, expected {numbers} separated by commas")
    try:
        if len(parts) == 1:
            return tuple(map(kind, given.split(",")))
        if len(parts) > 2 + log:
            raise ValueError
        low, high = map(kind, parts[:2])
    except ValueError:
        more = ", or LOW:HIGH, or LOW:HIGH:log" if ranges else ""
        raise ValueError(f"--values has {text!r}: expected {numbers} after the =, separated by commas{more}") from None
    try:
        return Span(low, high, log)
    except ValueError as error:
        raise ValueError(f"--values has {text!r}: {error}") from None


def _usual(learners: Mapping[str, object], scenario: Scenario) -> Chosen:
    """By learner, the options that are not searched."""
    from hashroute.learners import find_learner

    return {name: find_learner(name).usual_options(scenario.name, scenario.image_shape) for name in learners}


def combinations(grid: Grid) -> list[dict[str, Any]]:
    """Every combination of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def choose(comparison: Comparison, grids: Mapping[str, Grid], measure: Measure = "task-aware") -> Chosen:
    """For each learner the searched options with the highest mean accuracy after the last task."""
    from hashroute.training.evaluate import measured

    best: dict[str, tuple[float, dict[str, Any]]] = {}
    for runs in comparison.learners.values():
        learner = runs[0].learner
        final = fmean(measured(run, measure) for run in runs)
        if learner in grids and final > best.get(learner, (float("-inf"), {}))[0]:
            best[learner] = final, {name: runs[0].options[name] for name in grids[learner]}
    return {learner: options for learner, (_, options) in best.items()}


def _short(value: Any) -> str:
    """A value of an option, as a line shows it."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@lru_cache(maxsize=1)  # a worker process does several runs
def _load(name: str, folder: Path | None, size: int | None, fraction: float, tasks: int | None) -> Scenario:
    """The first tasks of a scenario, with a share of their training images and all validation images."""
    scenario = load_tasks(name, folder, size)
    chosen = scenario.tasks[:tasks]
    return replace(scenario, tasks=tuple(replace(task, train=task.part(fraction).train) for task in chosen))
