"""hashroute undo: take back the last lesson or renaming of a model."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import MODEL, confirmed, open_model, say


@dataclass(frozen=True)
class UndoSettings:
    """The model to change."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model."""
    yes: bool = False
    """Do not ask. Only a terminal is asked."""


def run_undo(settings: UndoSettings, console: Console) -> None:
    """Ask, undo, and say what was undone."""
    model = open_model(settings.model)
    if sys.stdin.isatty() and not settings.yes:
        question = f"undo the last lesson or renaming, so that {model.undoing()}?"
        if not confirmed(console, question):
            return
    say(console, f"undone: {model.undo()}")
