"""What hrn makes of real data sets, and what a whole scenario takes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hashroute import Task, create_learner, load_learner, load_scenario, run
from hashroute.data import DATASETS
from hashroute.learners import learner_names
from hashroute.learners.growth import HRNEntry
from hashroute.recipe import recipe_for
from hashroute.scenarios import find_scenario, scenario_names, scenario_recipe
from support import NEEDS, assert_same, is_here

pytestmark = pytest.mark.slow
SCENARIOS = [name for name in scenario_names() if name not in ("digits", "folders")]


def need(datasets: Any) -> None:
    missing = [dataset for dataset in datasets if not is_here(dataset)]
    if missing:
        pytest.skip(f"not here: {', '.join(missing)}")


def mixed() -> dict[str, Task]:
    need(DATASETS)
    return {task.name: task for task in load_scenario("mixed").tasks}


def test_real_data_sets_are_told_apart_by_their_memories() -> None:
    tasks = list(mixed().values())
    learner: Any = create_learner("hrn", (3, 32, 32), replace(recipe_for((3, 32, 32)), epochs=(8,)))
    limit = learner.options.recognised * learner.memory_hash.features
    found: dict[str, set[str]] = {}
    for index, task in enumerate(tasks):
        far = learner.distances(task.train.images[:500]).tolist() if found else []
        found[task.name] = {other.name.split()[0] for other, away in zip(tasks, far, strict=False) if away <= limit}
        if task.name == "Fashion":
            assert learner.unfamiliar(task.validation.images).double().mean() > 0.7, "single images are unlike all, too"
        entry = HRNEntry.of(task, index)
        learner.write_memory(entry)
        entry.memory = index
        learner.tasks.append(entry)
        assert learner.unfamiliar(task.test.images[:1000]).double().mean() < 0.03
    assert found["SVHN"] == found["CIFAR 0-9"] == found["MNIST"] == found["Fashion"] == set()
    assert found["SVHN, part 2"] == {"SVHN"}
    assert found["MNIST, part 2"] == {"MNIST"}
    for name in ("CIFAR 10-19", "CIFAR 20-29", "CIFAR 30-39", "CIFAR 40-49"):
        assert found[name] == {"CIFAR"}, name


def test_real_data_sets_are_told_apart() -> None:
    tasks = mixed()
    recipe = replace(recipe_for((3, 32, 32)), epochs=(1, 5, 1, 5, 1))
    learner: Any = create_learner("hrn", (3, 32, 32), recipe)
    for name in ("SVHN", "CIFAR 0-9", "MNIST", "CIFAR 10-19", "SVHN, part 2", "MNIST, part 2"):
        learner.learn(tasks[name])
    found = {decision.task: decision for decision in learner.decisions}
    assert found["SVHN, part 2"].looks_like == "SVHN"
    assert found["MNIST, part 2"].looks_like == "MNIST"
    assert found["MNIST"].looks_like is None
    assert found["CIFAR 10-19"].action == "fork"
    assert found["CIFAR 10-19"].forked > found["CIFAR 10-19"].reused, "and not only because it may be behind"


@pytest.mark.parametrize("name", ["SVHN", "CIFAR 0-9"])
def test_the_same_task_twice_adds_nothing_though_there_is_much_to_learn(name: str) -> None:
    task = mixed()[name]
    learner: Any = create_learner("hrn", (3, 32, 32), replace(recipe_for((3, 32, 32)), epochs=(8,)))
    learner.learn(task).learn(replace(task, name="again"))
    decision = learner.decisions[1]
    assert (decision.looks_like, decision.units_added, decision.bytes_added) == (name, 0, 0)
    assert (len(learner.encoder), len(learner.memories)) == (1, 1)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", learner_names())
def test_every_learner_on_every_scenario(name: str, scenario: str, tmp_path: Path) -> None:
    need(NEEDS[scenario])
    tasks = load_scenario(scenario, 0.01)
    recipe = scenario_recipe(tasks, "paper" if find_scenario(scenario).published_recipe else "default")
    result, learner = run(tasks, name, replace(recipe, epochs=(1,)), folder=tmp_path)
    assert all(value is not None and 0 <= value <= 100 for value in result.accuracy[-1])
    assert len(learner.tasks) == len(tasks.tasks)
    assert_same(load_learner(tmp_path), learner)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_whole_scenario_fits_in_two_gigabytes(scenario: str) -> None:
    need(NEEDS[scenario])
    script = f"""
import resource
from hashroute import create_learner, load_scenario
from hashroute.scenarios import scenario_recipe
from hashroute.training.workers import one_thread

one_thread()
scenario = load_scenario({scenario!r})
learner = create_learner("hrn", scenario.image_shape, scenario_recipe(scenario), epochs=1)
for task in scenario.tasks[:2]:
    learner.learn(task)
    learner.predict(task.test.images, task.name)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert 100e3 < float(process.stdout) < 2e6  # kilobytes
