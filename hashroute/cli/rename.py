"""hashroute rename: give a task another name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import MODEL, open_model, say


@dataclass(frozen=True)
class RenameSettings:
    """The task to rename."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model."""
    old: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="OLD")]
    """Name of the task."""
    new: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="NEW")]
    """Its new name."""


def run_rename(settings: RenameSettings, console: Console) -> None:
    """Rename a task."""
    open_model(settings.model).rename(settings.old, settings.new)
    say(console, f"{settings.old} is now called {settings.new}")
