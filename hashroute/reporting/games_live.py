"""Progress of runs on games: a live table on a terminal, otherwise a line after each task."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table

from hashroute.reporting.live import duration
from hashroute.rl.result import GameResults, short_names


@contextmanager
def live_runs(
    runs: Sequence[tuple[str, int]], results: GameResults, console: Console
) -> Iterator[Callable[[str, int, int, int, float | None], None]]:
    """A function that takes the learner, seed, task, steps and return of the run that is under way."""
    names, total = short_names(results.tasks), len(results.tasks) * results.steps
    state: dict[tuple[str, int], tuple[int, int, float | None]] = {}
    begun: tuple[float, int] | None = None

    def done(run: tuple[str, int]) -> int:
        task, steps, _ = state.get(run, (0, 0, None))
        return min(total, task * results.steps + steps)

    def shown() -> Table:
        table = Table(header_style="")
        for name in ("learner", "seed", "task", "game", "steps", "return"):
            table.add_column(name, justify="left" if name in ("learner", "game") else "right")
        for run in runs:
            task, steps, latest = state.get(run, (0, 0, None))
            waits = run not in state
            cells = ["", "waiting", "", ""] if waits else [f"{task + 1}/{len(names)}", names[task], f"{steps:,}", ""]
            cells[-1] = "" if latest is None else f"{latest:.1f}"
            table.add_row(run[0], str(run[1]), *cells)
        if begun is not None and (new := sum(map(done, runs)) - begun[1]) > 0:
            pace = (time.monotonic() - begun[0]) / new
            table.caption = f"about {duration(pace * (total * len(runs) - new - begun[1]))} left"
        return table

    def tell(learner: str, seed: int, task: int, steps: int, latest: float | None) -> None:
        nonlocal begun
        state[learner, seed] = (task, steps, latest)
        begun = begun or (time.monotonic(), sum(map(done, runs)))
        if not console.is_terminal and steps == results.steps and latest is None:
            console.print(f"{learner}, seed {seed}: task {task + 1} of {len(names)}, {names[task]}, is done")

    if console.is_terminal:
        with Live(get_renderable=shown, console=console, refresh_per_second=2, transient=True):
            yield tell
    else:
        yield tell
