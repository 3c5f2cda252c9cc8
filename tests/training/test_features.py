"""Features that were learned without labels: how they are judged, and that no label was read before."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from hashroute import Scenario, Task, create_learner, load_scenario, run
from hashroute.reporting.results import features as features_table
from hashroute.tasks import Split
from hashroute.training import metrics
from hashroute.training.features import FeatureProbe, agreement, draw, find_clusters, joined, name_classes
from hashroute.training.result import Comparison, RunResult
from support import digits, short_recipe


def poisoned(task: Task) -> Task:
    """The same images, with labels that are wrong in another way in each split."""

    def wrong(split: Split, seed: int) -> Split:
        generator = torch.Generator().manual_seed(seed)
        return Split(split.images, torch.randint(task.classes, (len(split),), generator=generator))

    return replace(task, train=wrong(task.train, 1), validation=wrong(task.validation, 2), test=wrong(task.test, 3))


@pytest.mark.parametrize("name", ["hrn", "vc", "separate", "hrn-paper"])
def test_labels_are_not_read_before_the_probe(name: str) -> None:
    scenario, recipe = digits(2, 0.2), short_recipe(1)
    options: dict[str, Any] = {"fixed_features": 0} if name == "hrn" else {}
    false = Scenario("digits", tuple(map(poisoned, scenario.tasks)))
    found = []
    for stream in (scenario, false):
        learner = create_learner(name, (1, 8, 8), recipe, objective="rotation", **options)
        result, _ = run(stream, learner)
        found.append((result, learner.state_dict(), learner.encode(scenario.tasks[0].test.images)))
    (right, state, features), (wrong, other, same) = found
    assert torch.equal(features, same)
    assert state.keys() == other.keys()
    for key, value in state.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, other[key]), key
    assert right.accuracy == wrong.accuracy, "how well rotations are told"
    assert right.features != wrong.features, "the probe reads labels"


def test_every_phase_is_judged_and_frozen_features_forget_nothing() -> None:
    result, learner = run(digits(3, 0.3), "hrn", short_recipe(1), objective="rotation")
    assert learner.objective.name == "rotation"
    assert [len(after["own"]) for after in result.features] == [1, 2, 3]
    assert metrics.forgetting(metrics.padded([after["own"] for after in result.features])) == 0
    assert RunResult.from_dict(result.to_dict()) == result
    comparison = Comparison("digits", ["a", "b", "c"], [], {}, runs=[result])
    table = features_table(comparison)
    assert table is not None
    assert table.rows[0].cells[0] == "hrn"
    assert result.complete(3)
    assert not replace(result, features=result.features[:2]).complete(3)
    learned, _ = run(digits(2, 0.3), "hash-only", short_recipe(1))
    assert learned.features == []
    assert features_table(Comparison("digits", ["a", "b"], [], {}, runs=[learned])) is None


def test_the_probe_finds_classes_that_are_apart_and_none_in_noise() -> None:
    labels = torch.arange(4).repeat_interleave(50)
    generator = torch.Generator().manual_seed(0)
    apart = 9.0 * torch.nn.functional.one_hot(labels).double()
    noise = torch.randn(200, 4, generator=generator, dtype=torch.float64)
    for features, low, high in ((apart + noise, 99, 100), (noise, 10, 45)):
        named = name_classes(features[::2], features[1::2], labels[::2])
        measures = [100 * (each == labels[1::2]).double().mean().item() for each in named.values()]
        measures.append(agreement(find_clusters(features, 8), labels)["purity"])
        assert all(low <= value <= high for value in measures), measures


def test_purity_and_information() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    assert agreement(torch.tensor([5, 5, 2, 7]), labels)["purity"] == 100
    assert agreement(torch.tensor([1, 0, 1, 0]), labels) == {"purity": 50, "information": pytest.approx(0, abs=1e-6)}


def test_few_labelled_images_of_each_class_are_drawn() -> None:
    tasks = digits(3).tasks
    whole = joined(tasks, [task.train for task in tasks])
    assert whole.labels.unique().tolist() == [0, 1, 2, 3, 4, 5]
    some = draw(whole, 7, torch.Generator().manual_seed(0))
    assert some.labels.bincount().tolist() == [7] * 6
    again = replace(tasks[0], name="again")
    assert joined([tasks[0], again], [tasks[0].test, again.test]).labels.unique().tolist() == [0, 1]


def test_the_same_seed_draws_the_same_images() -> None:
    task, probe = load_scenario("digits").tasks[0], FeatureProbe(5, 20, 2)
    found = [probe.measure(lambda images: images.flatten(1), task.train, task.test, seed) for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
    assert all(0 <= value <= 100 for value in found[0].values())
