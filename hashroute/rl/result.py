"""The result of learning a sequence of games, and its file: the only code that knows its JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict

from hashroute.rl.names import LEARNERS
from hashroute.schema import check, one_line, read_json
from hashroute.storage import write_json

FORMAT = "hashroute games 1"
MOST_BYTES = 2**26


class EnteredValues(TypedDict, total=False):
    """What a learner decided about a game."""

    task: int
    known: bool
    distance: float | None
    parent: int | None


@dataclass
class GameRun:
    """What one learner reaches with one seed."""

    learner: str
    seed: int
    returns: list[list[float]] = field(default_factory=list)
    """After each task, the mean return of every game."""
    curves: list[list[float | None]] = field(default_factory=list)
    """Of each task, the mean return of the episodes that ended in each of `POINTS` equal parts of it; None if none
    did."""
    entered: list[EnteredValues] = field(default_factory=list)
    """What was decided about each task when it began."""
    played: list[list[EnteredValues]] = field(default_factory=list)
    """After each task, what was decided about each game when it was played."""
    seconds: list[float] = field(default_factory=list)
    """Processor time of the training of each task, with its environments."""


@dataclass
class GameResults:
    """Runs on the same sequence with the same settings."""

    format: str
    sequence: str
    tasks: list[str]
    games: list[str]
    agent: str
    steps: int
    """Of each task."""
    episodes: int
    """That a return is the mean of."""
    settings: dict[str, Any]
    versions: dict[str, str]
    command: str = ""
    runs: list[GameRun] = field(default_factory=list)

    @property
    def learners(self) -> dict[str, list[GameRun]]:
        """The finished runs of each learner."""
        found: dict[str, list[GameRun]] = {}
        for run in self.runs:
            found.setdefault(run.learner, []).append(run)
        return found

    @property
    def order(self) -> list[int]:
        """The game of each task."""
        return [self.games.index(name) for name in self.tasks]

    def find(self, learner: str, seed: int) -> GameRun | None:
        """The run of a learner and a seed, None if there is none yet."""
        return next((run for run in self.runs if (run.learner, run.seed) == (learner, seed)), None)

    def add(self, run: GameRun) -> None:
        """Add a run, or replace the one of its learner and seed. Learners stay together, in the order of `LEARNERS`."""
        self.runs = [each for each in self.runs if (each.learner, each.seed) != (run.learner, run.seed)] + [run]
        places = {name: place for place, name in enumerate(LEARNERS)}
        self.runs.sort(key=lambda each: (places[each.learner], each.seed))

    def write(self, path: Path) -> None:
        """Write the file; an existing one is replaced as a whole."""
        write_json(path, asdict(self))

    @classmethod
    def read(cls, path: Path) -> GameResults:
        """Read a file that `hashroute rl` wrote."""
        values = read_json(path, dict, MOST_BYTES)
        try:
            check(values, cls)
            if values["format"] != FORMAT:
                raise ValueError(f"format is {one_line(values['format'], 40)!r}, expected {FORMAT!r}")
            found = cls(**{**values, "runs": [GameRun(**run) for run in values["runs"]]})
            for run in found.runs:
                found._check_complete(run)
        except ValueError as error:
            raise ValueError(
                f"{one_line(path, 100)} is not a result of games ({error}): expected a file that hashroute rl writes"
            ) from None
        return found

    def _check_complete(self, run: GameRun) -> None:
        if run.learner not in LEARNERS:
            raise ValueError(f"there is no learner {one_line(run.learner, 40)!r} of games")
        tasks, games = len(self.tasks), len(self.games)
        parts: list[list[Any]] = [run.returns, run.curves, run.entered, run.played, run.seconds]
        rows: list[list[Any]] = [*run.returns, *run.played]
        if any(len(part) != tasks for part in parts) or any(len(row) != games for row in rows):
            raise ValueError(f"the run of {one_line(run.learner, 40)}, seed {run.seed}, has gaps")


def is_game_results(path: Path) -> bool:
    """Whether a file says that it is a result of games."""
    try:
        with open(path, "rb") as file:
            return FORMAT.encode() in file.read(200)
    except OSError:
        return False


def short_names(tasks: Sequence[str]) -> list[str]:
    """Short names of environments, for tables: MinAtar/Breakout-v1 is Breakout."""
    return [name.rpartition("/")[2].partition("-v")[0] for name in tasks]
