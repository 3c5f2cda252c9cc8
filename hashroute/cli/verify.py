"""hashroute verify: check every file of a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import CODE, MODEL, UNSET, open_model, say


@dataclass(frozen=True)
class VerifySettings:
    """The model to check."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model."""
    backbone: Annotated[str | None, UNSET, CODE] = None


def run_verify(settings: VerifySettings, console: Console) -> int:
    """Check, and name what is wrong; returns the number of problems."""
    from hashroute.model.store import Store

    problems = Store(settings.model).verify() if settings.model.exists() else []
    if not problems:  # a damaged manifest cannot be opened
        problems = open_model(settings.model, backbone=settings.backbone).verify()
    for problem in problems:
        say(console, problem)
    if not problems:
        say(console, "every file is as it was written")
    return len(problems)
