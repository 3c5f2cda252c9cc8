"""The demo: five learners learn five pairs of handwritten digits, one after the other, and are asked about all of them.

The digits come with scikit-learn, so nothing is downloaded. Beside `hrn` stand the network of the paper, a plain one
that nothing protects, and two controls with nothing to forget: `hash-only` learns heads alone, `separate` starts anew.
"""

from __future__ import annotations

import importlib.util
import shlex
import shutil
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from hashroute.devices import find_device
from hashroute.learners.options import options_to_dict
from hashroute.reporting.page import ReportSettings, run_report
from hashroute.reporting.tables import summary_table
from hashroute.scenarios import load_scenario, scenario_recipe
from hashroute.storage import insert_seed, write_json
from hashroute.training.run import run
from hashroute.training.workers import check_counts

LEARNERS = ("hrn", "hrn-paper", "vc", "hash-only", "separate")


@dataclass(frozen=True)
class DemoSettings:
    """Recipe of the demo."""

    seed: int = 0
    """Seed of weights, hash functions and batches: the same seed gives the same result."""
    epochs: int = 10
    """Passes over each task's training images."""
    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one."""
    output: Path = Path("runs")
    """Folder in which the demo gets a folder of its own."""


def run_demo(settings: DemoSettings, command: str, console: Console) -> Path:
    """Train, save and show; returns the demo's folder, which appears whole or not at all."""
    check_counts(epochs=settings.epochs)
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"--seed is {settings.seed}: expected a whole number from 0 to below 2^63")
    unfinished = settings.output / f".demo-{time.time_ns()}"
    unfinished.mkdir(parents=True)  # before the work: an unwritable folder should not cost a run
    try:
        content = train(settings, command, unfinished, console)
        folder = free_name(settings.output / f"demo-seed{settings.seed}")
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    show(content, console)
    console.print(f"saved in {folder}", markup=False, highlight=False, soft_wrap=True)
    if importlib.util.find_spec("matplotlib") is None:
        console.print("for a page about it: pip install 'hashroute[plots]'", markup=False, highlight=False)
    else:
        again = shlex.join(["hashroute", "report", str(folder), "--output", str(folder)])
        run_report(ReportSettings((folder,), folder), again, console)
    return folder


def train(settings: DemoSettings, command: str, folder: Path, console: Console) -> dict[str, Any]:
    """Take every learner through all tasks, each into a folder of its own; returns what results.json holds."""
    device = find_device(settings.device)
    torch.set_num_threads(1)  # batches this small gain nothing from more, and lose a lot on a busy machine
    scenario = load_scenario("digits")
    common = replace(scenario_recipe(scenario, "default"), epochs=(settings.epochs,))
    content: dict[str, Any] = {
        "scenario": scenario.name,
        "tasks": [task.name for task in scenario.tasks],
        "recipe": {"profile": "default", "fraction": 1.0, **common.to_dict()},
        "command": command,
        "learners": {},
    }
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(LEARNERS) * len(scenario.tasks) * settings.epochs)
        for name in LEARNERS:

            def advance(record: dict[str, Any], name: str = name) -> None:
                progress.update(bar, advance=1, description=f"{name} learns {record['task']}")

            outcome, learner = run(
                scenario,
                name,
                common,
                settings.seed,
                folder=folder / f"{name}-seed{settings.seed}",
                checkpoints=False,  # a demo is whole or not there
                device=device,
                on_epoch=advance,
                command=command,
            )
            entry = content["learners"][name] = {"seeds": [], "options": options_to_dict(learner.options)}
            insert_seed(entry, settings.seed, outcome.to_dict())
    write_json(folder / "results.json", content)
    return content


def free_name(folder: Path) -> Path:
    """This folder, or the first of folder-2, folder-3, ... that does not exist."""
    number, candidate = 1, folder
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def show(content: dict[str, Any], console: Console) -> None:
    """The accuracy of every task after every task, of hrn; a line for each learner; and what hrn decided."""
    entry = content["learners"]["hrn"]
    table = Table(title="hrn: test accuracy, %", title_justify="left", header_style="")
    table.add_column("after learning")
    for task in content["tasks"]:
        table.add_column(task.replace(" or ", "/"), justify="right")
    for task, row in zip(content["tasks"], entry["accuracy"][0], strict=True):
        table.add_row(task, *("" if value is None else f"{value:.1f}" for value in row))
    console.print(table, summary_table(content), sep="\n")
    console.print("what hrn decided about each task, from validation images:", highlight=False)
    decisions = Table.grid(padding=(0, 1))
    for decision in entry["decisions"][0]:
        task, said = f"  {decision['task']}:", decision["said"].removeprefix(f"{decision['task']}: ")
        decisions.add_row(task, said)
        if not console.is_terminal:  # where a line has no end
            console.print(task, said, highlight=False, soft_wrap=True)
    if console.is_terminal:
        console.print(decisions)
