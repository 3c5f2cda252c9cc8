"""Learn a sequence of games, task after task. A run that was stopped continues after its last finished task."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.utils import set_random_seed
from stable_baselines3.common.vec_env import VecEnv

from hashroute.rl.names import AgentName
from hashroute.rl.players import ENVS, PLAYERS
from hashroute.rl.result import GameRun
from hashroute.rl.sequences import Games
from hashroute.schema import check, read_json
from hashroute.storage import write_json

POINTS = 20
"""Parts of a task, each with a mean return of training."""

LOOK, PLAY = 300, 600
"""What is added to the seed of a task: random numbers of looks and of games that are played are others."""

Tell = Callable[[int, int, float | None], None]
"""Is told the task, the steps of it that are done, and the mean return of the latest episodes."""


class Curve(BaseCallback):  # type: ignore[misc]
    """Notes the returns of all episodes of a task."""

    def __init__(self, steps: int, tell: Callable[[int, float | None], None]) -> None:
        super().__init__()
        self.steps, self.tell = steps, tell
        self.parts: list[list[float]] = [[] for _ in range(POINTS)]

    def _on_step(self) -> bool:
        part = self.parts[min(POINTS - 1, (self.num_timesteps - 1) * POINTS // self.steps)]
        part += [float(info["episode"]["r"]) for info in self.locals["infos"] if "episode" in info]
        if self.n_calls % 100 == 0:
            known = [values for values in self.parts if values]
            self.tell(self.num_timesteps, fmean(known[-1]) if known else None)
        return True

    def means(self) -> list[float | None]:
        """The mean return of each part."""
        return [fmean(part) if part else None for part in self.parts]


def run_games(
    games: Games,
    learner: str,
    agent: AgentName,
    seed: int,
    steps: int,
    episodes: int,
    folder: Path,
    tell: Tell = lambda *_: None,
) -> GameRun:
    """Learn all tasks, `steps` of each. After each one, every game is played for some episodes.

    Every task draws its random numbers from the seed and its own number, so a run that continues from its folder
    reaches the same numbers as one that was not stopped.
    """
    torch.set_num_threads(1)
    run, player = GameRun(learner, seed), PLAYERS[learner](agent, seed)
    deterministic = agent == "dqn"
    state = folder / "run.json"
    if state.exists():
        values = read_json(state, dict)
        run = GameRun(**check(values, GameRun))
        player.load(folder / f"agents-{len(run.returns)}")
    for task in range(len(run.returns), len(games.tasks)):
        name = games.tasks[task]
        env = games.open(name, ENVS)
        start = time.process_time()
        _set_seeds(env, _seed(seed, task) + LOOK)
        made, entered = player.enter(env, games.games.index(name), task)
        made.set_random_seed(_seed(seed, task))
        curve = Curve(steps, lambda done, latest, task=task: tell(task, done, latest))  # type: ignore[misc]
        made.learn(steps, callback=curve)
        run.seconds.append(time.process_time() - start)
        env.close()
        run.entered.append(entered)  # type: ignore[arg-type]
        run.curves.append(curve.means())
        returns, played = [], []
        for number, game in enumerate(games.games):
            other = games.open(game, ENVS)
            _set_seeds(other, _seed(seed, task) + PLAY + number)
            with player.playing(other, number) as (playing, decided):
                mean, _ = evaluate_policy(playing, other, episodes, deterministic=deterministic)
            other.close()
            returns.append(float(mean))
            played.append(decided)
        run.returns.append(returns)
        run.played.append(played)  # type: ignore[arg-type]
        _keep(run, player, folder)
        tell(task, steps, None)
    return run


def _keep(run: GameRun, player: Any, folder: Path) -> None:
    """Write agents and numbers; the last file to be written makes them count."""
    agents = folder / f"agents-{len(run.returns)}"
    shutil.rmtree(agents, ignore_errors=True)
    agents.mkdir(parents=True)
    player.save(agents)
    write_json(folder / "run.json", asdict(run))
    for old in folder.glob("agents-*"):
        if old != agents:
            shutil.rmtree(old)


def _set_seeds(env: VecEnv, seed: int) -> None:
    set_random_seed(seed)
    env.seed(seed)


def _seed(seed: int, task: int) -> int:
    return 100_000 * seed + 1000 * (task + 1)
