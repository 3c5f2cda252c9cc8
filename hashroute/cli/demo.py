"""hashroute demo: five learners learn five pairs of handwritten digits, one after the other.

The digits come with scikit-learn, so nothing is downloaded. `hrn` is compared with the paper's network, with a plain
network that forgets, and with two controls that cannot forget: `hash-only` trains heads alone, and `separate` trains a
new network for each task.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hashroute.cli.options import check_counts, say

if TYPE_CHECKING:
    from hashroute.training.result import Comparison

LEARNERS = ("hrn", "hrn-paper", "vc", "hash-only", "separate")


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo."""

    seed: int = 0
    """Seed of weights, hash functions and batches. The same seed gives the same result."""
    epochs: int = 10
    """Passes over each task's training images."""
    device: str = "auto"
    """Device to compute on: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one."""
    output: Path = Path("runs")
    """Folder in which the demo gets a folder of its own."""


def run_demo(settings: DemoSettings, command: str, console: Console) -> Path:
    """Train, save and show; returns the folder of the demo, which appears only when it is complete."""
    from hashroute.cli.report import ReportSettings, run_report

    check_counts(epochs=settings.epochs)
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"--seed is {settings.seed}: expected a whole number from 0 to below 2^63")
    unfinished = settings.output / f".demo-{time.time_ns()}"
    unfinished.mkdir(parents=True)  # before the work: a folder without write permission must not cost a run
    try:
        comparison = train(settings, command, unfinished, console)
        folder = free_name(settings.output / f"demo-seed{settings.seed}")
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    show(comparison, console)
    say(console, f"saved in {folder}")
    if importlib.util.find_spec("matplotlib") is None:
        say(console, "for a page with figures: pip install 'hashroute[plots]'")
    else:
        again = shlex.join(["hashroute", "report", str(folder), "--output", str(folder)])
        run_report(ReportSettings((folder,), folder), again, console)
    return folder


def train(settings: DemoSettings, command: str, folder: Path, console: Console) -> Comparison:
    """Train every learner on all tasks, each in a folder of its own, and write results.json."""
    import torch
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    from hashroute.devices import find_device
    from hashroute.scenarios import load_scenario, scenario_recipe
    from hashroute.training.result import Comparison
    from hashroute.training.run import run
    from hashroute.training.sweep_runs import folder_name

    device = find_device(settings.device)
    torch.set_num_threads(1)  # more threads do not help such small batches, and are slow on a busy machine
    scenario = load_scenario("digits")
    recipe = replace(scenario_recipe(scenario, "default"), epochs=(settings.epochs,))
    tasks = [task.name for task in scenario.tasks]
    comparison = Comparison(scenario.name, tasks, scenario.images, recipe.to_dict(), command=command)
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(LEARNERS) * len(scenario.tasks) * settings.epochs)
        for name in LEARNERS:

            def advance(record: dict[str, Any], name: str = name) -> None:
                progress.update(bar, advance=1, description=f"{name} learns {record['task']}")

            result, _ = run(
                scenario,
                name,
                recipe,
                settings.seed,
                folder=folder / folder_name(name, settings.seed),
                checkpoints=False,  # an incomplete demo is not kept
                device=device,
                on_epoch=advance,
                command=command,
            )
            comparison.add(result)
    comparison.write(folder / "results.json")
    return comparison


def free_name(folder: Path) -> Path:
    """This folder, or the first of folder-2, folder-3, ... that does not exist."""
    count, candidate = 1, folder
    while candidate.exists():
        count += 1
        candidate = folder.with_name(f"{folder.name}-{count}")
    return candidate


def show(comparison: Comparison, console: Console) -> None:
    """The accuracy matrix of hrn, a line for each learner, and the decisions of hrn."""
    from rich.table import Table

    from hashroute.reporting.decisions import describe
    from hashroute.reporting.results import headline
    from hashroute.reporting.table import to_terminal

    result = comparison.learners["hrn"][0]
    table = Table(title="hrn: test accuracy, %", title_justify="left", header_style="")
    table.add_column("after learning")
    for task in comparison.tasks:
        table.add_column(task.replace(" or ", "/"), justify="right")
    for task, row in zip(comparison.tasks, result.accuracy, strict=True):
        table.add_row(task, *("" if value is None else f"{value:.1f}" for value in row))
    console.print(table, to_terminal(headline(comparison)), sep="\n")
    console.print("decisions of hrn about each task, on validation images:", highlight=False)
    decisions = Table.grid(padding=(0, 1))
    for decision in result.decisions:
        task, _, text = describe(decision).partition(": ")
        decisions.add_row(f"  {task}:", text)
        if not console.is_terminal:  # a file or pipe has no line length
            console.print(f"  {task}:", text, highlight=False, soft_wrap=True)
    if console.is_terminal:
        console.print(decisions)
