"""The extractors for stable-baselines3, in real agents. `make test-rl` installs the library."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support import assert_one_clear_line

stable_baselines3 = pytest.importorskip("stable_baselines3", reason="needs the extra sb3: make test-rl")
gymnasium = pytest.importorskip("gymnasium", reason="needs the extra sb3: make test-rl")

from stable_baselines3 import A2C, DQN, PPO, SAC, TD3  # noqa: E402
from stable_baselines3.common.vec_env import DummyVecEnv  # noqa: E402

from hashroute.integrations.sb3 import ForestExtractor, HashRoutedExtractor  # noqa: E402
from hashroute.integrations.sb3_tasks import ForestTasks, look  # noqa: E402

BOTH = pytest.mark.parametrize("extractor", [HashRoutedExtractor, ForestExtractor])


class Dot(gymnasium.Env):
    """A dot on a grid: the action tells in which half it is. Each variant has a channel of its own."""

    def __init__(self, channel: int = 0, dtype: Any = bool, first: bool = False, continuous: bool = False) -> None:
        shape = (3, 10, 10) if first else (10, 10, 3)
        self.high = 255 if dtype == np.uint8 else 1
        self.observation_space = gymnasium.spaces.Box(0, self.high, shape, dtype)
        self.continuous, self.channel, self.first = continuous, channel, first
        self.action_space = gymnasium.spaces.Box(-1, 1, (1,)) if continuous else gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.steps = 0
        return self._image(), {}

    def _image(self) -> NDArray[Any]:
        image = np.zeros((10, 10, 3), self.observation_space.dtype)
        self.place = self.np_random.integers(10, size=2)
        image[(*self.place, self.channel)] = self.high
        return np.moveaxis(image, 2, 0) if self.first else image

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        chosen = float(action[0]) > 0 if self.continuous else bool(action)
        reward = float(chosen == (self.place[1] >= 5))
        self.steps += 1
        return self._image(), reward, self.steps == 20, False, {}


def envs(count: int = 2, **settings: Any) -> Any:
    return DummyVecEnv([lambda: Dot(**settings)] * count)


def agent(kind: Any, extractor: Any, env: Any = None, **settings: Any) -> Any:
    usual: dict[str, Any] = {
        PPO: dict(n_steps=16, batch_size=16, n_epochs=2),
        A2C: dict(n_steps=8),
    }.get(kind, dict(learning_starts=20, batch_size=16, buffer_size=500, train_freq=4))
    policy = dict(features_extractor_class=extractor, net_arch=[], **settings.pop("policy", {}))
    policy["features_extractor_kwargs"] = dict(features=32)
    env = envs() if env is None else env
    return kind("MlpPolicy", env, policy_kwargs=policy, seed=0, device="cpu", **{**usual, **settings})


def routed(policy: Any) -> list[HashRoutedExtractor]:
    return [module for module in policy.modules() if isinstance(module, HashRoutedExtractor)]


def bases(extractor: HashRoutedExtractor) -> dict[str, Any]:
    return {name: buffer.clone() for name, buffer in extractor.network.bases.named_buffers()}


def same(one: Any, other: Any) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def batches(policy: Any) -> list[int]:
    """Counts, in the place of hash functions, how many batches change the bases of each extractor."""
    counts = []
    for extractor in routed(policy):
        counts.append(0)

        def count(module: Any, images: Any, result: Any, number: int = len(counts) - 1) -> None:  # noqa: ARG001
            counts[number] += module.training

        extractor.network.register_forward_hook(count)
    return counts


# ------------------------------------------------------------------------ both


@BOTH
@pytest.mark.parametrize("kind", [A2C, PPO, DQN, SAC, TD3])
def test_agents_learn_save_and_load(kind: Any, extractor: Any, tmp_path: Path) -> None:
    env = envs(continuous=kind in (SAC, TD3))
    one = agent(kind, extractor, env)
    one.learn(64)
    one.save(tmp_path / "agent")
    other = kind.load(tmp_path / "agent", env=env, device="cpu")
    asked = look(env, 80)
    assert np.array_equal(one.predict(asked, deterministic=True)[0], other.predict(asked, deterministic=True)[0])
    assert same(one.policy.state_dict(), other.policy.state_dict())
    other.learn(32)  # and it goes on


@BOTH
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.float32])
def test_observations_may_be_of_any_type_and_have_channels_first_or_last(
    extractor: Any, dtype: Any, first: bool
) -> None:
    env = envs(dtype=dtype, first=first)
    one = agent(PPO, extractor, env)
    one.learn(32)
    (features,) = [module for module in one.policy.modules() if isinstance(module, extractor)]
    assert features.image_shape == (3, 10, 10)
    size = one.policy.extract_features(one.policy.obs_to_tensor(look(env, 80))[0]).square().mean().sqrt()
    assert 0.3 < size < 1.8  # a sum of up to three residues is longer than 1


@BOTH
def test_what_is_no_image_is_refused_in_one_line(extractor: Any) -> None:
    assert_one_clear_line(lambda: extractor(gymnasium.spaces.Box(0, 1, (4,))), "observations are .*: expected images")


@pytest.mark.parametrize(
    ("extractor", "steps"), [(ForestExtractor, 600), pytest.param(HashRoutedExtractor, 1800, marks=pytest.mark.slow)]
)
def test_agents_learn_something(extractor: Any, steps: int) -> None:
    one = agent(PPO, extractor, envs(8), n_steps=32, batch_size=64, n_epochs=4, learning_rate=2e-3, gamma=0.0)
    one.learn(steps)
    env = envs(8)
    observations, rewards = env.reset(), []
    for _ in range(20):
        observations, reward, _, _ = env.step(one.predict(observations, deterministic=True)[0])
        rewards.append(reward.mean())
    assert np.mean(rewards) > 0.8  # at random, a half


# ------------------------------------------------------------------------ the network of the paper


@pytest.mark.parametrize("kind", [A2C, PPO, DQN, SAC, TD3])
def test_bases_do_not_evolve_in_rollouts_or_predictions(kind: Any) -> None:
    env = envs(continuous=kind in (SAC, TD3))
    one = agent(kind, HashRoutedExtractor, env)
    one.learn(64)
    before = [bases(extractor) for extractor in routed(one.policy)]
    assert before[0]["ranks"].any()
    one.policy.set_training_mode(False)  # as a rollout does
    one.predict(look(env, 80))
    assert all(same(old, bases(new)) for old, new in zip(before, routed(one.policy), strict=True))


@pytest.mark.parametrize(("kind", "evolving"), [(A2C, [1]), (PPO, [4]), (DQN, [1, 0])])
def test_bases_evolve_once_in_each_update(kind: Any, evolving: list[int]) -> None:
    """PPO: two epochs of two batches. The second extractor of DQN is that of the target network."""
    settings = {"learning_starts": 0, "train_freq": 1} if kind is DQN else {}
    one = agent(kind, HashRoutedExtractor, envs(), **settings)
    counts = batches(one.policy)
    one.learn({A2C: 16, PPO: 32, DQN: 4}[kind])
    per_update = [count / (1 if kind is not DQN else one._n_updates) for count in counts]
    assert per_update == evolving


def test_a_critic_that_sees_a_batch_twice_evolves_once() -> None:
    """SAC passes each batch through its critic for the critic's loss, and again for the actor's."""
    one = agent(SAC, HashRoutedExtractor, envs(continuous=True), learning_starts=0, train_freq=1)
    extractors = routed(one.policy)
    assert len(extractors) == 3
    counts = batches(one.policy)
    one.learn(8)
    actor, critic, target = (
        counts[extractors.index(module)]
        for module in (
            one.actor.features_extractor,
            one.critic.features_extractor,
            one.critic_target.features_extractor,
        )
    )
    assert (actor, critic, target) == (one._n_updates, one._n_updates, 0)


@pytest.mark.parametrize("tau", [1.0, 0.1])
def test_bases_of_a_target_network_change_by_the_copy_alone(tau: float) -> None:
    """They are those that the network had at the last copy, whole: an average would not be orthonormal."""
    one = agent(DQN, HashRoutedExtractor, envs(1), tau=tau, target_update_interval=10**6, train_freq=1)
    own, target = routed(one.q_net)[0], routed(one.q_net_target)[0]
    one.learn(40)
    asked = torch.from_numpy(look(envs(), 80)).float()
    assert own.network.bases.ranks.any()
    target(asked)
    assert not target.network.bases.ranks.any()
    one.target_update_interval = 1
    one._on_step()
    copied = bases(own)
    assert same({"vectors": copied["vectors"], "ranks": copied["ranks"]}, _as_used(target, asked))
    one.target_update_interval = 10**6
    one.learn(40, reset_num_timesteps=False)
    assert not torch.equal(own.network.bases.usage, copied["usage"])
    assert same({"vectors": copied["vectors"], "ranks": copied["ranks"]}, _as_used(target, asked))
    held = target.network.bases
    for vectors, rank in zip(held.vectors, held.ranks, strict=True):
        assert torch.allclose(vectors[:rank] @ vectors[:rank].T, torch.eye(int(rank)), atol=1e-5)
    weights = [next(extractor.network.units.parameters()) for extractor in (own, target)]
    assert not torch.equal(*weights)  # trained since


def _as_used(target: HashRoutedExtractor, asked: Any) -> dict[str, Any]:
    """The bases with which a target network answers."""
    with torch.no_grad():
        target(asked)
    return {name: bases(target)[name] for name in ("vectors", "ranks")}


# ------------------------------------------------------------------------ paths


def test_other_paths_stay_as_they_were_bit_for_bit() -> None:
    one = agent(DQN, ForestExtractor)
    one.learn(64)
    tasks, asked = ForestTasks(one), look(envs(), 400)
    before = copy.deepcopy(one.policy.state_dict())
    answers = one.policy.q_net(torch.from_numpy(asked))
    assert tasks.start() == 1
    assert torch.equal(
        one.q_net.features_extractor.path[0][0].weight, before["q_net.features_extractor.path.0.0.weight"]
    )
    assert not torch.equal(one.q_net.q_net[0].weight, before["q_net.q_net.0.weight"]), "heads are new"
    one.learn(64)
    assert tasks.start(parent=0) == 2
    one.learn(64)
    assert not torch.equal(one.policy.q_net(torch.from_numpy(asked)), answers)
    tasks.resume(0)
    assert torch.equal(one.policy.q_net(torch.from_numpy(asked)), answers)
    now = one.policy.state_dict()
    assert all(torch.equal(before[name], now[name]) for name in before if ".path." in name or ".q_net.0" in name)
    assert one.q_net.features_extractor.parents.tolist() == [-1, 0, 0]


def test_paths_and_heads_of_all_tasks_are_saved_by_the_agent(tmp_path: Path) -> None:
    one = agent(PPO, ForestExtractor)
    tasks, asked, answers = ForestTasks(one), torch.from_numpy(look(envs(), 80)).float(), []
    for channel in range(3):
        assert tasks.enter(envs(channel=channel), 400).task == channel
        one.learn(32)
        answers.append(one.policy.predict_values(asked))
    one.save(tmp_path / "agent")
    other = PPO.load(tmp_path / "agent", device="cpu")
    again = ForestTasks(other)
    for channel in (2, 0, 1):
        again.resume(channel)
        assert torch.equal(other.policy.predict_values(asked), answers[channel])
        assert again.recognise(look(envs(channel=channel), 400))[0] == channel
    other.set_env(envs(channel=1))
    other.learn(32)


def test_a_task_that_comes_back_is_recognised_whatever_was_learned() -> None:
    one = agent(DQN, ForestExtractor)
    tasks = ForestTasks(one)
    entered = []
    for channel in (0, 1, 0, 2, 1):
        entered.append(tasks.enter(envs(channel=channel)))
        one.learn(40)
    assert [each.task for each in entered] == [0, 1, 0, 2, 1]
    assert [each.known for each in entered] == [False, False, True, False, True]
    assert [each.parent for each in entered] == [None, 0, None, 0, None]
    assert len(tasks) == 3


def test_a_new_task_starts_without_the_training_of_the_last_one() -> None:
    one = agent(SAC, ForestExtractor, envs(continuous=True))
    tasks = ForestTasks(one)
    one.learn(64)
    optimisers = [one.actor.optimizer, one.critic.optimizer]
    assert all(each.state for each in optimisers)
    tasks.start()
    assert not any(each.state for each in optimisers)
    assert one.replay_buffer.size() == 0
    one.learn(64)
    assert all(each.state for each in optimisers)


def test_mistakes_about_tasks_get_one_line() -> None:
    assert_one_clear_line(lambda: ForestTasks(agent(PPO, HashRoutedExtractor)), "has no ForestExtractor: expected")
    tasks = ForestTasks(agent(PPO, ForestExtractor))
    assert_one_clear_line(lambda: tasks.start(3), "there is no path 3: expected 0 to 0")
    assert_one_clear_line(lambda: tasks.resume(1), "there is no path 1: expected 0 to 0")
