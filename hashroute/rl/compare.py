"""Compare learners on a sequence of games: runs in folders of their own, and one result file."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import hashroute
from hashroute.rl.names import AgentName
from hashroute.rl.players import AGENTS, ENVS
from hashroute.rl.result import FORMAT, GameResults
from hashroute.rl.run import run_games
from hashroute.rl.sequences import Games
from hashroute.training.run_folder import RunFolder

Told = Callable[[str, int, int, int, float | None], None]
"""Is told the learner, the seed, the task, its steps that are done, and the mean return of the latest episodes."""


@dataclass(frozen=True)
class GameComparison:
    """What the runs of a comparison have in common."""

    sequence: str
    agent: AgentName
    steps: int
    episodes: int
    command: str
    runs: Path
    results: Path

    @property
    def name(self) -> str:
        """The name of the result file, and of the folder of the runs."""
        return f"rl-{self.sequence.replace('/', '.')}-{self.agent}-{self.steps}"

    def folder(self, learner: str, seed: int) -> Path:
        """The folder of a run."""
        return self.runs / self.name / f"{learner}-seed{seed}"

    def open(self, replace: bool) -> tuple[Path, GameResults]:
        """The result file, and the results in it: none yet, or those of the same settings."""
        games, path = Games(self.sequence), self.results / f"{self.name}.json"
        settings = {**AGENTS[self.agent][1], "envs": ENVS}
        versions = {name: version(name) for name in ("stable-baselines3", "gymnasium", "torch")}
        versions = {"hashroute": hashroute.__version__, **versions}
        new = GameResults(
            FORMAT,
            self.sequence,
            games.tasks,
            games.games,
            self.agent,
            self.steps,
            self.episodes,
            settings,
            versions,
            self.command,
        )
        if replace or not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            return path, new
        found = GameResults.read(path)
        same = ("tasks", "agent", "steps", "episodes", "settings")
        if other := [part for part in same if getattr(found, part) != getattr(new, part)]:
            raise ValueError(
                f"{path} has other settings ({', '.join(other)}): choose another --results, or add --replace"
            )
        found.command = self.command
        return path, found

    def run(self, results: GameResults, learner: str, seed: int, replace: bool, tell: Told) -> None:
        """Do one run, or continue it, and add it to the file."""
        folder = self.folder(learner, seed)
        if replace:
            shutil.rmtree(folder, ignore_errors=True)
        with RunFolder(folder).writing():
            run = run_games(
                Games(self.sequence),
                learner,
                self.agent,
                seed,
                self.steps,
                self.episodes,
                folder,
                lambda *facts: tell(learner, seed, *facts),
            )
        results.add(run)
        results.write(self.results / f"{self.name}.json")
