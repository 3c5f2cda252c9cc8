"""The same seed gives the same learner, whatever else draws random numbers; another seed gives another one."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from hashroute import run
from hashroute.learners import files, learner_names
from support import assert_same, digits, fresh, short_recipe

NAMES = learner_names()


@pytest.mark.parametrize("name", NAMES)
def test_the_global_random_state_neither_matters_nor_changes(name: str) -> None:
    learners = []
    for disturbance in (0, 1):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)
        random.seed(disturbance)
        before = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
        learner = fresh(name, 1, seed=3)
        learners.append(learner)
        for task in digits().tasks:
            learner.learn(task)
            assert torch.equal(torch.get_rng_state(), before[0])
        assert np.random.get_state()[1].tolist() == before[1]
        assert random.getstate() == before[2]
    assert_same(*learners)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_drawn_when_a_learner_is_made(name: str) -> None:
    torch.manual_seed(0)
    one = fresh(name, 1, seed=3)
    torch.rand(7)
    assert_same(one, fresh(name, 1, seed=3))


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_another_learner(name: str) -> None:
    task = digits().tasks[0]
    one, other = (fresh(name, 1, seed=seed).learn(task) for seed in (3, 4))
    assert not torch.equal(one.encode(task.test.images, 0), other.encode(task.test.images, 0))
    ours, theirs = (list(each.heads.parameters()) for each in (one, other))
    assert not any(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("name", ["vc", "hrn"])
def test_learners_that_take_turns_do_not_disturb_each_other(name: str) -> None:
    alone, one, other = fresh(name, 1, seed=3), fresh(name, 1, seed=3), fresh(name, 1, seed=4)
    for task in digits().tasks:
        alone.learn(task)
    for task in digits().tasks:
        other.learn(task)
        one.learn(task)
    assert_same(one, alone)


@pytest.mark.parametrize("name", ["vc", "hrn"])
def test_a_run_learns_what_learn_does(name: str) -> None:
    learner = fresh(name, 1, seed=5).learn(digits())
    _, ran = run(digits(), name, short_recipe(1), 5, options={})
    assert_same(learner, ran)


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**62])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    one, other = (fresh("hrn", 1, seed=seed) for _ in range(2))
    assert_same(one, other)
    assert files.describe(one)["seed"] == seed
