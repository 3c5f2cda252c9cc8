"""hashroute ablate: the paper's ablation of the hash-routed network."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from hashroute.cli.options import check_counts, check_fraction, say

if TYPE_CHECKING:
    from hashroute.tasks import Scenario
    from hashroute.training.result import Comparison, RunResult
    from hashroute.training.sweep_runs import SweepRun


@dataclass(frozen=True)
class AblateSettings:
    """Settings of the ablation."""

    seeds: int = 5
    """Number of runs of each row, with seeds 0, 1, ..."""
    jobs: int = 1
    """Number of runs at the same time, each in a process with one thread."""
    fraction: float = 1.0
    """Share of every task's images, for a quick look."""
    output: Path = Path("results/ablation.json")
    """Result file. An existing one is continued."""


def run_ablation(settings: AblateSettings, console: Console) -> int:
    """Do the runs that the file does not hold yet, and show the differences; returns how many failed."""
    from hashroute.reporting.results import ablation
    from hashroute.reporting.table import to_terminal
    from hashroute.scenarios import scenario_recipe
    from hashroute.training.ablation import PAPER_SIGNS, ROWS, SCENARIO
    from hashroute.training.run import learner_options
    from hashroute.training.sweep import Sweep
    from hashroute.training.sweep_runs import SweepRun, SweepSettings

    check_counts(seeds=settings.seeds, jobs=settings.jobs)
    check_fraction(settings.fraction)
    load = partial(_load, SCENARIO, settings.fraction)
    scenario = load()
    published = learner_options("hrn-paper", SCENARIO, "paper", scenario.image_shape)
    runs = [
        SweepRun(name, "hrn-paper", seed, {**published, **change})
        for seed in range(settings.seeds)
        for name, change in ROWS.items()
    ]

    def command(comparison: Comparison) -> str:
        seeds = 1 + max(run.seed for run in comparison.runs)
        return f"hashroute ablate --seeds {seeds} --fraction {settings.fraction:g}"

    shared = SweepSettings(load, scenario_recipe(scenario, "paper"), "paper", settings.fraction)
    sweep = Sweep(shared, runs, settings.output, command)
    done, total = itertools.count(1), len(sweep.left)

    def on_result(each: SweepRun, result: RunResult) -> None:  # noqa: ARG001
        say(console, f"{next(done)} of {total}: {each.name}, seed {each.seed}")

    failures = sweep.run(settings.jobs, on_result)
    if "baseline" in sweep.comparison.learners:
        console.print(to_terminal(ablation(sweep.comparison.learners, PAPER_SIGNS)))
    for failure in failures:
        say(console, failure)
    say(console, f"results in {settings.output}")
    return len(failures)


@lru_cache(maxsize=1)  # a worker process does several runs
def _load(name: str, fraction: float) -> Scenario:
    from hashroute.scenarios import load_scenario

    return load_scenario(name, fraction)
