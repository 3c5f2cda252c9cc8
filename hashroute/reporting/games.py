"""Tables and the page about runs on games."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from hashroute.reporting.figures.games import draw
from hashroute.reporting.figures.picture import Picture
from hashroute.reporting.html import Page, command_box, missing_box, plural
from hashroute.reporting.results import LEARNER, SEEDS
from hashroute.reporting.table import Cell, Column, Number, Row, Table
from hashroute.rl import metrics
from hashroute.rl.names import LEARNERS, SEQUENCES
from hashroute.rl.result import GameResults, GameRun, short_names

SHARES = [
    Column("final, %", "Final mean return as a share of that of separate agents, mean over games.", "highest", 0),
    Column("forgetting, %", "Return after a game's last training less the final one, as a share.", "lowest", 0),
    Column(
        "lost on return, %", "What a game has lost when it comes back, before it is trained again, as a share.", None, 0
    ),
    Column(
        "transfer, %", "Mean return while a game is first trained, less that of separate agents, as a share.", None, 0
    ),
    Column("recognised, %", "Right decisions about which game it is, of all decisions.", digits=0),
]
SPEED = [
    Column("steps/s", "Steps of training for each second of processor time, environments included.", digits=0),
    Column("beside vc", "The same as a share of that of vc, the mean over seeds.", digits=2),
]


def game_table(results: GameResults, source: str = "") -> Table:
    """A row for each learner: shares of the returns of separate agents, and the speed."""
    rows = []
    for name, runs in results.learners.items():
        measures = (
            metrics.normalised,
            metrics.forgetting,
            metrics.lost_on_return,
            metrics.transfer,
            metrics.recognised,
        )
        shares = [_over_seeds(measure, results, runs, source) for measure in measures]
        speeds = [metrics.steps_per_second(results, run) for run in runs]
        beside = [
            metrics.steps_per_second(results, run) / metrics.steps_per_second(results, other)
            for run in runs
            for other in results.learners.get("vc", [])
            if other.seed == run.seed
        ]
        cells: list[Cell] = [name, Number(len(runs)), *shares, Number.over_seeds(speeds, source)]
        cells.append(Number.over_seeds(beside, source) if beside else None)
        rows.append(Row(tuple(cells), name))
    return Table(f"{results.sequence}: {results.agent}", [LEARNER, SEEDS, *SHARES, *SPEED], rows)


def _over_seeds(
    measure: Callable[[GameResults, GameRun], float | None], results: GameResults, runs: Sequence[GameRun], source: str
) -> Number | None:
    values = [measure(results, run) for run in runs]
    known = [100 * value for value in values if value is not None]
    return Number.over_seeds(known, source) if known else None


def return_table(results: GameResults, source: str = "") -> Table:
    """The mean return of every game after the last task, a row for each learner."""
    columns = [LEARNER, *(Column(game, "Mean return after the last task.", "highest") for game in short(results))]
    rows = []
    for name, runs in results.learners.items():
        cells = [
            Number.over_seeds([run.returns[-1][game] for run in runs], source) for game in range(len(results.games))
        ]
        rows.append(Row((name, *cells), name))
    return Table(f"{results.sequence}: final return", columns, rows)


def short(results: GameResults) -> list[str]:
    """The short names of the games."""
    return short_names(results.games)


def decision_table(results: GameResults, run: GameRun) -> Table:
    """What a learner decided about each task."""
    columns = [
        Column("task", "The game that began.", words=True),
        Column("decision", "known: it goes on where it was. new: it gets a path of its own.", words=True),
        Column("path", "The path that learns it.", digits=0),
        Column("forked from", "The path that a new one was forked from.", digits=0),
        Column("distance", "Divergence from the most similar memory, in nats per dimension.", digits=3),
    ]
    rows = []
    for name, made in zip(short_names(results.tasks), run.entered, strict=True):
        if made:
            numbers = [made.get("task"), made.get("parent"), made.get("distance")]
            cells = [None if value is None else Number(float(value)) for value in numbers]
            rows.append(Row((name, "known" if made.get("known") else "new", *cells), run.learner))
    return Table(f"{results.sequence}: decisions of {run.learner}, seed {run.seed}", columns, rows)


def game_section(results: GameResults, source: str, page: Page) -> tuple[str, list[Picture]]:
    """The part of a page about one result file, and its figures."""
    name = page.unique(results.sequence)
    drawn = draw(results)
    for picture in drawn:
        picture.name = page.unique(f"{name}-{picture.name}")
    known = SEQUENCES.get(results.sequence)
    words = f'<p class="lead">{escape(known.summary[:1].upper() + known.summary[1:])}.</p>' if known else ""
    seeds = max((len(runs) for runs in results.learners.values()), default=0)
    facts = (
        f"{plural(len(results.tasks), 'task')} of {results.steps:,} steps, {plural(seeds, 'seed')}, {results.agent}. "
        f"Tasks in order: {', '.join(short_names(results.tasks))}. "
        f"After each task, every game is played for {plural(results.episodes, 'episode')}."
    )
    missing = [] if "separate" in results.learners else ["The learner separate was not run, so there are no shares."]
    spread = ", ± standard deviation over seeds" if seeds > 1 else ""
    parts = [
        f'<section id="{name}">{words}<p>{escape(facts)}</p>{command_box(results.command)}',
        missing_box(missing),
        _legend(results),
        page.table(game_table(results, source), f"Summary{spread}", f"{name}-summary"),
        page.table(return_table(results, source), f"Return of every game after the last task{spread}", f"{name}-games"),
        f"<h3>Return over steps</h3>{page.figures(drawn)}",
    ]
    decided = [runs[0] for runs in results.learners.values() if any(runs[0].entered)]
    for run in decided:
        parts.append(page.table(decision_table(results, run), f"Decisions of {run.learner}, seed {run.seed}"))
    return "\n".join([*parts, "</section>"]), drawn


def _legend(results: GameResults) -> str:
    entries = (f"<dt>{escape(name)}</dt><dd>{escape(LEARNERS[name])}</dd>" for name in results.learners)
    return f'<dl class="legend">{"".join(f"<div>{entry}</div>" for entry in entries)}</dl>'
