"""A progress bar for `learn`, on a terminal and in a notebook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as Row
from rich.text import Text

from hashroute import distributed
from hashroute.learners.trainer import Trainer


class _Speed(ProgressColumn):
    """Images per second."""

    def render(self, task: Row) -> Text:
        return Text("" if task.speed is None else f"{task.speed:,.0f} images/s")


@contextmanager
def progress_bar(trainer: Trainer, show: bool | None) -> Iterator[Callable[[int], None] | None]:
    """A function that takes the number of images of each batch; None where no bar is shown.

    show: None shows a bar on a terminal and in a notebook, and nowhere else.
    """
    console = Console(stderr=True)
    shown = console.is_terminal or console.is_jupyter if show is None else show
    if not shown or not distributed.is_first():
        yield None
        return
    names = ", ".join(entry.name for entry in trainer.state.tasks)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Speed(), TimeRemainingColumn())
    shown_live = console.is_terminal or console.is_jupyter  # elsewhere, the end of the bar is shown
    with Progress(*columns, console=console, transient=shown_live) as progress:
        done = trainer.images * trainer.state.epoch // max(1, trainer.epochs)
        bar = progress.add_task(f"{trainer.learner.name} learns {names}", total=trainer.images, completed=done)
        yield lambda images: progress.update(bar, advance=images)
