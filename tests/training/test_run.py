"""`run` takes names, classes and instances; a wrong argument is one clear line."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from hashroute import Learner, RunResult, Scenario, create_learner, load_scenario, run
from hashroute.learners.objectives import Classification
from hashroute.learners.plain import Vanilla
from hashroute.nn.backbones import PlainEncoder
from hashroute.nn.network import Routing
from hashroute.recipe import recipe_for
from hashroute.training.run_folder import RunFolder

RECIPE = replace(recipe_for((1, 8, 8), classes=2), epochs=(1,))


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return replace(load_scenario("digits", 0.3), tasks=load_scenario("digits", 0.3).tasks[:2])


def timeless(result: RunResult) -> dict[str, Any]:
    return {**result.to_dict(), "seconds": 0}


def test_a_scenario_is_enough() -> None:
    result, learner = run("digits", fraction=0.1)
    assert (result.learner, len(result.accuracy), learner.name) == ("hrn", 5, "hrn")
    assert result.complete(5)


def test_another_backbone_or_objective_is_not_resumed(scenario: Scenario, tmp_path: Path) -> None:
    def resume(layer: nn.Module, objective: str | type[Classification] = "classification") -> RunResult:
        levels = nn.Sequential(nn.Sequential(layer, nn.ReLU()))
        learner = create_learner("vc", scenario.image_shape, RECIPE, backbone=levels, objective=objective)
        return run(scenario, learner, folder=tmp_path, resume=True)[0]

    class OtherLoss(Classification):
        """A loss of one's own."""

    result = resume(nn.Conv2d(1, 4, 3))
    assert resume(nn.Conv2d(1, 4, 3)) == result, "weights of the module do not matter: those of the run are read"
    with pytest.raises(ValueError, match=r"a run with other settings \(backbone: \w+ there, \w+ here\)"):
        resume(nn.Conv2d(1, 4, 3, padding=1))
    with pytest.raises(ValueError, match=r"other settings \(objective: classification there, OtherLoss here\)"):
        resume(nn.Conv2d(1, 4, 3), OtherLoss)
    with pytest.raises(ValueError, match=r"other settings \(backbone: \w+ there, None here\)"):
        run(scenario, "vc", RECIPE, folder=tmp_path, resume=True)


class Mine(Vanilla):
    """A learner that is not registered."""


class FromNothing(Learner):
    """A learner that is not registered, and no kind of another one."""

    def new_encoder(self) -> PlainEncoder:
        return PlainEncoder(self.backbone.new_levels(), self.recipe.pool)


def test_a_name_a_class_and_an_instance_give_the_same_numbers(scenario: Scenario) -> None:
    named, _ = run(scenario, "vc", RECIPE, 3)
    by_class, _ = run(scenario, Vanilla, RECIPE, 3)
    instance = create_learner("vc", scenario.image_shape, RECIPE, 3)
    by_instance, trained = run(scenario, instance)
    assert timeless(named) == timeless(by_class) == timeless(by_instance)
    assert trained is instance
    for kind in (Mine, FromNothing):
        own, learner = run(scenario, kind, RECIPE, 3)
        assert (own.learner, type(learner)) == (kind.__name__, kind), "not the name of what it is made from"
        assert own.accuracy == named.accuracy


def test_an_instance_with_a_backbone_of_ones_own_is_resumed(scenario: Scenario, tmp_path: Path) -> None:
    def instance() -> Vanilla:
        levels = nn.Sequential(nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()))
        learner = create_learner("vc", scenario.image_shape, RECIPE, 0, backbone=levels)
        assert isinstance(learner, Vanilla)
        return learner

    def stop(_: dict[str, Any]) -> None:
        raise KeyboardInterrupt

    torch.manual_seed(0)
    first = instance()
    weights = {name: weight.clone() for name, weight in first.encoder.state_dict().items()}
    whole, _ = run(scenario, first)
    second = instance()
    second.encoder.load_state_dict(weights)
    with pytest.raises(KeyboardInterrupt):
        run(scenario, second, folder=tmp_path, on_epoch=stop)
    resumed, _ = run(scenario, instance(), folder=tmp_path, resume=True)
    assert timeless(resumed) == timeless(whole)
    read, learner = run(scenario, instance(), folder=tmp_path, resume=True)
    assert read == resumed
    assert learner.parameter_counts() == resumed.parameters


def test_the_folder_of_a_run_is_read_as_it_was_written(scenario: Scenario, tmp_path: Path) -> None:
    result, _ = run(scenario, "hrn-paper", RECIPE, folder=tmp_path, command="a command", name="a row")
    record = RunFolder(tmp_path).read()
    assert (record.result, record.accuracy, record.notes) == (result, result.accuracy, [])
    assert (record.settings.name, record.command, len(record.epochs)) == ("a row", "a command", 2)
    assert record.settings.new_result() == RunResult("hrn-paper", 0, result.options, "a row", result.version)
    assert {sample["task"] for sample in record.samples} == {task.name for task in scenario.tasks}


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "scenario of another type": ({"scenario": 5}, "scenario is of type int: expected a Scenario, or the name of one"),
    "unknown scenario": ({"scenario": "digit"}, "there is no scenario 'digit': expected one of digits"),
    "unknown learner": ({"learner": "hnr"}, "there is no learner 'hnr': expected one of hrn"),
    "learner of another type": ({"learner": 5}, "learner is of type int: expected a name, a Learner class, or an inst"),
    "another class": ({"learner": dict}, "learner is of type type: expected a name, a Learner class"),
    "unknown recipe": ({"recipe": "fast"}, "recipe is 'fast': expected a Recipe, or one of paper, default"),
    "unknown option": ({"options": {"rang": 4}}, "has no option 'rang'"),
    "fraction": ({"fraction": 2}, "fraction is 2: expected a number above 0, up to 1"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_line(case: str) -> None:
    arguments, message = MISTAKES[case]
    with pytest.raises(ValueError, match=r".") as error:
        run(**{"scenario": "digits", **arguments})
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_an_instance_must_be_new_and_have_its_own_options(scenario: Scenario) -> None:
    learner = create_learner("vc", scenario.image_shape, RECIPE)
    with pytest.raises(ValueError, match="give them when you create the learner"):
        run(scenario, learner, options={})
    learner.learn(scenario.tasks[0], progress=False)
    with pytest.raises(ValueError, match="has learned tasks already"):
        run(scenario, learner)


def test_every_unit_of_the_papers_network_that_convolved_for_a_sample_is_trained() -> None:
    convolved = set()

    def record(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Routing) and module.training:
            convolved.update(unit for path in output.paths.tolist() for unit, after in pairwise(path) if after >= 0)

    hook = nn.modules.module.register_module_forward_hook(record)
    try:
        learner: Any = run("digits", "hrn-paper", replace(RECIPE, epochs=(3,)))[1]
    finally:
        hook.remove()
    assert len(convolved) >= 2
    fresh: Any = create_learner("hrn-paper", learner.image_shape, learner.recipe, 0, **vars(learner.options))
    for unit in convolved:
        for name, weight in learner.encoder.units[unit].named_parameters():
            before = fresh.encoder.units[unit].get_parameter(name)
            assert not torch.equal(weight, before), f"unit {unit}: {name} did not move"
