"""hashroute undo: take back the last change of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from hashroute.cli.options import open_model, say


@dataclass(frozen=True)
class UndoSettings:
    """The model to change."""

    model: tyro.conf.Positional[Path]
    """Folder of the model."""


def run_undo(settings: UndoSettings, console: Console) -> None:
    """Undo, and say what was undone."""
    say(console, f"undone: {open_model(settings.model).undo()}")
