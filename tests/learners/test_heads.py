"""Heads: the features that they see, and how large they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from hashroute import create_learner
from hashroute.learners import find_learner, learner_names
from hashroute.learners.entries import Batch, TaskEntry
from hashroute.recipe import recipe_for
from hashroute.scenarios import find_scenario
from support import digits, short_recipe


@pytest.mark.parametrize("name", [name for name in learner_names() if find_learner(name).trained])
def test_heads_of_all_learners_see_features_of_one_scale_and_learn_smoothed_labels(name: str) -> None:
    task = digits().tasks[0]
    recipe = short_recipe(1, head=replace(short_recipe().head, dropout=(0.0,)), augment=False)
    assert (recipe.feature_scale, recipe.label_smoothing) == (0.25, 0.1)
    learner: Any = create_learner(name, (1, 8, 8), recipe).learn(task)
    entry = learner.tasks[0]
    batch = Batch(learner.normalise(task.train.images[:20], entry), task.train.labels[:20], entry)
    features = learner.features(batch.images, entry).detach()
    seen = learner.heads[0][0](features)
    torch.testing.assert_close(seen.square().mean(1).sqrt(), torch.full((20,), 0.25), rtol=1e-2, atol=0.0)
    torch.testing.assert_close(seen.mean(1), torch.zeros(20), rtol=0.0, atol=1e-5)
    centred = features - features.mean(1, keepdim=True)
    assert F.cosine_similarity(seen, centred).min() > 0.999
    loss, outputs = learner.loss(batch)
    smooth = 0.9 * F.one_hot(batch.targets, 2) + 0.1 / 2
    expected = -(smooth * outputs.log_softmax(1)).sum(1).mean()
    if name == "hrn-paper":
        expected = expected + learner.encoder(batch.images).residue_penalty()
    torch.testing.assert_close(loss, expected)


def test_published_heads_see_features_as_they_are_and_those_of_hashes_scaled_to_one() -> None:
    recipe = find_scenario("pairwise-mnist").published_recipe
    assert recipe is not None
    scales = {}
    for name in ("vc", "separate", "hash-only", "hrn"):
        learner: Any = create_learner(name, (1, 28, 28), recipe)
        learner.add_task(learner.Entry(0, "a task", ("a", "b")))
        scales[name] = getattr(learner.heads[0][0], "scale", None)
    assert scales == {"vc": None, "separate": None, "hash-only": 1.0, "hrn": 1.0}
    assert recipe.label_smoothing == 0.0


def test_a_head_has_an_output_for_each_class() -> None:
    learner: Any = create_learner("vc", (1, 8, 8))
    learner.add_task(TaskEntry(0, "a task", tuple("abcdefg")))
    assert learner.heads[0](torch.zeros(3, learner.recipe.features)).shape == (3, 7)


@pytest.mark.parametrize(
    "shape", [(1, 4, 4), (1, 8, 8), (1, 20, 31), (1, 28, 28), (3, 32, 32), (3, 32, 48), (3, 64, 64)]
)
def test_heads_are_as_large_for_every_learner(shape: tuple[int, ...]) -> None:
    recipe = recipe_for(shape)
    assert create_learner("vc", shape, recipe).encoder(torch.zeros(1, *shape)).shape[1] == recipe.features


@pytest.mark.parametrize(
    ("scenario", "features"), [("pairwise-mnist", 288), ("fashion-mnist", 288), ("svhn-cifar100", 1584)]
)
def test_how_many_features_published_plain_encoders_give(scenario: str, features: int) -> None:
    shape = (3, 32, 32) if scenario == "svhn-cifar100" else (1, 28, 28)
    learner = create_learner("vc", shape, find_scenario(scenario).published_recipe)
    assert learner.encoder(torch.zeros(2, *shape)).shape == (2, features)
