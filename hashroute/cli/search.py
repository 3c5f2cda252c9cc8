"""hashroute search: choose learner options on validation images."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from hashroute.cli.options import UNSET, check_counts, check_fraction, parse_option, say

if TYPE_CHECKING:
    from hashroute.tasks import Scenario
    from hashroute.training.result import Comparison, RunResult
    from hashroute.training.sweep import SweepRun

Grid = Mapping[str, tuple[Any, ...]]


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search."""

    scenario: tyro.conf.Positional[str] = "digits"
    """Scenario to learn."""
    learners: Annotated[tuple[str, ...], UNSET] = ()
    """Learners whose options are searched; by default all that have a grid of values."""
    recipe: Literal["default", "paper"] = "default"
    """How learners are trained. `paper`: the published settings. `default`: our recommended settings."""
    fraction: float = 0.2
    """Share of every task's training images. Validation images are all used."""
    tasks: Annotated[int | None, UNSET] = None
    """Number of tasks to use, from the first one on; by default all."""
    values: Annotated[tuple[str, ...], UNSET] = ()
    """Values to try instead of a learner's grid, for example gpm.threshold=0.5,0.6."""
    seeds: int = 1
    """Number of runs of each combination of values."""
    jobs: int = 1
    """Number of runs at the same time, each in a process with one thread."""
    output: Annotated[Path | None, UNSET] = None
    """Result file of all runs; by default NAME-search.json. An existing one is continued."""
    plugins: Annotated[tuple[str, ...], UNSET] = ()
    """Python modules to import first. They register your own learners, scenarios, backbones or objectives."""

    def command(self) -> str:
        """The command of this search."""
        parts = ["hashroute", "search", self.scenario, "--recipe", self.recipe, "--fraction", f"{self.fraction:g}"]
        parts += ["--tasks", str(self.tasks)] if self.tasks else []
        parts += ["--learners", *self.learners] if self.learners else []
        parts += ["--values", *self.values] if self.values else []
        parts += ["--seeds", str(self.seeds)] if self.seeds > 1 else []
        parts += ["--plugins", *self.plugins] if self.plugins else []
        return shlex.join(parts)


def run_search(settings: SearchSettings, console: Console) -> int:
    """Try every combination of each learner's grid, write the best options; returns how many runs failed."""
    from rich.table import Table

    from hashroute.learners import find_learner
    from hashroute.learners.registry import import_plugins
    from hashroute.recipe import result_name
    from hashroute.scenarios import scenario_recipe
    from hashroute.storage import write_json
    from hashroute.training import metrics
    from hashroute.training.sweep import Sweep, SweepRun, SweepSettings, row_name

    check_counts(seeds=settings.seeds, jobs=settings.jobs, tasks=settings.tasks)
    check_fraction(settings.fraction)
    import_plugins(settings.plugins)
    grids = _grids(settings)
    load = partial(_load, settings.scenario, settings.fraction, settings.tasks)
    scenario = load()
    recipe = scenario_recipe(scenario, settings.recipe)
    path = settings.output or Path(f"{result_name(settings.scenario, settings.recipe)}-search.json")
    tuned = path.with_name(f"{path.stem.removesuffix('-search')}-tuned.json")
    usual = {name: find_learner(name).usual_options(scenario.name, scenario.image_shape) for name in grids}
    runs = [
        SweepRun(row_name(learner, options), learner, seed, {**usual[learner], **options})
        for learner, grid in grids.items()
        for options in combinations(grid)
        for seed in range(settings.seeds)
    ]

    def command(comparison: Comparison) -> str:
        before = comparison.command.split(" && ") if comparison.command else []
        return " && ".join(dict.fromkeys([*before, settings.command()]))

    shared = SweepSettings(
        load, recipe, settings.recipe, settings.fraction, evaluate_on="validation", plugins=settings.plugins
    )
    sweep = Sweep(shared, runs, path, command)
    done = itertools.count(1)
    total = len(sweep.left)

    def on_result(each: SweepRun, result: RunResult) -> None:
        final, lost = metrics.final(result.accuracy), metrics.forgetting(result.accuracy)
        text = f"{each.name}, seed {each.seed}: {final:.2f} %, forgetting {lost:.2f}"
        say(console, f"{next(done)} of {total}: {text}")

    failures = sweep.run(settings.jobs, on_result)
    chosen = choose(sweep.comparison, grids)
    write_json(tuned, {"command": sweep.comparison.command, "trials": str(path.name), "chosen": chosen})
    table = Table("learner", "best options on validation images", header_style="")
    for learner, options in chosen.items():
        table.add_row(learner, ", ".join(f"{name} {value:g}" for name, value in options.items()))
    console.print(table)
    for failure in failures:
        say(console, failure)
    say(console, f"all runs in {path}; use the best options with: hashroute bench --tuned {tuned}")
    return len(failures)


def _grids(settings: SearchSettings) -> Mapping[str, Grid]:
    """By learner, the values of its options to try."""
    from hashroute.learners import find_learner, learner_names
    from hashroute.learners.options import options_from_dict

    learners = settings.learners or [name for name in learner_names() if find_learner(name).grid]
    grids: dict[str, dict[str, tuple[Any, ...]]] = {}
    for learner in learners:
        grids[learner] = dict(find_learner(learner).grid)
        if not grids[learner]:
            raise ValueError(f"learner {learner!r} has no options to search: leave it out")
    for text in settings.values:
        learner, name, given = parse_option("--values", text, list(grids))
        kind = find_learner(learner)
        whole = isinstance(getattr(kind.Options(), name, None), int)
        try:
            values = tuple(map(int if whole else float, given.split(",")))
        except ValueError:
            numbers = "whole numbers" if whole else "numbers"
            raise ValueError(f"--values has {text!r}: expected {numbers} after the =, separated by commas") from None
        grids[learner][name] = values
        for value in values:
            options_from_dict(kind, {name: value})
    return grids


def combinations(grid: Grid) -> list[dict[str, Any]]:
    """Every combination of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def choose(comparison: Comparison, grids: Mapping[str, Grid]) -> dict[str, dict[str, Any]]:
    """For each learner the searched options with the highest mean accuracy after the last task."""
    from hashroute.training import metrics

    best: dict[str, tuple[float, dict[str, Any]]] = {}
    for runs in comparison.learners.values():
        learner = runs[0].learner
        final = fmean(metrics.final(run.accuracy) for run in runs)
        if learner in grids and final > best.get(learner, (float("-inf"), {}))[0]:
            best[learner] = final, {name: runs[0].options[name] for name in grids[learner]}
    return {learner: options for learner, (_, options) in best.items()}


@lru_cache(maxsize=1)  # a worker process does several runs
def _load(name: str, fraction: float, tasks: int | None) -> Scenario:
    """The first tasks of a scenario, with a share of their training images and all validation images."""
    from hashroute.scenarios import load_scenario

    scenario = load_scenario(name)
    chosen: Sequence[Any] = scenario.tasks[:tasks]
    return replace(scenario, tasks=tuple(replace(task, train=task.part(fraction).train) for task in chosen))
