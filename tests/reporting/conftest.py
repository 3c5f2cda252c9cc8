"""Real runs, short ones, and reports about them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import hashroute
from hashroute.reporting.figures import pictures
from hashroute.reporting.figures.picture import Picture
from hashroute.reporting.page import make_report, write_report
from hashroute.reporting.runs import Group, collect
from hashroute.scenarios import scenario_recipe
from hashroute.training.result import Comparison, RunResult

FRACTION = 0.3
RUNS = (("hrn", 0), ("hrn-paper", 0), ("vc", 0), ("vc", 1), ("separate", 0), ("joint", 0))
FLOW = {"0 or 1": [[0, 0, 1, 0.75], [0, 2, 1, 0.25], [1, 1, 3, 1.0]], "2 or 3": [[0, 0, 1, 0.5], [0, 3, 0, 0.5]]}
PIXEL = (
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg=="
)
SAMPLE = {
    "task": "2 or 3",
    "image": PIXEL,
    "label": "2",
    "predicted": "3",
    "task_free": {"task": "0 or 1", "label": "1", "correct": False},
    "path": [0, 1, 3],
    "known_by": "units",
    "projections": [0.9, 0.8, 0.1, 0.7],
}


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of runs of five learners, one of them with two seeds."""
    folder = tmp_path_factory.mktemp("runs")
    scenario = hashroute.load_scenario("digits", FRACTION)
    recipe = replace(scenario_recipe(scenario), epochs=(2, 1))
    for name, seed in RUNS:
        hashroute.run(scenario, name, recipe, seed, folder=folder / f"{name}-seed{seed}", fraction=FRACTION)
    log = folder / "hrn-paper-seed0" / "epochs.jsonl"  # with paths, ages and a sample that are known to the digit
    records = [json.loads(line) for line in log.read_text().splitlines()]
    records[-1] |= {"flow": FLOW, "ages": [float(unit) for unit in range(len(records[-1]["usage"]))]}
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "hrn-paper-seed0" / "samples.json").write_text(json.dumps([SAMPLE]))
    return folder


@pytest.fixture(scope="session")
def group(runs: Path) -> Group:
    """These runs as a group."""
    (found,), _ = collect([runs])
    return found


@pytest.fixture(scope="session")
def shown(group: Group) -> dict[str, Picture]:
    """All figures of these runs."""
    return {picture.name: picture for picture in pictures(group)}


@pytest.fixture(scope="session")
def written(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a report about them."""
    return write_report([runs], tmp_path_factory.mktemp("report"), "hashroute report")


@pytest.fixture
def copied(runs: Path, tmp_path: Path) -> Path:
    """The same runs, to be damaged."""
    return Path(shutil.copytree(runs, tmp_path / "runs"))


@pytest.fixture(scope="session")
def report() -> Callable[..., str]:
    """Gives the text of a report's page; nothing is written."""

    def make(*paths: Path) -> str:
        return make_report(paths, "hashroute report").text

    return make


@pytest.fixture(scope="session")
def result(runs: Path) -> Callable[[str], dict[str, Any]]:
    """Gives what a run's result.json holds."""

    def read(run: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((runs / run / "result.json").read_text())
        return found

    return read


@pytest.fixture(scope="session")
def made_up() -> Callable[..., Comparison]:
    """Makes a comparison of invented numbers."""

    def make(tasks: list[str], learners: list[str], seeds: int = 1) -> Comparison:
        count = len(tasks)
        rows = [[90.0 - 0.1 * row if column <= row else None for column in range(count)] for row in range(count)]
        decisions = [{"task": task, "action": "fresh"} for task in tasks]
        runs = [
            RunResult(
                name,
                seed,
                accuracy=rows,
                seconds=1.0,
                images=1000,
                parameters={"encoder": 10, "heads": 20},
                bytes_kept={"weights": 3000, "memory": 1000},
                task_free={"all_classes": 50.0, "dataset": 75.0},
                decisions=[] if place else decisions,
            )
            for place, name in enumerate(learners)
            for seed in range(seeds)
        ]
        return Comparison("mine", tasks, [], {}, runs=runs)

    return make
