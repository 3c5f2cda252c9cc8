"""hashroute rename: give a task another name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from hashroute.cli.options import open_model, say


@dataclass(frozen=True)
class RenameSettings:
    """The task to rename."""

    model: tyro.conf.Positional[Path]
    """Folder of the model."""
    old: tyro.conf.Positional[str]
    """Name of the task."""
    new: tyro.conf.Positional[str]
    """Its new name."""


def run_rename(settings: RenameSettings, console: Console) -> None:
    """Rename a task."""
    open_model(settings.model).rename(settings.old, settings.new)
    say(console, f"{settings.old} is now called {settings.new}")
