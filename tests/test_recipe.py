"""Recipes as plain values."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from hashroute.recipe import Recipe, recipe_for
from hashroute.scenarios import find_scenario


@pytest.mark.parametrize("scenario", ["pairwise-mnist", "fashion-mnist", "svhn-cifar100"])
def test_published_recipes_come_back_from_json(scenario: str) -> None:
    recipe = find_scenario(scenario).published_recipe
    assert recipe is not None
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


def test_a_recipe_with_a_named_backbone_comes_back_from_json() -> None:
    recipe = replace(recipe_for((3, 32, 32), backbone="resnet18x0.25"), epochs=(3, 1))
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
