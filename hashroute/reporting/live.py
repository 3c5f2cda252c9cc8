"""Progress of runs: a live table on a terminal, with the time left and the accuracies so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from hashroute.reporting.decisions import describe
from hashroute.training.result import ACCURACY, Score
from hashroute.training.run_folder import RunFolder, score_of

MATRICES, ROWS = 2, 10
"""Accuracy matrices that are shown, and the latest rows of each."""
WIDE, NARROW = 120, 100
"""Columns of a terminal. Below WIDE, names are short. Below NARROW, loss and images per second are left out."""


@dataclass
class Job:
    """A run, and its progress."""

    learner: str
    seed: int
    folder: Path
    images: int
    """Training images of the whole run, each counted as often as it is used."""
    state: str = "waiting"
    trained: int = 0
    """Training images so far."""
    record: dict[str, Any] | None = None
    """The record of the last epoch."""
    matrix: list[tuple[str, list[float | None]]] = field(default_factory=list)
    """After each task its name, and the accuracy of every task."""
    score: Score = ACCURACY
    """What these accuracies are."""
    decision: str = ""
    """The latest decision, in a sentence."""
    begun: tuple[float, int] | None = None
    """When the first epoch was seen to end, and the images trained on by then."""
    seen: float = 0.0
    """When the last epoch was seen to end."""
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.update()
        self.state, self.begun = "waiting", None  # the epochs of a run that was stopped say nothing about the pace

    def update(self) -> None:
        """Read the progress from the run's folder."""
        records = [each for each in RunFolder(self.folder).read_epochs() if "images" in each]
        trained = sum(record["images"] for record in records)
        if trained != self.trained:
            self.trained, self.record, self.seen = trained, records[-1], self.clock()
            self.matrix = [(record["task"], record["accuracy"]) for record in records if "accuracy" in record]
            self.score = score_of(records[-1])
            decisions = [record["decision"] for record in records if "decision" in record]
            self.decision = describe(decisions[-1], self.score) if decisions else ""
            self.begun = self.begun or (self.seen, trained)
            if self.state == "waiting":
                self.state = "running"

    @property
    def pace(self) -> float | None:
        """Seconds per image, from the epochs that ended after the first one; until then, from the first one."""
        if self.record is None or self.begun is None:
            return None
        begun, trained = self.begun
        if self.trained > trained:
            return (self.seen - begun) / (self.trained - trained)
        return float(self.record["seconds"] / self.record["images"])

    def left(self, pace: float | None) -> float | None:
        """Seconds left at this pace."""
        if pace is None:
            return None
        since = self.clock() - self.seen if self.state == "running" else 0.0
        return max(0.0, pace * (self.images - self.trained) - since)


@contextmanager
def live_table(jobs: Sequence[Job], at_once: int, console: Console) -> Iterator[None]:
    """Show all jobs while they run, `at_once` of them at the same time; nothing if there is no terminal."""
    if not console.is_terminal or console.quiet:
        yield
        return

    def shown() -> RenderableType:
        return overview(jobs, at_once, console.width)

    with Live(get_renderable=shown, console=console, refresh_per_second=2, transient=True):
        yield


def overview(jobs: Sequence[Job], at_once: int, width: int = WIDE) -> RenderableType:
    """A table of all jobs, the time left, the latest decisions, and the accuracy matrices of some running jobs.

    width: columns of the terminal.
    """
    for job in jobs:
        if job.state in ("waiting", "running"):
            job.update()
    wide = width >= WIDE
    percent = all(job.score.percent for job in jobs)
    table = Table(header_style="")
    names = ("learner", "seed", "", "task", "epoch", "loss", "val., %" if percent else "val.", "images/s", "left")
    shown = [place for place, name in enumerate(names) if width >= NARROW or name not in ("loss", "images/s")]
    for place in shown:
        justify: Any = "left" if place in (0, 2, 3) else "right"
        table.add_column(names[place], justify=justify, no_wrap=True, max_width=20 if wide else 13)
    order = ("running", "failed", "waiting", "done")  # a terminal may be too short for all
    for job in sorted(jobs, key=lambda job: order.index(job.state)):
        running = job.state == "running"
        bar: Any = ProgressBar(job.images, job.trained, width=16 if wide else 8) if running else job.state
        record = job.record
        cells: list[str | Text] = [""] * 6
        if record is not None:
            cells = [
                Text(record["task"]),
                f"{record['epoch']}/{record['epochs']}",
                "" if record["loss"] is None else f"{record['loss']:.3f}",
                job.score.text(record["validation_accuracy"]).removesuffix(" %"),
                f"{record['images'] / max(record['seconds'], 1e-9):,.0f}",
                duration(job.left(job.pace)) if job.state == "running" else "",
            ]
        row = [Text(job.learner), str(job.seed), bar, *cells]
        table.add_row(*(row[place] for place in shown))
    done = sum(job.state in ("done", "failed") for job in jobs)
    left = time_left(jobs, at_once)
    progress = f"{done} of {len(jobs)} runs done" + ("" if left is None else f", about {duration(left)} left")
    learning = [job for job in jobs if job.state == "running" and job.matrix]
    latest = sorted(learning, key=lambda job: job.begun or (0.0, 0))[-MATRICES:]
    decided = [Text(f"{job.learner}, seed {job.seed}: {job.decision}") for job in latest if job.decision]
    return Group(table, progress, *decided, Columns([matrix_table(job, width) for job in latest], padding=(0, 3)))


def time_left(jobs: Sequence[Job], at_once: int) -> float | None:
    """Seconds until all jobs are done; a job that waits is assumed to have the pace of its learner, or of all."""
    paces: dict[str, list[float]] = {}
    for job in jobs:
        if job.pace is not None:
            paces.setdefault(job.learner, []).append(job.pace)
    if not paces:
        return None
    usual = fmean(pace for known in paces.values() for pace in known)
    seconds = [
        job.left(job.pace or fmean(paces.get(job.learner, [usual]))) or 0.0
        for job in jobs
        if job.state in ("running", "waiting")
    ]
    return max([sum(seconds) / at_once, *seconds])


def matrix_table(job: Job, width: int) -> Table:
    """The accuracy matrix so far, its latest columns; red where a task has lost ten points or more."""
    rows = [values for _, values in job.matrix]
    known = sum(value is not None for value in rows[-1])
    digits = 0 if job.score.percent else 2
    tasks = range(max(0, known - (width - 20) // (4 + 2 * digits)), known)
    title = f" {job.learner}, seed {job.seed}" + (", %" if job.score.percent else "")
    table = Table(title=Text(title), title_justify="left", title_style="", header_style="dim", box=None)
    table.min_width = len(title) + 1
    table.add_column("after", max_width=16, no_wrap=True)
    for task in tasks:
        table.add_column(str(task + 1), justify="right", min_width=3)
    for place in range(max(0, len(rows) - ROWS), len(rows)):
        cells = []
        for task in tasks:
            so_far = [value for row in rows[: place + 1] if (value := row[task]) is not None]
            lost = bool(so_far) and job.score.percent and max(so_far) - so_far[-1] >= 10
            text = f"{so_far[-1]:.{digits}f}" if so_far else ""
            cells.append(Text(text, style="red" if lost else ""))
        table.add_row(Text(job.matrix[place][0]), *cells)
    return table


def duration(seconds: float | None) -> str:
    """Time as minutes and seconds, or as hours and minutes."""
    if seconds is None:
        return ""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02}"
