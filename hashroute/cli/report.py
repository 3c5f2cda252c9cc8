"""hashroute report: a page about runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console


@dataclass(frozen=True)
class ReportSettings:
    """Settings of a report."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of runs, folders that contain such folders, or result files. Runs may be unfinished."""
    output: Path = Path("report")
    """Folder for report.html and its figures as PNG and PDF."""


def run_report(settings: ReportSettings, command: str, console: Console) -> Path:
    """Write the page; returns its path."""
    from hashroute.reporting import page

    if not settings.runs:
        raise ValueError("no run is given: expected the folder of a run, a folder of runs, or a result file")
    return page.run_report(page.ReportSettings(settings.runs, settings.output), command, console)
