"""What each part of `hrn` is worth: ten CIFAR tasks with one part changed, and the stream of data sets by parent.

What features are made of is changed on the first four CIFAR tasks. Five epochs a task, test accuracy after the last
one. What is in the file is not done again. Variants are kinds of `hrn` that stand here, not in the package: what does
not help is not offered.
usage: python experiments/ablate_hrn.py [--seeds N] [--jobs J] [--fraction F] [--scenarios NAME ...] [--rows NAME ...]
       [--output FILE]
Writes results/ablation-hrn.json as rows are done.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hashroute import load_scenario, run
from hashroute.learners.base import count_weights, evenly, options_from_dict, options_to_dict
from hashroute.learners.hrn import HRN, Decision, HRNOptions
from hashroute.nn.forest import Forest, sum_by_halves
from hashroute.nn.hashing import FeatureHash
from hashroute.recipe import Recipe
from hashroute.scenarios import scenario_recipe
from hashroute.storage import insert_seed, write_json
from hashroute.tasks import Scenario, Task
from hashroute.training import metrics
from hashroute.training.workers import side_by_side

OUTPUT = Path(__file__).parents[1] / "results" / "ablation-hrn.json"
EPOCHS = 5


class Shared(HRN):
    """One path for all tasks, trained on and on."""

    def look(self, tasks: Sequence[Task], first: int) -> None:
        if not first:
            super().look(tasks, first)
            return
        self.ways.append(0)
        self.kinds.append(0)
        decision = Decision(tasks[0].name, parent=self.tasks[0].name, why="units are shared and trained on")
        self.decisions.append(asdict(decision))
        self.encoder.paths[0].requires_grad_(True)

    def consolidate(self, tasks: Sequence[Task], first: int) -> None:
        super().consolidate(tasks, first)
        if first:
            amend(self, action="reuse", units_added=0, bytes_added=self.memories.bytes_each)


class Fresh(HRN):
    """A fork starts from nothing, units and head, and stays."""

    def look(self, tasks: Sequence[Task], first: int) -> None:
        head = copy.deepcopy(self.heads[first])
        super().look(tasks, first)
        if first:
            self.encoder.drop_last()
            self.ways[first] = self.encoder.grow()
            self.heads[first] = head
            amend(self, parent=None, forked_from=None, why="units from nothing")
            self.to(self.device)

    def _earned(self, task: Task, number: int, decision: Decision) -> bool:
        super()._earned(task, number, decision)
        return True


class LastLevel(HRN):
    """A fork has a last unit of its own; those below stay its parent's."""

    own = 1

    def look(self, tasks: Sequence[Task], first: int) -> None:
        super().look(tasks, first)
        if first:
            self._lower(self.ways[first]).requires_grad_(False)

    def consolidate(self, tasks: Sequence[Task], first: int) -> None:
        super().consolidate(tasks, first)
        if self.decisions[-1]["action"] == "fork":
            lower = 4 * count_weights(self._lower(self.ways[first]))
            amend(self, units_added=self.own, bytes_added=self.decisions[-1]["bytes_added"] - lower)

    def parameter_counts(self) -> dict[str, int]:
        counts = super().parameter_counts()
        return {**counts, "encoder": counts["encoder"] - self._copies()}

    def bytes_kept(self) -> dict[str, int]:
        kept = super().bytes_kept()
        return {**kept, "weights": kept["weights"] - 4 * self._copies()}

    def _copies(self) -> int:
        """Weights that are the same as a parent's: they are here twice, and need not be."""
        forks = (path for path, parent in enumerate(self.encoder.parents) if parent is not None)
        return sum(count_weights(self._lower(path)) for path in forks)

    def _lower(self, path: int) -> nn.ModuleList:
        units: Any = self.encoder.paths[path]
        lower: nn.ModuleList = units[: -self.own]
        return lower


class LastTwo(LastLevel):
    """A fork has two units of its own."""

    own = 2


class Alike(HRN):
    """All levels count alike."""

    def features(self, images: Tensor, task: int) -> Tensor:
        return torch.stack(list(self.encoder.hashed(images, self.ways[task]))).sum(0)


class LastHash(HRN):
    """The last level alone counts."""

    def features(self, images: Tensor, task: int) -> Tensor:
        *_, last = self.encoder.hashed(images, self.ways[task])
        return last


class NotCentred(HRN):
    """Maps keep their mean."""

    def features(self, images: Tensor, task: int) -> Tensor:
        maps = self.encoder.maps(images, self.ways[task])
        hashed = [phi.normalised(each) for phi, each in zip(self.encoder.hashes, maps, strict=True)]
        return sum_by_halves(hashed)


class Uneven(HRN):
    """The paper's hash, in which numbers meet in a bucket by chance."""

    def new_encoder(self) -> Forest:
        encoder = super().new_encoder()
        encoder.hashes = [FeatureHash(phi.features, phi.seed) for phi in encoder.hashes]  # type: ignore[misc]
        return encoder


class Residues(HRN):
    """What counts is what is left of the hashes beside the principal directions of the data of the path forked."""

    directions: dict[int | None, list[Tensor]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.directions = {}

    def features(self, images: Tensor, task: int) -> Tensor:
        path = self.ways[task]
        own = self.ways.index(path) == task  # else another's path is reused, or tried before it is forked
        known = self.directions.get(self.encoder.parents[path] if own else path)
        hashed = list(self.encoder.hashed(images, path))
        if known is not None:
            hashed = [each - (each @ v.T) @ v for each, v in zip(hashed, known, strict=True)]
        return sum_by_halves(hashed)

    @torch.no_grad()
    def consolidate(self, tasks: Sequence[Task], first: int) -> None:
        super().consolidate(tasks, first)
        path = self.ways[first]
        if path not in self.directions:
            train = tasks[0].train
            images = self.scale(train.images[evenly(len(train), self.options.remembered)], first)
            count = self.options.directions
            self.directions[path] = [
                torch.linalg.svd(each - each.mean(0), full_matrices=False)[2][:count].clone()
                for each in self.encoder.hashed(images, path)
            ]

    def bytes_kept(self) -> dict[str, int]:
        kept = super().bytes_kept()
        more = sum(4 * each.numel() for levels in self.directions.values() for each in levels)
        return {**kept, "memory": kept["memory"] + more}


class MostFamiliar(HRN):
    """The parent is the path of the data that is most alike."""

    def candidates(self, familiar: int, alike: set[int]) -> dict[int, str]:  # noqa: ARG002
        return {familiar: "the most familiar units"}


class AnyParent(HRN):
    """The parent is drawn."""

    def candidates(self, familiar: int, alike: set[int]) -> dict[int, str]:  # noqa: ARG002
        return {random.Random(f"{self.seed} {len(self.ways)}").randrange(len(self.encoder)): "drawn"}


class TaskBefore(HRN):
    """The parent is the path of the task before, whatever the data."""

    def candidates(self, familiar: int, alike: set[int]) -> dict[int, str]:  # noqa: ARG002
        return {self.ways[-1]: "the units of the task before"}


class Probed(HRN):
    """The parent is the path on which the nearest class mean answers most: of 1,000 labelled images the other half."""

    probe: Task

    def look(self, tasks: Sequence[Task], first: int) -> None:
        self.probe = tasks[0]
        super().look(tasks, first)

    @torch.no_grad()
    def candidates(self, familiar: int, alike: set[int]) -> dict[int, str]:  # noqa: ARG002
        rows = evenly(len(self.probe.train), 1000)
        labels = self.probe.train.labels[rows]
        chosen = nn.functional.one_hot(labels[::2]).double()
        shares = []
        for path in range(len(self.encoder)):
            images = self.scale(self.probe.train.images[rows], len(self.ways))
            features = torch.cat([self.encoder(part, path) for part in images.split(128)]).cpu().double()
            means = (chosen / chosen.sum(0)).T @ features[::2]
            shares.append((torch.cdist(features[1::2], means).argmin(1) == labels[1::2]).double().mean().item())
        return {shares.index(max(shares)): "where class means answer most"}


def amend(learner: HRN, **changes: Any) -> None:
    """Change what is written down of the last decision."""
    decision = Decision(**{**learner.decisions[-1], **changes})
    decision.say()
    learner.decisions[-1] = asdict(decision)


Row = tuple[type[HRN], dict[str, Any]]
ROWS: dict[str, dict[str, Row]] = {
    "split-cifar100": {
        "hrn": (HRN, {}),
        "no fork: units shared and trained on": (Shared, {}),
        "fork from nothing": (Fresh, {}),
        "fork of the last level": (LastLevel, {}),
        "fork of the last two levels": (LastTwo, {}),
        "fork of rank 4": (HRN, {"rank": 4}),
        "fork of rank 16": (HRN, {"rank": 16}),
        "fork of rank 64": (HRN, {"rank": 64}),
        "residues in place of hashes": (Residues, {}),
    },
    "split-cifar100-begin": {
        "hrn": (HRN, {}),
        "features: all levels count alike": (Alike, {}),
        "features: the last level alone": (LastHash, {}),
        "features: maps keep their mean": (NotCentred, {}),
        "features: a hash with collisions": (Uneven, {}),
    },
    "mixed": {
        "hrn": (HRN, {}),
        "parent: the most familiar": (MostFamiliar, {}),
        "parent: the task before": (TaskBefore, {}),
        "parent: drawn": (AnyParent, {}),
        "parent: where class means answer most": (Probed, {}),
        "fork from nothing": (Fresh, {}),
    },
}
"""Of each scenario the rows, each a kind of learner and its options."""


def load(name: str, fraction: float) -> Scenario:
    """A scenario, or its first four tasks."""
    scenario = load_scenario(name.removesuffix("-begin"), fraction)
    return Scenario(scenario.name, scenario.tasks[:4]) if name.endswith("-begin") else scenario


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--scenarios", nargs="+", default=list(ROWS), choices=list(ROWS))
    names = list(dict.fromkeys(row for part in ROWS.values() for row in part))
    parser.add_argument("--rows", nargs="+", default=names, choices=names, help="these rows alone")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    path, fraction = arguments.output, arguments.fraction
    found = json.loads(path.read_text()) if path.exists() else {"command": "", "scenarios": {}}
    work = []
    for name in arguments.scenarios:
        scenario = load(name, fraction)
        rows = {
            row: options_to_dict(options_from_dict(HRNOptions, options)) for row, (_, options) in ROWS[name].items()
        }
        fresh = {
            "tasks": [task.name for task in scenario.tasks],
            "fraction": fraction,
            "version": HRN.version,
            "recipe": recipe_of(scenario).to_dict(),
            "rows": {row: {"options": options, "seeds": []} for row, options in rows.items()},
        }
        here = found["scenarios"].setdefault(name, fresh)
        kept = {**here, "rows": {row: entry["options"] for row, entry in here["rows"].items()}}
        if kept != {**fresh, "rows": rows}:
            raise SystemExit(f"{path} was made with other settings or rows of {name}: move it away")
        asked = [row for row in rows if row in arguments.rows]
        left = [
            (seed, row) for seed in range(arguments.seeds) for row in asked if seed not in here["rows"][row]["seeds"]
        ]
        work += [(name, row, seed, fraction, *ROWS[name][row]) for seed, row in left]
    for name, row, seed, values in side_by_side(arguments.jobs, measure, work):
        insert_seed(found["scenarios"][name]["rows"][row], seed, values)
        seeds = max(len(each["seeds"]) for part in found["scenarios"].values() for each in part["rows"].values())
        found["command"] = f"python experiments/ablate_hrn.py --seeds {seeds} --fraction {fraction:g}"
        write_json(path, found)
        print(f"{name}, {row}, seed {seed}: {values['final']:.2f} %", flush=True)


def measure(
    name: str, row: str, seed: int, fraction: float, kind: type[HRN], options: dict[str, Any]
) -> tuple[str, str, int, dict[str, Any]]:
    """One run of one row."""
    from hashroute.learners import LEARNERS  # in a worker, a global of this file would be a copy

    scenario = load(name, fraction)
    before, LEARNERS["hrn"] = LEARNERS["hrn"], kind
    try:
        outcome, learner = run(scenario, "hrn", recipe_of(scenario), seed, options=options, fraction=fraction)
    finally:
        LEARNERS["hrn"] = before
    assert type(learner) is kind
    values = {
        "final": metrics.final(outcome.accuracy),
        "accuracy": outcome.accuracy,
        "forgetting": metrics.forgetting(outcome.accuracy),
        "parameters": outcome.parameters,
        "bytes_kept": outcome.bytes_kept,
        "task_free": outcome.task_free,
        "seconds": outcome.seconds,
        "decisions": outcome.decisions,
    }
    return name, row, seed, values


def recipe_of(scenario: Scenario) -> Recipe:
    """Our own, with fewer epochs."""
    return replace(scenario_recipe(scenario, "default"), epochs=(EPOCHS,))


if __name__ == "__main__":
    main()
