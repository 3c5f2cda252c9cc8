"""Sequences of environments by name, all with the same shapes, so that one agent can learn them one after another."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv

from hashroute.integrations.installed import check_installed
from hashroute.integrations.sb3 import channel_axis
from hashroute.rl.names import SEQUENCES

SIDE, BALLS = 10, 5


class Catch(gymnasium.Env):  # type: ignore[misc]
    """A ball falls, and a paddle one pixel wide moves below it: one point for each of five balls that it catches.

    rising: everything is upside down, and the ball is in a channel of its own.
    """

    def __init__(self, rising: bool = False) -> None:
        self.rising = rising
        self.observation_space = spaces.Box(0, 1, (SIDE, SIDE, 3), bool)
        self.action_space = spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[Any], dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed, options=options)
        self.paddle, self.balls = SIDE // 2, 0
        self._throw()
        return self._image(), {}

    def _throw(self) -> None:
        self.row, self.column = 0, int(self.np_random.integers(SIDE))

    def _image(self) -> NDArray[Any]:
        image = np.zeros((SIDE, SIDE, 3), bool)
        image[-1, self.paddle, 0] = True
        image[self.row, self.column, 2 if self.rising else 1] = True
        return image[::-1].copy() if self.rising else image

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        """0 stays, 1 goes left, 2 goes right."""
        self.paddle = min(SIDE - 1, max(0, self.paddle + (0, -1, 1)[int(action)]))
        self.row += 1
        reward = 0.0
        if self.row == SIDE - 1:
            reward = float(self.column == self.paddle)
            self.balls += 1
        image = self._image()
        if self.row == SIDE - 1:
            self._throw()
        return image, reward, self.balls == BALLS, False, {}


OWN: dict[str, Callable[[], Any]] = {"catch": Catch, "rise": lambda: Catch(rising=True)}


def make(name: str) -> Any:
    """An environment by name: one of ours, or one of Gymnasium."""
    if name in OWN:
        return OWN[name]()
    if name.startswith("MinAtar/"):  # its licence is the GPL: it is imported only where somebody asks for it
        check_installed(name, "minatar", "minatar")
        if name not in gymnasium.registry:
            _register_minatar()
    try:
        return gymnasium.make(name, disable_env_checker=True)
    except gymnasium.error.Error as error:
        raise ValueError(
            f"there is no environment {name!r} ({error}): expected {', '.join(OWN)}, or one that Gymnasium knows"
        ) from None


def _register_minatar() -> None:
    import logging

    logging.disable(logging.WARNING)  # it warns that it cannot draw
    try:
        from minatar.gym import register_envs
    finally:
        logging.disable(logging.NOTSET)
    register_envs()


class Padded(gymnasium.Wrapper):  # type: ignore[misc]
    """An environment with more channels, which are empty, and more actions, which do what the first one does."""

    def __init__(self, env: Any, channels: int, actions: int) -> None:
        super().__init__(env)
        space = env.observation_space
        axis, self.known = channel_axis(space.shape), int(env.action_space.n)
        self.before = [(0, channels - size if place == axis else 0) for place, size in enumerate(space.shape)]
        low, high = (np.pad(np.broadcast_to(each, space.shape), self.before) for each in (space.low, space.high))
        high = np.maximum(high, space.high.max())
        self.observation_space = spaces.Box(low, high, dtype=space.dtype)
        self.action_space = spaces.Discrete(actions)

    def reset(self, **named: Any) -> Any:
        """Start an episode."""
        image, facts = self.env.reset(**named)
        return self._image(image), facts

    def step(self, action: Any) -> Any:
        """Take an action."""
        image, *rest = self.env.step(action if action < self.known else 0)
        return self._image(image), *rest

    def _image(self, image: NDArray[Any]) -> NDArray[Any]:
        return np.pad(image, self.before)


class Games:
    """The environments of a sequence.

    Args:
        sequence: the name of a sequence, or names of environments with commas between them.
    """

    def __init__(self, sequence: str) -> None:
        self.tasks = list(SEQUENCES[sequence].tasks) if sequence in SEQUENCES else sequence.split(",")
        self.games = list(dict.fromkeys(self.tasks))
        found = []
        for name in self.games:
            env = make(name)
            space, actions = env.observation_space, env.action_space
            env.close()
            if not isinstance(space, spaces.Box) or len(space.shape) != 3:
                raise ValueError(f"observations of {name} are {space}: expected images")
            if not isinstance(actions, spaces.Discrete):
                raise ValueError(f"actions of {name} are {actions}: expected a Discrete space")
            axis = channel_axis(space.shape)
            sides = tuple(size for place, size in enumerate(space.shape) if place != axis)
            found.append((name, (sides, axis, space.dtype), space.shape[axis], int(actions.n)))
        for name, kind, _, _ in found:
            if kind != found[0][1]:
                raise ValueError(
                    f"images of {name} differ from those of {found[0][0]} in more than their channels: expected "
                    "environments with images of one size and type"
                )
        self.channels, self.actions = max(each[2] for each in found), max(each[3] for each in found)

    def open(self, name: str, count: int) -> DummyVecEnv:
        """Several copies of an environment that are stepped together."""
        return DummyVecEnv([lambda: Monitor(Padded(make(name), self.channels, self.actions))] * count)
