"""hashroute verify: check every file of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from hashroute.cli.options import open_model, say


@dataclass(frozen=True)
class VerifySettings:
    """The model to check."""

    model: tyro.conf.Positional[Path]
    """Folder of the model."""


def run_verify(settings: VerifySettings, console: Console) -> int:
    """Check, and name what is wrong; returns the number of problems."""
    from hashroute.model.store import Store

    problems = Store(settings.model).verify() if settings.model.exists() else []
    problems = problems or open_model(settings.model).verify()  # a damaged manifest cannot be opened
    for problem in problems:
        say(console, problem)
    if not problems:
        say(console, "every file is as it was written")
    return len(problems)
