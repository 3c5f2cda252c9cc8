"""Learners by name: those that come with hashroute, those of one's own, and how they are made."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest

from hashroute import Learner, create_learner, register_learner, run
from hashroute.learners import find_learner, learner_names, learner_summaries
from hashroute.learners.options import options_from_dict, options_to_dict
from hashroute.learners.plain import Vanilla
from hashroute.learners.registry import LEARNERS
from hashroute.recipe import Recipe
from hashroute.scenarios import scenario_recipe
from support import assert_same, digits, short_recipe


class Frozen(Vanilla):
    """After the first task, only heads are learned."""

    def before_step(self) -> None:
        if len(self.tasks) > 1:
            for weight in self.encoder.parameters():
                weight.grad = None


@pytest.fixture
def registered() -> Iterator[str]:
    register_learner("frozen after first")(Frozen)
    yield "frozen after first"
    del LEARNERS["frozen after first"]
    Frozen.name = "Frozen"


@pytest.mark.parametrize("name", learner_names())
def test_every_learner_says_what_it_is(name: str) -> None:
    kind = find_learner(name)
    assert issubclass(kind, Learner)
    assert kind.name == name
    assert kind.style is not None
    assert (kind.__doc__ or "").split("\n")[0].endswith(".")
    assert learner_summaries()[name]
    assert set(kind.grid) <= {field.name for field in fields(kind.Options)}
    default = kind.Options()
    assert options_from_dict(kind, options_to_dict(default)) == default
    assert find_learner(kind) is kind


def test_learners_look_different_in_figures() -> None:
    styles = [find_learner(name).style for name in learner_names()]
    assert len({style.colour for style in styles if style}) == len(styles)
    assert len({style.marker for style in styles if style}) == len(styles)


def test_names_and_summaries_need_no_torch() -> None:
    script = (
        "import sys; from hashroute.learners.registry import learner_names, learner_summaries; "
        "assert set(learner_names()) == set(learner_summaries()); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_learner_of_ones_own_is_found_by_name(registered: str) -> None:
    assert learner_names()[-1] == registered
    assert learner_summaries()[registered] == "After the first task, only heads are learned."
    result, learner = run(digits(3), registered, short_recipe())
    assert (learner.name, result.learner) == (registered, registered)
    assert len({row[0] for row in result.accuracy}) == 1, "nothing of the encoder changes"
    with pytest.raises(ValueError, match=f"there is a learner '{registered}' already: choose another name"):
        register_learner(registered)(Frozen)


def test_the_name_of_a_built_in_learner_is_taken() -> None:
    with pytest.raises(ValueError, match="there is a learner 'gpm' already: choose another name"):
        register_learner("gpm")(type("Other", (Vanilla,), {}))


def test_options_and_fields_of_the_recipe_are_given_by_name() -> None:
    learner = create_learner("ewc", (1, 8, 8), weight=5.0, epochs=5, batch_size=7)
    assert learner.options.weight == 5.0
    assert (learner.recipe.epochs, learner.recipe.batch_size) == ((5,), 7)
    several = create_learner("vc", (1, 8, 8), short_recipe(9), epochs=(4, 2))
    assert several.recipe == replace(short_recipe(9), epochs=(4, 2))
    paper = create_learner("hrn-paper", (1, 8, 8), features=50)
    assert (paper.options.features, paper.recipe.features != 50) == (50, True), "an option of its own comes first"


COMMON = "a field of the recipe: augment, autocast, batch_size, channels_last, epochs, feature_scale, features, head"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: create_learner("nobody", (1, 8, 8)), "there is no learner 'nobody': expected one of hrn, hrn-paper"),
        (lambda: create_learner(7, (1, 8, 8)), "the learner is a int: expected a name, or a subclass of Learner"),
        (
            lambda: create_learner("ewc", (1, 8, 8), wait=1.0),
            f"ewc has no option 'wait': expected decay, empirical, online, samples, weight, or {COMMON}",
        ),
        (lambda: create_learner("vc", (1, 8, 8), wait=1.0), f"vc has no option 'wait': expected {COMMON}"),
        (lambda: create_learner("vc", (1, 8, 8), backbone="vgg"), "there is no backbone 'vgg': expected one of small"),
        (lambda: create_learner("vc", (1, 8, 8), objective="poetry"), "there is no objective 'poetry': expected"),
    ],
)  # fmt: skip
def test_what_cannot_be_made_gets_one_line(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        make()
    assert "\n" not in str(error.value)


def test_an_instance_is_no_name() -> None:
    with pytest.raises(ValueError, match="the learner is a Vanilla: expected a name, or a subclass of Learner"):
        create_learner(create_learner("vc", (1, 8, 8)), (1, 8, 8))  # type: ignore[arg-type]


def test_every_field_of_the_recipe_can_be_given() -> None:
    for field in fields(Recipe):
        if field.name != "backbone":
            value = getattr(short_recipe(), field.name)
            assert getattr(create_learner("vc", (1, 8, 8), **{field.name: value}).recipe, field.name) == value


def test_a_class_makes_a_learner() -> None:
    learner = create_learner(Frozen, (1, 8, 8), short_recipe(1))
    assert isinstance(learner, Frozen)
    assert [entry.name for entry in learner.learn(digits()).tasks] == ["0 or 1", "2 or 3"]


@pytest.mark.parametrize("name", learner_names())
def test_every_learner_can_be_made_for_colour_images(name: str) -> None:
    assert create_learner(name, (3, 32, 32)).image_shape == (3, 32, 32)


@pytest.mark.parametrize("name", ["hrn", "hrn-paper", "gpm"])
def test_a_learner_made_for_a_scenario_is_that_of_a_run(name: str) -> None:
    scenario = digits(2, 0.3)
    learner = create_learner(name, scenario, seed=3)
    _, other = run(scenario, name, scenario_recipe(scenario), 3)
    assert learner.recipe == other.recipe
    assert learner.options == other.options
    assert_same(learner.learn(scenario), other)
    assert create_learner(name, scenario, epochs=3).recipe.epochs == (3,)
