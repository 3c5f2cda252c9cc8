"""hashroute forget: remove a task for good."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import MODEL, confirmed, open_model, say


@dataclass(frozen=True)
class ForgetSettings:
    """The task to forget."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model."""
    task: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="TASK")]
    """Name of the task."""
    yes: bool = False
    """Do not ask."""


def run_forget(settings: ForgetSettings, console: Console) -> None:
    """Ask, and forget."""
    model, task = open_model(settings.model), settings.task
    known = next((each for each in model.tasks() if each.name == task), None)
    heirs = model.descendants(task) if known else []
    if heirs:
        say(console, f"the units of {', '.join(heirs)} descend from {task} and keep some of what it learned")
    if not settings.yes:
        if not sys.stdin.isatty():
            raise ValueError(f"forgetting {task!r} cannot be undone: add --yes to do it without being asked")
        if not confirmed(console, f"forget {task}? It cannot be brought back, not even with undo."):
            return
    model.forget(task)
    trace = "no other task has learned from it"
    if known is not None and not known.private:
        trace = f"some of it remains in {'the units above and in ' if heirs else ''}the sums of the shared head"
    say(console, f"forgotten: {task}; {trace}")
