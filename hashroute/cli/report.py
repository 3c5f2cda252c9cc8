"""hashroute report: a page about runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import UNSET, say


@dataclass(frozen=True)
class ReportSettings:
    """Settings of a report."""

    runs: Annotated[tyro.conf.Positional[tuple[Path, ...]], UNSET]
    """Folders of runs, folders that contain such folders, or result files. Runs may be unfinished."""
    output: Path = Path("report")
    """Folder for report.html, its figures as PNG and PDF, and its tables as LaTeX."""
    plugins: Annotated[tuple[str, ...], UNSET] = ()
    """Python modules to import first. They register your own learners and scenarios."""


def run_report(settings: ReportSettings, command: str, console: Console) -> Path:
    """Write the page; returns its path."""
    from hashroute.learners.registry import import_plugins
    from hashroute.reporting.page import write_report

    import_plugins(settings.plugins)
    page = write_report(settings.runs, settings.output, command)
    say(console, f"report in {page}")
    return page
