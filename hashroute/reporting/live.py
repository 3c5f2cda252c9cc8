"""How far runs are: a live table on a terminal, with the time left and what is known so far."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
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

MATRICES, ROWS, COLUMNS = 2, 10, 18
"""What is shown of accuracy matrices: of how many runs, and how many of the latest rows and columns of each."""


@dataclass
class Job:
    """A run that is to be done, and how far it is."""

    learner: str
    seed: int
    folder: Path
    images: int
    """To be trained on altogether."""
    state: str = "waiting"
    trained: int = 0
    record: dict[str, Any] | None = None
    """Of the last epoch."""
    matrix: list[tuple[str, list[float | None]]] = field(default_factory=list)
    """After each task its name, and the accuracy of every task."""
    decision: str = ""
    """What it decided last, and why."""
    begun: tuple[float, int] | None = None
    """When an epoch was first seen to end, and the images trained on by then."""
    seen: float = 0.0
    """When the last epoch was seen."""

    def __post_init__(self) -> None:
        self.look()
        self.state, self.begun = "waiting", None  # whatever a run that was stopped has left

    def look(self) -> None:
        """Read from the run's folder how far it is."""
        try:
            lines = (self.folder / "epochs.jsonl").read_bytes().split(b"\n")[:-1]
        except OSError:
            return
        records = [json.loads(line) for line in lines]
        trained = sum(record["images"] for record in records)
        if trained != self.trained:
            self.trained, self.record, self.seen = trained, records[-1], time.monotonic()
            self.matrix = [(record["task"], record["accuracy"]) for record in records if "accuracy" in record]
            decisions = [record["decision"].get("said", "") for record in records if "decision" in record]
            self.decision = decisions[-1] if decisions else ""
            self.begun = self.begun or (self.seen, trained)
            if self.state == "waiting":
                self.state = "running"

    @property
    def pace(self) -> float | None:
        """Seconds for an image: passed ones, or at first those that the only epoch took."""
        if self.record is None or self.begun is None:
            return None
        begun, trained = self.begun
        if self.trained > trained:
            return (self.seen - begun) / (self.trained - trained)
        return float(self.record["seconds"] / self.record["images"])

    def left(self, pace: float | None) -> float | None:
        """Seconds until it is done, at this pace."""
        if pace is None:
            return None
        since = time.monotonic() - self.seen if self.state == "running" else 0.0
        return max(0.0, pace * (self.images - self.trained) - since)


@contextmanager
def live_table(jobs: Sequence[Job], at_once: int, console: Console) -> Iterator[None]:
    """All jobs, so many of which run at the same time, while they are done; on a terminal."""
    if not console.is_terminal or console.quiet:
        yield
        return
    with Live(get_renderable=lambda: overview(jobs, at_once), console=console, refresh_per_second=2, transient=True):
        yield


def overview(jobs: Sequence[Job], at_once: int) -> RenderableType:
    """The table of all jobs, the time left for all, and the accuracy matrices of some that are running."""
    for job in jobs:
        if job.state in ("waiting", "running"):
            job.look()
    table = Table(header_style="")
    for name in ("learner", "seed", "", "task", "epoch", "loss", "val., %", "images/s", "left"):
        justify: Any = "left" if name in ("learner", "", "task") else "right"
        table.add_column(name, justify=justify, no_wrap=True, max_width=20)
    order = ("running", "failed", "waiting", "done")  # a terminal may be too short for all
    for job in sorted(jobs, key=lambda job: order.index(job.state)):
        bar: Any = ProgressBar(job.images, job.trained, width=16) if job.state == "running" else job.state
        record = job.record
        cells: list[str | Text] = [""] * 6
        if record is not None:
            cells = [
                Text(record["task"]),
                f"{record['epoch']}/{record['epochs']}",
                f"{record['loss']:.3f}",
                f"{record['validation_accuracy']:.1f}",
                f"{record['images'] / max(record['seconds'], 1e-9):,.0f}",
                duration(job.left(job.pace)) if job.state == "running" else "",
            ]
        table.add_row(Text(job.learner), str(job.seed), bar, *cells)
    done = sum(job.state in ("done", "failed") for job in jobs)
    left = time_left(jobs, at_once)
    said = f"{done} of {len(jobs)} runs done" + ("" if left is None else f", about {duration(left)} left")
    running = [job for job in jobs if job.state == "running" and job.matrix]
    latest = sorted(running, key=lambda job: job.begun or (0.0, 0))[-MATRICES:]
    decided = [Text(f"{job.learner}, seed {job.seed}, {job.decision}") for job in latest if job.decision]
    return Group(table, said, *decided, Columns(map(matrix_table, latest), padding=(0, 3)))


def time_left(jobs: Sequence[Job], at_once: int) -> float | None:
    """Seconds until all jobs are done: those not yet begun at the pace of their learner, or of all others."""
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


def matrix_table(job: Job) -> Table:
    """The accuracy of every task so far after every task so far; red for what has lost ten points and more."""
    rows = [values for _, values in job.matrix]
    known = sum(value is not None for value in rows[-1])
    tasks = range(max(0, known - COLUMNS), known)
    title = f" {job.learner}, seed {job.seed}, %"
    table = Table(title=Text(title), title_justify="left", title_style="", header_style="dim", box=None)
    table.min_width = len(title) + 1
    table.add_column("after", max_width=16, no_wrap=True)
    for task in tasks:
        table.add_column(str(task + 1), justify="right", min_width=3)
    for number in range(max(0, len(rows) - ROWS), len(rows)):
        cells = []
        for task in tasks:
            so_far = [value for row in rows[: number + 1] if (value := row[task]) is not None]
            lost = bool(so_far) and max(so_far) - so_far[-1] >= 10
            cells.append(Text(f"{so_far[-1]:.0f}" if so_far else "", style="red" if lost else ""))
        table.add_row(Text(job.matrix[number][0]), *cells)
    return table


def duration(seconds: float | None) -> str:
    """Minutes and seconds, or hours and minutes."""
    if seconds is None:
        return ""
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60:02}"
