"""The search for learners' options: small, on validation images only, its outcome a file that comparisons use."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from hashroute.learners import LEARNERS, find_learner
from hashroute.learners.base import options_from_dict, parse_option
from hashroute.recipe import Profile, result_name, with_defaults
from hashroute.scenarios import load_scenario, scenario_recipe
from hashroute.storage import write_json
from hashroute.tasks import Scenario
from hashroute.training import metrics
from hashroute.training.run import run
from hashroute.training.workers import check_counts, side_by_side


@dataclass(frozen=True)
class SearchSettings:
    """Recipe of a search."""

    scenario: tyro.conf.Positional[str] = "digits"
    """Which tasks to learn."""
    learners: tuple[str, ...] = tuple(name for name, kind in LEARNERS.items() if kind.grid)
    """Whose options to search for."""
    recipe: Profile = "default"
    """How learners are trained: as published, or our own way."""
    fraction: float = 0.2
    """Share of every task's training images that is used."""
    tasks: int | None = None
    """Use the first tasks only; all, if left out."""
    values: tuple[str, ...] = ()
    """Values to try in place of a learner's own, such as gpm.threshold=0.5,0.6; the others stay."""
    seeds: int = 1
    """Runs of each trial."""
    jobs: int = 1
    """Trials at the same time, one thread each."""
    output: Path | None = None
    """File to write; NAME-search.json, if left out. One that is there is gone on with."""


def run_search(settings: SearchSettings, console: Console) -> Path:
    """Try every combination of each learner's grid; returns the file with all trials and the best options."""
    check_counts(seeds=settings.seeds, jobs=settings.jobs, tasks=1 if settings.tasks is None else settings.tasks)
    for learner in settings.learners:
        if not find_learner(learner).grid:
            raise ValueError(f"learner {learner!r} has nothing to search for: leave it out")
    grids = _grids(settings)
    if not 0 < settings.fraction <= 1:
        raise ValueError(f"--fraction is {settings.fraction}: expected a number above 0, up to 1")
    scenario = _load(settings.scenario, settings.fraction, settings.tasks)
    common = scenario_recipe(scenario, settings.recipe)
    path = settings.output or Path(f"{result_name(settings.scenario, settings.recipe)}-search.json")
    found: dict[str, Any] = {
        "scenario": settings.scenario,
        "tasks": [task.name for task in scenario.tasks],
        "fraction": settings.fraction,
        "measure": "mean accuracy on validation images after the last task, percent",
        "command": _command(settings),
        "recipe": common.to_dict(),
        "chosen": {},
        "trials": [],
    }
    if path.exists():
        kept = json.loads(path.read_text())
        for part in ("scenario", "tasks", "fraction", "recipe"):
            known = with_defaults(kept.get(part)) if isinstance(kept, dict) else None
            if known != found[part]:
                raise ValueError(f"{path} holds a search with other {part}: choose another --output, or delete it")
        found["trials"], found["chosen"] = kept["trials"], choose(kept["trials"])
        commands = kept["command"].split(" && ")  # all that made it, one after the other
        found["command"] = " && ".join(dict.fromkeys([*commands, found["command"]]))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, found)  # before the work: an unwritable folder should not cost a search
    done = [(trial["learner"], trial["options"], trial["seed"]) for trial in found["trials"]]
    trials = [
        (learner, options, seed)
        for learner in settings.learners
        for options in combinations(grids[learner])
        for seed in range(settings.seeds)
        if (learner, options, seed) not in done
    ]
    work = ((settings, *trial) for trial in trials)
    for number, trial in enumerate(side_by_side(settings.jobs, _try, work), 1):
        found["trials"].append(trial)
        found["chosen"] = choose(found["trials"])
        write_json(path, found)
        said = ", ".join(f"{name} {value:g}" for name, value in trial["options"].items())
        console.print(
            f"{number} of {len(trials)}: {trial['learner']} with {said}, seed {trial['seed']}: "
            f"{trial['final']:.2f} % (forgot {trial['forgetting']:.2f})",
            highlight=False,
            soft_wrap=True,
        )
    table = Table("learner", "chosen", header_style="")
    for learner, options in found["chosen"].items():
        table.add_row(learner, ", ".join(f"{name} {value:g}" for name, value in options.items()))
    console.print(table)
    console.print(
        f"saved in {path}; use it with hashroute bench --tuned {path}", markup=False, highlight=False, soft_wrap=True
    )
    return path


def _grids(settings: SearchSettings) -> dict[str, dict[str, tuple[Any, ...]]]:
    """By learner, the values of its options to try."""
    grids = {learner: dict(find_learner(learner).grid) for learner in settings.learners}
    for text in settings.values:
        learner, name, said = parse_option("--values", text, settings.learners)
        kind = find_learner(learner).Options
        whole = isinstance(getattr(kind(), name, None), int)
        try:
            values = tuple(map(int if whole else float, said.split(",")))
        except ValueError:
            numbers = "whole numbers" if whole else "numbers"
            raise ValueError(f"--values has {text!r}: expected {numbers} behind the =, with commas between") from None
        grids[learner][name] = values
        for value in values:
            options_from_dict(kind, {name: value})
    return grids


def combinations(grid: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """Every combination of the values of a grid."""
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def choose(trials: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """For each learner the options with the highest mean final accuracy."""
    best: dict[str, dict[str, Any]] = {}
    for learner in dict.fromkeys(trial["learner"] for trial in trials):
        finals: dict[str, list[float]] = {}
        for trial in trials:
            if trial["learner"] == learner:
                finals.setdefault(json.dumps(trial["options"], sort_keys=True), []).append(trial["final"])
        best[learner] = json.loads(max(sorted(finals), key=lambda options: fmean(finals[options])))
    return best


def _try(settings: SearchSettings, learner: str, options: dict[str, Any], seed: int) -> dict[str, Any]:
    scenario = _load(settings.scenario, settings.fraction, settings.tasks)
    usual = find_learner(learner).usual_options(scenario.name, scenario.image_shape)
    outcome, _ = run(scenario, learner, settings.recipe, seed, options={**usual, **options}, evaluate_on="validation")
    return {
        "learner": learner,
        "options": options,
        "seed": seed,
        "final": metrics.final(outcome.accuracy),
        "forgetting": metrics.forgetting(outcome.accuracy),
    }


@lru_cache(maxsize=1)  # a worker does several trials
def _load(name: str, fraction: float, tasks: int | None) -> Scenario:
    """The first tasks of a scenario, with a part of their training images and all of those for validation."""
    scenario = load_scenario(name)
    chosen = scenario.tasks[:tasks]
    return Scenario(scenario.name, tuple(replace(task, train=task.part(fraction).train) for task in chosen))


def _command(settings: SearchSettings) -> str:
    parts = ["hashroute search", settings.scenario, f"--recipe {settings.recipe} --fraction {settings.fraction:g}"]
    parts += [f"--tasks {settings.tasks}"] if settings.tasks else []
    parts += ["--learners", *settings.learners] if set(settings.learners) != set(SearchSettings.learners) else []
    parts += ["--values", *settings.values] if settings.values else []
    return " ".join([*parts, f"--seeds {settings.seeds}"])
