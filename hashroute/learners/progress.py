"""A progress bar for `learn`, on a terminal and in a notebook."""

from __future__ import annotations

import html
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Task as Row
from rich.text import Text

from hashroute import distributed
from hashroute.learners.trainer import Trainer

SECONDS_BETWEEN = 0.2
"""A bar in a notebook is drawn again at most this often: it arrives by network."""


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
    title = f"{trainer.learner.name} learns {', '.join(entry.name for entry in trainer.state.tasks)}"
    done = trainer.images * trainer.state.epoch // max(1, trainer.epochs)
    if console.is_jupyter:
        bar = _NotebookBar(title, trainer.images, done)
        yield bar.advance
        bar.draw()
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), _Speed(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=console.is_terminal) as progress:  # elsewhere, the end is shown
        row = progress.add_task(title, total=trainer.images, completed=done)
        yield lambda images: progress.update(row, advance=images)


class _NotebookBar:
    """A bar below a cell. That of Rich needs ipywidgets; this one needs IPython alone, which every notebook has."""

    def __init__(self, title: str, total: int, done: int) -> None:
        from IPython.display import display

        self.title, self.total, self.done, self.first = title, total, done, done
        self.start = self.drawn = time.monotonic()
        self.place = display(self._shown(), raw=True, display_id=True)

    def advance(self, images: int) -> None:
        """Count images that were trained on."""
        self.done += images
        if time.monotonic() - self.drawn >= SECONDS_BETWEEN:
            self.draw()

    def draw(self) -> None:
        """Show the present state in the place of the one before."""
        self.drawn = time.monotonic()
        self.place.update(self._shown(), raw=True)

    def _shown(self) -> dict[str, str]:
        """The bar as HTML, and as text."""
        pace = "preparing"
        if self.done > self.first:
            speed = (self.done - self.first) / max(1e-9, time.monotonic() - self.start)
            left = f", {(self.total - self.done) / speed:.0f} s left" if self.done < self.total else ""
            pace = f"{speed:,.0f} images/s{left}"
        bar = f'<progress value="{self.done}" max="{self.total}" style="vertical-align: middle"></progress>'
        return {
            "text/html": f"<div>{html.escape(self.title)} {bar} {pace}</div>",
            "text/plain": f"{self.title}: {100 * self.done / max(1, self.total):.0f} %, {pace}",
        }
