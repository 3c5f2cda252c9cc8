"""hrn-paper: units, routing and published options of the hash-routed network."""

from __future__ import annotations

import json
from typing import Any

import torch

from hashroute import create_learner, load_learner
from hashroute.learners.trainer import Trainer
from hashroute.scenarios import find_scenario
from hashroute.training.run import learner_options
from support import assert_same, digits, fresh, learned


def test_units_are_added_before_the_tasks_that_ask_for_them(tmp_path: Any) -> None:
    learner: Any = fresh("hrn-paper", 1, units_added=(0, 2, 1))
    specs = [unit.spec for unit in learner.encoder.units]
    counts = []
    for task in digits(4).tasks:
        learner.learn(task)
        counts.append(len(learner.encoder.units))
    assert counts == [4, 6, 7, 7]
    assert all(unit.spec in specs for unit in learner.encoder.units)
    learner.save(tmp_path)
    assert_same(load_learner(tmp_path), learner)


def test_units_are_added_once_though_a_task_is_given_up() -> None:
    first, second, third = digits(3).tasks
    learner: Any = fresh("hrn-paper", 1, units_added=(0, 2)).learn(first)
    Trainer(learner).begin(second)
    learner.abort()
    learner.learn(third)
    assert len(learner.encoder.units) == 6


def test_a_network_that_grows_by_itself_trains_its_new_units(tmp_path: Any) -> None:
    first, second = digits(2).tasks
    learner: Any = fresh("hrn-paper", 2, grow=7, tau_empty=0.9).learn(first)
    assert len(learner.encoder.units) == 5
    weights = [weight.clone() for weight in learner.encoder.units[4].parameters()]
    learner.learn(second)
    assert any(not torch.equal(*pair) for pair in zip(weights, learner.encoder.units[4].parameters(), strict=True))
    learner.save(tmp_path)
    assert_same(load_learner(tmp_path), learner)


def test_models_that_were_saved_before_networks_could_grow_are_read(tmp_path: Any) -> None:
    learner = learned("hrn-paper", 3)
    learner.save(tmp_path)
    described = json.loads((tmp_path / "learner.json").read_text())
    del described["options"]["grow"]
    (tmp_path / "learner.json").write_text(json.dumps(described))
    assert_same(load_learner(tmp_path), learner)


def test_images_take_their_own_paths() -> None:
    learner, task = learned("hrn-paper", 3), digits(3).tasks[1]
    entry = learner.find_task(task.name)
    paths = learner.paths(task.test.images, entry)
    assert paths.shape == (len(task.test), 2)
    assert len(paths.unique(dim=0)) > 1
    assert torch.equal(learner.paths(task.test.images[7:9], entry), paths[7:9])
    known = learner.known_by(task.test.images, entry)
    assert known.parts == "units"
    assert torch.equal(known.values.argmax(1), paths[:, 0]), "the best one takes the image"
    assert known.values.max() <= 1 + 1e-5


def test_facts_about_units_and_routing() -> None:
    learner, task = learned("hrn-paper", 3), digits(3).tasks[1]
    facts = learner.analyse(task.test.images, learner.tasks[1])
    assert abs(sum(facts["usage"]) - 1) < 1e-9
    assert all(0 <= fill <= 1 for fill in facts["basis_fill"])
    assert facts["ages"] == learner.encoder.bases.ages.tolist()
    assert 1 <= facts["paths"] <= len(task.test)
    rows = learner.unit_facts()
    assert [row["unit"] for row in rows] == list(range(len(learner.encoder.units)))
    assert abs(sum(row["usage"] for row in rows) - 1) < 1e-6
    assert sum(row["parameters"] for row in rows) == learner.parameter_counts()["encoder"]


def test_published_options_are_those_of_the_paper() -> None:
    options = learner_options("hrn-paper", "svhn-cifar100", "paper", (3, 32, 32))
    learner: Any = create_learner("hrn-paper", (3, 32, 32), find_scenario("svhn-cifar100").published_recipe, **options)
    network = learner.encoder.config
    assert (network["features"], network["aging_rate"], network["channels"]) == (2800, 10.0, "chunk-sum")
    assert (network["last_residue"], learner.options.residue_weight, len(network["units"])) == (False, 0.5, 6)
    assert all(spec["in_channels"] == 3 for spec in network["units"])
