"""hashroute tasks: what a model has learned."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hashroute.cli.options import MODEL, open_model, print_table, say


@dataclass(frozen=True)
class TasksSettings:
    """The model to show."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model."""
    json: bool = False
    """Print one JSON object per task and nothing else."""


def run_tasks(settings: TasksSettings, console: Console) -> None:
    """List the tasks of a model."""
    from hashroute.model.model import percent
    from hashroute.reporting.decisions import describe

    model = open_model(settings.model)
    tasks = model.tasks()
    if settings.json:
        for task in tasks:
            plain = {**task._asdict(), "learned": task.learned.isoformat(timespec="seconds")}
            print(json.dumps(plain, ensure_ascii=False))
        return
    table = Table(header_style="", box=None, pad_edge=False)
    for name in ("task", "classes", "images", "held-out accuracy", "learned", "size"):
        table.add_column(name, justify="right" if name in ("images", "held-out accuracy", "size") else "left")
    for task in tasks:
        name = f"{task.name} (private)" if task.private else task.name
        when = f"{task.learned.astimezone():%Y-%m-%d %H:%M}"
        cells = (name, ", ".join(task.classes), f"{task.images:,}", percent(task.accuracy), when)
        table.add_row(*map(Text, cells), Text(f"{task.bytes / 1000:,.0f} kB"))
    print_table(console, table)
    for task in tasks:
        if task.decision.get("action"):
            say(console, describe(task.decision))
    say(
        console,
        "sizes are those of units, heads, memories and statistics, which tasks may share; with the shared head and "
        f"what undo needs, the folder takes {model.bytes() / 1000:,.0f} kB",
    )
    if count := model.unfinished():
        say(console, f"{count} unfinished: repeat hashroute learn to continue, or hashroute forget to give it up")
