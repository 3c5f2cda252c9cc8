"""Tasks of an agent of stable-baselines3 whose policy has a `ForestExtractor`: start, recognise, go on."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.preprocessing import preprocess_obs
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.optim import Optimizer

from hashroute.integrations.sb3 import ForestExtractor

RECOGNISED = 0.1
"""A task is recognised if what it looks like diverges from a memory by at most this, in nats per dimension."""

EVERY = 4
"""Steps between two observations of a look: neighbours hardly differ."""


@dataclass(frozen=True)
class Entered:
    """What was decided about an environment."""

    task: int
    """The number of its task."""
    known: bool
    """Whether it was recognised."""
    distance: float | None
    """Its divergence from the most similar memory, in nats per dimension."""
    parent: int | None
    """The task whose path was forked, if it was not recognised."""


class ForestTasks:
    """The tasks of an agent: each has a path in every `ForestExtractor` of the policy, and heads of its own.

    The first task is what the agent has learned so far. All state is in the policy, so the agent's own `save` and
    `load` keep it. Paths and heads of other tasks do not change, bit for bit.

    Args:
        agent: of any algorithm of stable-baselines3, whose policy has `features_extractor_class=ForestExtractor`.
        recognised: the most that observations may diverge from a memory to be recognised, in nats per dimension.
    """

    def __init__(self, agent: Any, recognised: float = RECOGNISED) -> None:
        self.agent = agent
        self.recognised = recognised
        if not self.extractors:
            raise ValueError(
                "the policy of this agent has no ForestExtractor: expected "
                "policy_kwargs=dict(features_extractor_class=ForestExtractor)"
            )

    @property
    def extractors(self) -> list[ForestExtractor]:
        """All of the policy, such as those of the network and its target. The first has heads and memories."""
        return [module for module in self.agent.policy.modules() if isinstance(module, ForestExtractor)]

    @property
    def task(self) -> int:
        """The task in training."""
        return int(self.extractors[0].in_training)

    def __len__(self) -> int:
        return len(self.extractors[0])

    def enter(self, env: Any, steps: int = 1000) -> Entered:
        """Look at an environment, and learn or act in it from now on.

        A task that is recognised goes on where it was. Otherwise a new one starts, with a fork of the path in training.

        env: a vectorised environment. steps: of the look, with random actions: at these, an environment always looks
        the same, whatever was learned in it.
        """
        observations = look(env, steps)
        task, distance = self.recognise(observations)
        parent = None
        if task is not None:
            self.resume(task)
        else:
            if self.agent.num_timesteps or len(self) > 1:
                parent = self.task
                self.start()
            self.extractors[0].remember(self._tensor(observations))
        self.agent.set_env(env)
        return Entered(self.task, task is not None, distance, parent)

    def recognise(self, observations: NDArray[Any]) -> tuple[int | None, float | None]:
        """The task that observations, (n, ...), are from, None if no task is known; and the distance of the nearest."""
        distances = self.extractors[0].distances(self._tensor(observations))
        nearest = int(distances.argmin())
        distance = float(distances[nearest])
        if distance == float("inf"):
            return None, None
        return (nearest if distance <= self.recognised else None), max(0.0, distance)

    def start(self, parent: int | None = None) -> int:
        """Start a task with a fork of a path, by default of the one in training, and with new heads; its number."""
        first, *others = self.extractors
        self._leave()
        for extractor in (first, *others):
            task = extractor.start_task(parent)
        fresh = type(self.agent.policy)(**self.agent.policy._get_constructor_parameters())
        vector = parameters_to_vector(_heads(fresh)).detach().to(first.paths.device)
        vector_to_parameters(vector, _heads(self.agent.policy))
        self._forget_training()
        return task

    def resume(self, task: int) -> None:
        """Go on with a task where it was left."""
        if task == self.task:
            return
        self._leave()
        for extractor in self.extractors:
            extractor.resume_task(task)
        vector_to_parameters(self.extractors[0].heads[task].clone(), _heads(self.agent.policy))
        self._forget_training()

    def _leave(self) -> None:
        """Keep the heads of the task in training."""
        first = self.extractors[0]
        heads = parameters_to_vector(_heads(self.agent.policy)).detach()
        if first.heads.shape[1] != len(heads):
            first.heads = heads.new_zeros(len(first), len(heads))
        first.heads[first.in_training] = heads

    def _forget_training(self) -> None:
        """Drop what belongs to the training of another task: the state of optimisers, and the replay buffer."""
        for module in self.agent.policy.modules():
            if isinstance(getattr(module, "optimizer", None), Optimizer):
                module.optimizer.state.clear()
        buffer = getattr(self.agent, "replay_buffer", None)
        if buffer is not None:
            buffer.reset()

    def _tensor(self, observations: NDArray[Any]) -> Tensor:
        """Observations as a policy passes them to its extractors."""
        policy = self.agent.policy
        tensor, _ = policy.obs_to_tensor(observations)
        found: Tensor = preprocess_obs(tensor, policy.observation_space, normalize_images=policy.normalize_images)
        return found


def look(env: Any, steps: int) -> NDArray[Any]:
    """Observations of a vectorised environment at random actions, of every fourth step: (steps / 4, ...).

    steps: of all environments together. Actions follow the seed of NumPy, which agents of stable-baselines3 set.
    """
    actions = copy.deepcopy(env.action_space)
    actions.seed(int(np.random.randint(2**31 - 1)))
    env.reset()
    found = []
    for step in range(max(1, steps // env.num_envs)):
        observations, _, _, _ = env.step(np.array([actions.sample() for _ in range(env.num_envs)]))
        if step % EVERY == 0:
            found.append(observations)
    return np.concatenate(found)


def _heads(policy: nn.Module) -> Iterator[nn.Parameter]:
    """The weights of a policy that belong to no extractor."""
    own = {
        id(weight)
        for module in policy.modules()
        if isinstance(module, ForestExtractor)
        for weight in module.parameters()
    }
    return (weight for weight in policy.parameters() if id(weight) not in own)
