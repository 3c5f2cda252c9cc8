"""Every registered scenario keeps the promises of a scenario, and a user's own is found like the others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from hashroute.data import DATASETS
from hashroute.recipe import recipe_for
from hashroute.scenarios import (
    find_scenario,
    load_scenario,
    probe_labels,
    published_results,
    register_scenario,
    registry,
    scenario_names,
    scenario_recipe,
    scenario_summaries,
)
from hashroute.tasks import Scenario, Split
from support import NEEDS, assert_one_clear_line, is_here

TASKS = {
    "digits": ["0 or 1", "2 or 3", "4 or 5", "6 or 7", "8 or 9"],
    "pairwise-mnist": ["0 or 1", "2 or 3", "4 or 5", "6 or 7", "8 or 9"],
    "fashion-mnist": ["Fashion", "MNIST"],
    "svhn-cifar100": ["SVHN", *(f"CIFAR {first}-{first + 9}" for first in range(0, 100, 10))],
    "split-cifar100": [f"CIFAR {first}-{first + 9}" for first in range(0, 100, 10)],
    "upl-mnist": ["0 or 1", "2 or 3", "4 or 5", "6 or 7", "8 or 9"],
    "upl-svhn": ["0 or 1", "2 or 3", "4 or 5", "6 or 7", "8 or 9"],
    "upl-cifar100": [f"CIFAR {first}-{first + 9}" for first in range(0, 100, 10)],
    "mixed": [
        *("SVHN", "CIFAR 0-9", "MNIST", "CIFAR 10-19", "Fashion"),
        *("CIFAR 20-29", "SVHN, part 2", "CIFAR 30-39", "MNIST, part 2", "CIFAR 40-49"),
    ],
}


def load_or_skip(name: str) -> Scenario:
    for dataset in NEEDS[name]:
        if not is_here(dataset):
            pytest.skip(f"{dataset} is not in the data folder")
    return load_scenario(name)


@pytest.fixture(scope="module", params=NEEDS)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """Each registered scenario, loaded once for all tests of it."""
    return load_or_skip(request.param)


def rows(split: Split) -> set[bytes]:
    return {image.numpy().tobytes() for image in split.images}


def test_all_are_known() -> None:
    assert set(scenario_names()) - set(NEEDS) == {"folders"}
    assert {dataset for needed in NEEDS.values() for dataset in needed} == set(DATASETS)


def test_what_a_scenario_promises(scenario: Scenario) -> None:
    assert [task.name for task in scenario.tasks] == TASKS[scenario.name]
    for task in scenario.tasks:
        for split in (task.train, task.validation, task.test):
            assert split.images.dtype == torch.uint8
            assert split.labels.unique().tolist() == list(range(task.classes))
        assert len(task.train) / len(task.validation) == pytest.approx(9, rel=0.05)
        assert len(set(task.class_names)) == task.classes


def test_nothing_is_in_two_splits_and_every_time_the_same(scenario: Scenario) -> None:
    again = load_scenario(scenario.name)
    for task, other in zip(scenario.tasks, again.tasks, strict=True):
        assert torch.equal(task.train.images, other.train.images)
        assert torch.equal(task.validation.labels, other.validation.labels)
    task = scenario.tasks[-1]
    if scenario.name == "digits":  # the large data sets hold a few images twice
        assert not rows(task.train) & rows(task.validation)
        assert not (rows(task.train) | rows(task.validation)) & rows(task.test)
    total = sum(len(part) for part in (task.train, task.validation, task.test))
    known = {"digits": 354, "pairwise-mnist": 13783, "fashion-mnist": 70000, "upl-mnist": 2 * 5556 + 1983}
    if scenario.name != "upl-svhn":  # the copy at hand may be a part
        assert total == known.get(scenario.name, 6000)  # of a CIFAR task


@pytest.mark.parametrize("scenario", ["upl-mnist", "upl-svhn"], indirect=True)
def test_a_phase_without_labels_has_at_most_10000_images(scenario: Scenario) -> None:
    for task in scenario.tasks:
        assert task.train.labels.bincount().max() <= 5000
        assert task.train.images.shape[1] == 1
    assert scenario_recipe(scenario).epochs == (1,)
    assert probe_labels(scenario.name) == {"upl-mnist": 10, "upl-svhn": 100}[scenario.name]
    assert probe_labels("mine") == 100


@pytest.mark.parametrize("scenario", ["split-cifar100"], indirect=True)
def test_cifar_tasks_have_their_classes(scenario: Scenario) -> None:
    assert scenario.tasks[0].class_names[0] == "apple"
    assert scenario.tasks[9].class_names[9] == "worm"
    assert scenario.tasks[3].augmentations == {"flip", "shift"}


@pytest.mark.parametrize("scenario", ["mixed"], indirect=True)
def test_the_mixed_stream_is_made_of_disjoint_parts_that_look_alike(scenario: Scenario) -> None:
    assert scenario.image_shape == (3, 32, 32)
    by_name = {task.name: task for task in scenario.tasks}
    for task in scenario.tasks:
        assert len(task.train) + len(task.validation) == 5000
    for dataset in ("SVHN", "MNIST"):
        first, second = by_name[dataset], by_name[f"{dataset}, part 2"]
        assert first.class_names == second.class_names
        assert torch.equal(first.test.images, second.test.images)
        shares = [part.train.labels.bincount() / len(part.train) for part in (first, second)]
        assert (shares[0] - shares[1]).abs().max() < 0.002
        both = (rows(first.train) | rows(first.validation)) & (rows(second.train) | rows(second.validation))
        assert len(both) <= 2  # SVHN itself holds an image twice
    digit = by_name["MNIST"].train.images
    assert torch.equal(digit[:, 0], digit[:, 2])
    assert not digit[:, :, :2].any()
    assert digit[:, :, 2:30, 2:30].any()


def test_the_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    read = load_scenario("digits")
    monkeypatch.setattr(sys.modules["hashroute.scenarios.digits"], "FILE", "elsewhere")
    for task, other in zip(read.tasks, load_scenario("digits").tasks, strict=True):
        for part in ("train", "validation", "test"):
            ours, theirs = getattr(task, part), getattr(other, part)
            assert torch.equal(ours.images, theirs.images)
            assert torch.equal(ours.labels, theirs.labels)


def test_a_fraction_keeps_every_class_in_proportion() -> None:
    whole, part = load_scenario("digits"), load_scenario("digits", fraction=0.1)
    for task, small in zip(whole.tasks, part.tasks, strict=True):
        expected = [max(1, round(0.1 * int(count))) for count in task.train.labels.bincount()]
        assert small.train.labels.bincount().tolist() == expected
        assert rows(small.train) <= rows(task.train)


@pytest.fixture
def registered() -> Iterator[None]:
    """Scenarios that a test registers are gone after it."""
    before = dict(registry.SCENARIOS)
    yield
    registry.SCENARIOS.clear()
    registry.SCENARIOS.update(before)


@pytest.mark.usefixtures("registered")
def test_ones_own_scenario_is_found_by_name() -> None:
    @register_scenario("mine", epochs=(3, 2))
    def mine(pairs: int = 1) -> Scenario:
        """Some digits.

        And more about them.
        """
        return Scenario("mine", load_scenario("digits").tasks[:pairs])

    assert scenario_names()[-1] == "mine"
    assert scenario_summaries()["mine"] == "Some digits."
    assert len(load_scenario("mine", pairs=2).tasks) == 2
    assert scenario_recipe(load_scenario("mine")) == replace(recipe_for((1, 8, 8), classes=2), epochs=(3, 2))
    with pytest.raises(ValueError, match="there is a scenario 'mine' already: choose another name"):
        register_scenario("mine")(mine)
    with pytest.raises(ValueError, match="there is a scenario 'mixed' already: choose another name"):
        register_scenario("mixed")(mine)


def test_recipes_of_scenarios() -> None:
    digits = load_scenario("digits")
    assert scenario_recipe(digits).epochs == (10,)
    assert scenario_recipe(Scenario("unknown", digits.tasks)) == recipe_for((1, 8, 8), classes=2)
    with pytest.raises(
        ValueError, match=r"scenario 'digits' has no published recipe: expected one of pairwise-mnist, f"
    ):
        scenario_recipe(digits, "paper")
    published = [name for name in scenario_names() if find_scenario(name).published_recipe is not None]
    assert published == ["pairwise-mnist", "fashion-mnist", "svhn-cifar100"]
    for name in published:
        assert find_scenario(name).recipe((1, 28, 28), 10, "paper").scaling == "data set"
        for accuracies in published_results(name).values():
            assert len(accuracies) == len(TASKS[name])
    assert published_results("split-cifar100") == published_results("unknown") == {}


def test_names_and_summaries_need_no_torch() -> None:
    path = Path(registry.__file__)
    check = (
        f"import runpy, sys; found = runpy.run_path({str(path)!r});"
        "assert 'torch' not in sys.modules; print(*found['scenario_summaries']())"
    )
    shown = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True)
    assert shown.stdout.split() == list(registry.SUMMARIES), shown.stderr


MISTAKES = {
    "unknown": (lambda: load_scenario("imagenet"), "there is no scenario 'imagenet': expected one of digits, "),
    "type": (lambda: load_scenario(("a", "b")), "the scenario is a tuple: expected a name, one of digits, "),
    "fraction": (lambda: load_scenario("digits", fraction=0), "fraction is 0: expected a number above 0, up to 1"),
    "no folder": (lambda: load_scenario("folders"), "scenario 'folders' cannot be made with no options: missing"),
    "option": (lambda: load_scenario("digits", size=3), "cannot be made with {'size': 3}: got an unexpected"),
    "shape": (lambda: recipe_for(32), "the image shape is 32: expected channels, height and width"),
    "small": (lambda: recipe_for((1, 3, 9)), "images are of 3 x 9 pixels: expected at least 4 x 4"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_a_mistake_is_one_clear_line(case: str) -> None:
    assert_one_clear_line(*MISTAKES[case])
