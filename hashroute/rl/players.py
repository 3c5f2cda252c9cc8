"""How each learner meets a sequence of games: which agent learns a task, and which one plays a game afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from stable_baselines3 import DQN, PPO
from torch import Tensor, nn

from hashroute.integrations.sb3 import ForestExtractor, HashRoutedExtractor, ImageExtractor, path_levels
from hashroute.integrations.sb3_tasks import ForestTasks, look
from hashroute.nn.backbones import PlainEncoder
from hashroute.rl.names import AgentName

ENVS = 8
"""Copies of an environment that an agent acts in at the same time."""

LOOK = 1000
"""Steps at random actions by which a game is recognised."""

AGENTS: dict[AgentName, tuple[Any, dict[str, Any]]] = {
    "ppo": (
        PPO,
        dict(learning_rate=5e-4, n_steps=64, batch_size=128, n_epochs=4, ent_coef=0.01),
    ),
    "dqn": (
        DQN,
        dict(
            learning_rate=2.5e-4,
            buffer_size=100_000,
            learning_starts=1000,
            batch_size=32,
            train_freq=1,
            gradient_steps=2,
            target_update_interval=1000,
            exploration_fraction=0.2,
            exploration_final_eps=0.05,
        ),
    ),
}
"""The algorithm of each agent, and its settings; others are those of stable-baselines3."""


class PlainExtractor(ImageExtractor):
    """A convolutional network of the size of a path: 256 hidden units."""

    def __init__(self, observation_space: Any) -> None:
        super().__init__(observation_space, 256)
        self.encoder = PlainEncoder(nn.ModuleList(path_levels(self.image_shape).children()))

    def forward(self, observations: Tensor) -> Tensor:
        """observations: (n, ...), floating point. Returns (n, 256)."""
        features: Tensor = self.encoder(self.images(observations))
        return features


class Player:
    """One agent that learns all tasks: `vc`, and with other extractors `hrn-paper` and `hrn`.

    Args:
        agent: the algorithm.
        seed: of weights.
    """

    extractor: ClassVar[type[ImageExtractor]] = PlainExtractor

    def __init__(self, agent: AgentName, seed: int) -> None:
        self.kind, self.settings = AGENTS[agent]
        self.seed = seed
        self.agents: dict[int, Any] = {}

    def place(self, game: int, task: int) -> int:  # noqa: ARG002
        """Which agent learns a game in a task."""
        return 0

    def enter(self, env: Any, game: int, task: int) -> tuple[Any, dict[str, Any]]:
        """The agent that learns a task, and what was decided about it."""
        place = self.place(game, task)
        if place in self.agents:
            agent = self.agents[place]
            agent.set_env(env)
            if getattr(agent, "replay_buffer", None) is not None:
                agent.replay_buffer.reset()  # what happened in another game says nothing here
        else:
            agent = self.agents[place] = self.new_agent(env, 1000 * self.seed + place)
        return agent, {}

    def new_agent(self, env: Any, seed: int) -> Any:
        """A fresh agent."""
        policy = dict(features_extractor_class=self.extractor, net_arch=[])
        return self.kind("MlpPolicy", env, policy_kwargs=policy, seed=seed, device="cpu", **self.settings)

    @contextmanager
    def playing(self, env: Any, game: int) -> Iterator[tuple[Any, dict[str, Any]]]:  # noqa: ARG002
        """The agent that plays a game now, without training, and what was decided about it."""
        yield self.agents[max(self.agents)], {}

    def save(self, folder: Path) -> None:
        """Write all agents, by their own `save`."""
        for place, agent in self.agents.items():
            agent.save(folder / f"{place}.zip")

    def load(self, folder: Path) -> None:
        """Read all agents."""
        self.agents = {int(path.stem): self.kind.load(path, device="cpu") for path in sorted(folder.glob("*.zip"))}


class Paper(Player):
    """The network of the paper, trained on."""

    extractor = HashRoutedExtractor


class Separate(Player):
    """An agent for each game, which is told the game, and goes on when it comes back."""

    def place(self, game: int, task: int) -> int:  # noqa: ARG002
        return game

    @contextmanager
    def playing(self, env: Any, game: int) -> Iterator[tuple[Any, dict[str, Any]]]:  # noqa: ARG002
        yield self.agents.get(game) or self.agents[max(self.agents)], {}  # of a game that is still to come, any agent


class Reset(Player):
    """New weights for each task; only the latest agent is there to play."""

    def place(self, game: int, task: int) -> int:  # noqa: ARG002
        return task

    def enter(self, env: Any, game: int, task: int) -> tuple[Any, dict[str, Any]]:
        self.agents.clear()
        return super().enter(env, game, task)


class Forked(Player):
    """A path and heads for each game. Which game this is, it finds out by a look at it."""

    extractor = ForestExtractor

    def enter(self, env: Any, game: int, task: int) -> tuple[Any, dict[str, Any]]:
        agent, _ = super().enter(env, game, task)
        return agent, asdict(ForestTasks(agent).enter(env))

    @contextmanager
    def playing(self, env: Any, game: int) -> Iterator[tuple[Any, dict[str, Any]]]:  # noqa: ARG002
        tasks = ForestTasks(self.agents[0])
        before = tasks.task
        known, distance = tasks.recognise(look(env, LOOK))
        tasks.resume(before if known is None else known)
        yield self.agents[0], {"task": tasks.task, "known": known is not None, "distance": distance}
        tasks.resume(before)


PLAYERS: dict[str, type[Player]] = {
    "hrn": Forked,
    "vc": Player,
    "separate": Separate,
    "reset": Reset,
    "hrn-paper": Paper,
}
"""The learners of `names.LEARNERS`."""
