"""What each part of `hrn` is worth: ten CIFAR tasks with one part changed, and the stream of data sets by parent.

Five epochs a task, test accuracy after the last one; what is in the file is not done again.
usage: python benchmarks/ablate_hrn.py [--seeds N] [--jobs J] [--fraction F]      writes results/ablation-hrn.json
"""

from __future__ import annotations

import argparse
import copy
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute import load_scenario, metrics, run
from hashroute.learners import LEARNERS
from hashroute.learners.base import options_from_dict, options_to_dict
from hashroute.learners.hrn import HRN, Decision, HRNOptions
from hashroute.scenarios import Scenario, Task
from hashroute.storage import insert_seed, write_json
from hashroute.training import scenario_settings
from hashroute.workers import side_by_side

OUTPUT = Path(__file__).parents[1] / "results" / "ablation-hrn.json"
EPOCHS = 5


class Shared(HRN):
    """One path for all tasks, trained on and on."""

    def look(self, tasks: Sequence[Task], first: int) -> None:
        if not first:
            super().look(tasks, first)
            return
        self.ways.append(0)
        self.decisions.append({**self.decisions[0], "task": tasks[0].name})
        self.encoder.paths[0].requires_grad_(True)


class Fresh(HRN):
    """Units of its own from nothing, for every task."""

    def look(self, tasks: Sequence[Task], first: int) -> None:
        head = copy.deepcopy(self.heads[first])
        super().look(tasks, first)
        if first:
            self.encoder.drop_last()
            self.ways[first] = self.encoder.grow()
            self.heads[first] = head
            self.scratch = {}


class LastLevel(HRN):
    """A fork has a last unit of its own; those below stay its parent's."""

    def look(self, tasks: Sequence[Task], first: int) -> None:
        super().look(tasks, first)
        if first:
            units: Any = self.encoder.paths[self.ways[first]]
            units[:-1].requires_grad_(False)


class Levels(HRN):
    """Features as any function of the hashes of all levels."""

    def features(self, images: Tensor, task: int) -> Tensor:
        return self.combine(self.hashed(images, self.ways[task]), task)

    def hashed(self, images: Tensor, path: int) -> list[Tensor]:
        maps = (each - each.mean((1, 2, 3), keepdim=True) for each in self.encoder.maps(images, path))
        return [phi.normalised(each) for phi, each in zip(self.encoder.hashes, maps, strict=True)]

    def combine(self, hashed: list[Tensor], task: int) -> Tensor:
        raise NotImplementedError


class Alike(Levels):
    """All levels count alike."""

    def combine(self, hashed: list[Tensor], task: int) -> Tensor:  # noqa: ARG002
        return torch.stack(hashed).sum(0)


class LastHash(Levels):
    """The last level alone counts: the features of a plain network, in another order."""

    def combine(self, hashed: list[Tensor], task: int) -> Tensor:  # noqa: ARG002
        return hashed[-1]


class NotCentred(Alike):
    """All levels count alike, and what maps have in common stays in them."""

    def hashed(self, images: Tensor, path: int) -> list[Tensor]:
        maps = self.encoder.maps(images, path)
        return [phi.normalised(each) for phi, each in zip(self.encoder.hashes, maps, strict=True)]


class Residues(Levels):
    """What counts is what is left of the hashes beside the principal directions of the parent's data."""

    directions: dict[int | None, list[Tensor]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.directions = {}

    def combine(self, hashed: list[Tensor], task: int) -> Tensor:
        features = torch.zeros_like(hashed[0])
        known = self.directions.get(self.encoder.parents[self.ways[task]])
        for level, each in enumerate(hashed):
            features = features / 2 + (each if known is None else each - (each @ known[level].T) @ known[level])
        return features

    @torch.no_grad()
    def consolidate(self, tasks: Sequence[Task], first: int) -> None:
        super().consolidate(tasks, first)
        path = self.ways[first]
        if path not in self.directions:
            levels = self.hashed(self.scale(tasks[0].train.images[:2000], first), path)
            count = self.options.directions
            self.directions[path] = [
                torch.linalg.svd(each - each.mean(0), full_matrices=False)[2][:count] for each in levels
            ]


class Strict(HRN):
    """Any fork must gain more than two standard errors."""

    def _earned(self, task: Task, number: int, decision: Decision) -> bool:
        return super()._earned(task, number, replace(decision, known=True))


class MostFamiliar(HRN):
    """The parent is the path of the data that is most alike."""

    def choose_parent(self, familiar: int, known: bool) -> tuple[int, str]:  # noqa: ARG002
        return familiar, "the most familiar units"


class AnyParent(HRN):
    """The parent is drawn."""

    def choose_parent(self, familiar: int, known: bool) -> tuple[int, str]:  # noqa: ARG002
        return random.Random(f"{self.seed} {len(self.ways)}").randrange(len(self.encoder)), "drawn"


class MostRecent(HRN):
    """The parent is the path that was made last, even for data and classes that are known."""

    def choose_parent(self, familiar: int, known: bool) -> tuple[int, str]:  # noqa: ARG002
        return len(self.encoder) - 1, "the most recent units"


Row = tuple[type[HRN], dict[str, Any]]
ROWS: dict[str, dict[str, Row]] = {
    "split-cifar100": {
        "hrn": (HRN, {}),
        "no fork: units shared and trained on": (Shared, {}),
        "fork from nothing": (Fresh, {}),
        "fork of the last level": (LastLevel, {}),
        "fork of rank 4": (HRN, {"rank": 4}),
        "fork of rank 16": (HRN, {"rank": 16}),
        "fork of rank 64": (HRN, {"rank": 64}),
        "a fork must gain two standard errors": (Strict, {}),
        "residues": (Residues, {}),
        "all levels count alike": (Alike, {}),
        "all levels count alike, not centred": (NotCentred, {}),
        "the last level alone counts": (LastHash, {}),
    },
    "mixed": {
        "hrn": (HRN, {}),
        "parent: the most recent": (MostRecent, {}),
        "parent: the most familiar": (MostFamiliar, {}),
        "parent: drawn": (AnyParent, {}),
        "fork from nothing": (Fresh, {}),
    },
}
"""Of each scenario the rows, each a kind of learner and its options."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--scenarios", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    found: dict[str, Any] = {"command": "", "epochs": EPOCHS, "fraction": arguments.fraction, "scenarios": {}}
    if arguments.output.exists():
        found = json.loads(arguments.output.read_text())
        if found["fraction"] != arguments.fraction:
            raise SystemExit(f"{arguments.output} was made with --fraction {found['fraction']:g}: give the same")
    work = []
    for name in arguments.scenarios:
        rows = found["scenarios"].setdefault(name, {"rows": {}})["rows"]
        for row, (_, options) in ROWS[name].items():
            whole = options_to_dict(options_from_dict(HRNOptions, options))
            if rows.setdefault(row, {"options": whole, "seeds": []})["options"] != whole:
                raise SystemExit(f"{arguments.output} has other options in the row {row!r}: move it away")
        work += [(s, name, row) for s in range(arguments.seeds) for row in ROWS[name] if s not in rows[row]["seeds"]]
    jobs = ((name, row, seed, arguments.fraction, *ROWS[name][row]) for seed, name, row in sorted(work))
    for name, row, seed, values in side_by_side(arguments.jobs, measure, jobs):
        here = found["scenarios"][name]
        here["tasks"], here["settings"] = values.pop("tasks"), values.pop("settings")
        insert_seed(here["rows"][row], seed, values)
        seeds = max(len(each["seeds"]) for part in found["scenarios"].values() for each in part["rows"].values())
        found["command"] = f"python benchmarks/ablate_hrn.py --seeds {seeds} --fraction {found['fraction']:g}"
        write_json(arguments.output, found)
        print(f"{name}, {row}, seed {seed}: {values['final']:.2f} %", flush=True)


def measure(
    name: str, row: str, seed: int, fraction: float, kind: type[HRN], options: dict[str, Any]
) -> tuple[str, str, int, dict[str, Any]]:
    """One run of one row."""
    scenario = load(name, fraction)
    kind.name = "hrn"
    LEARNERS["hrn"] = kind  # only here, in a process of its own
    settings = replace(scenario_settings(scenario, "own"), epochs=(EPOCHS,))
    outcome, _ = run(scenario, "hrn", settings, seed, options=options, fraction=fraction)
    return (
        name,
        row,
        seed,
        {
            "tasks": [task.name for task in scenario.tasks],
            "settings": settings.to_dict(),
            "final": metrics.final(outcome.accuracy),
            "accuracy": outcome.accuracy,
            "forgetting": metrics.forgetting(outcome.accuracy),
            "parameters": outcome.parameters,
            "bytes_kept": outcome.bytes_kept,
            "task_free": outcome.task_free,
            "seconds": outcome.seconds,
        },
    )


@lru_cache(maxsize=1)
def load(name: str, fraction: float) -> Scenario:
    """A worker does several runs."""
    return load_scenario(name, fraction)


if __name__ == "__main__":
    main()
