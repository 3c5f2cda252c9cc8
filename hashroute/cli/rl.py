"""hashroute rl: compare learners on a sequence of games, learned one after another by an agent of stable-baselines3."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import check_counts, listed, say
from hashroute.rl.names import LEARNERS, SEQUENCES, AgentName

SEQUENCE_HELP = "Sequence to learn, or names of Gymnasium's environments with commas between them:\n" + listed(
    {name: info.summary for name, info in SEQUENCES.items()}
)
LEARNER_HELP = "Learners to compare:\n" + listed(LEARNERS)


@dataclass(frozen=True)
class RLSettings:
    """Settings of a comparison on games."""

    sequence: Annotated[tyro.conf.Positional[str], tyro.conf.arg(help=SEQUENCE_HELP)] = "catch"
    agent: AgentName = "ppo"
    """Algorithm of stable-baselines3."""
    learners: Annotated[tuple[str, ...], tyro.conf.arg(help_behavior_hint="(default: all)", help=LEARNER_HELP)] = ()
    seeds: int = 1
    """Number of runs of each learner, with seeds 0, 1, ..."""
    steps: int = 20_000
    """Steps of each task, of all copies of its environment together."""
    episodes: int = 8
    """Episodes of each game that are played after each task."""
    resume: bool = False
    """Continue unfinished runs after their last finished task, with the same numbers."""
    replace: bool = False
    """Do all runs again, and replace earlier ones."""
    runs: Path = Path("runs")
    """Folder that gets a folder for each run: its agents and what it has reached."""
    results: Path = Path("results")
    """Folder for the result file."""

    @property
    def command(self) -> str:
        """The command that repeats this comparison."""
        parts = ["hashroute", "rl", self.sequence, "--agent", self.agent]
        parts += ["--learners", *self.learners] if self.learners else []
        parts += ["--seeds", str(self.seeds)] if self.seeds > 1 else []
        return shlex.join([*parts, "--steps", str(self.steps), "--episodes", str(self.episodes)])


def run_rl(settings: RLSettings, console: Console) -> None:
    """Do every run that the result file does not hold yet."""
    from hashroute.integrations.installed import check_installed

    check_counts(seeds=settings.seeds, steps=settings.steps, episodes=settings.episodes)
    for name in settings.learners:
        if name not in LEARNERS:
            raise ValueError(f"there is no learner {name!r} of games: expected one of {', '.join(LEARNERS)}")
    check_installed("hashroute rl", "stable_baselines3", "sb3")
    from hashroute.reporting.games import game_table
    from hashroute.reporting.games_live import live_runs
    from hashroute.reporting.table import to_terminal
    from hashroute.rl.compare import GameComparison

    comparison = GameComparison(
        settings.sequence,
        settings.agent,
        settings.steps,
        settings.episodes,
        settings.command,
        settings.runs,
        settings.results,
    )
    path, results = comparison.open(settings.replace)
    seeds = range(settings.seeds)
    wanted = [(name, seed) for seed in seeds for name in settings.learners or LEARNERS]
    left = [each for each in wanted if results.find(*each) is None]
    if len(left) < len(wanted):
        say(console, f"{len(wanted) - len(left)} of {len(wanted)} runs are already there")
    for learner, seed in left:
        folder = comparison.folder(learner, seed)
        if folder.exists() and not settings.resume and not settings.replace:
            raise ValueError(f"{folder} holds an unfinished run: add --resume to continue it, or --replace")
    with live_runs(left, results, console) as tell:
        for learner, seed in left:
            comparison.run(results, learner, seed, settings.replace, tell)
    console.print(to_terminal(game_table(results)))
    say(console, f"results in {path}")
    say(console, f"for a page: hashroute report {shlex.quote(str(path))}")
