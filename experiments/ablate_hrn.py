"""What each part of `hrn` contributes: one part is changed at a time.

Ten CIFAR-100 tasks with other forks, the first four of them with other features, and the stream of data sets with other
parents. Five epochs a task, test accuracy. The variants are subclasses of `hrn` that are defined here: what does not
help is not part of the package.
usage: python experiments/ablate_hrn.py [--seeds N] [--jobs J] [--fraction F] [--scenarios NAME ...] [--rows NAME ...]
       [--folder FOLDER]
Writes results/ablation-hrn-SCENARIO.json. Existing files are continued.
"""

from __future__ import annotations

import argparse
import copy
import random
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hashroute import Comparison, RunResult, Scenario, load_scenario
from hashroute.learners.entries import TaskEntry
from hashroute.learners.growth import Decision, Growth, HRNEntry
from hashroute.learners.hrn import HRN, NO_SHARED_HEAD
from hashroute.learners.learner import count_weights
from hashroute.learners.randomness import evenly_spaced_indices
from hashroute.nn.forest import Forest, sum_by_halves
from hashroute.nn.hashing import FeatureHash
from hashroute.recipe import Recipe
from hashroute.scenarios import scenario_recipe
from hashroute.training import metrics
from hashroute.training.sweep import Sweep
from hashroute.training.sweep_runs import SweepRun, SweepSettings

FOLDER = Path(__file__).parents[1] / "results"
EPOCHS = 5


# -------------------------------------------------------------------- other forks


class SharedGrowth(Growth):
    def before_task(self, task: HRNEntry) -> None:
        if task.index == 0:
            super().before_task(task)
            return
        first = self.learner.entries[0]
        task.path, task.domain = 0, 0
        task.decision = Decision(task.name, parent=first.name)
        self.learner.encoder.paths[0].requires_grad_(True)

    def after_task(self, task: HRNEntry) -> None:
        super().after_task(task)
        if task.index:
            decision = self._decision(task)
            decision.action, decision.units_added = "reuse", 0
            decision.bytes_added = self.learner.memories.bytes_each


class Shared(HRN):
    """One path for all tasks, which every task trains further."""

    Growth = SharedGrowth


class FreshGrowth(Growth):
    def before_task(self, task: HRNEntry) -> None:
        learner = self.learner
        head = copy.deepcopy(learner.heads[task.index])
        super().before_task(task)
        if task.index:
            learner.encoder.drop_last()
            task.path = learner.encoder.grow()
            learner.heads[task.index] = head
            self._decision(task).parent = None

    def earned(self, task: HRNEntry, decision: Decision) -> bool:
        super().earned(task, decision)
        return True


class Fresh(HRN):
    """Every task gets new units and a new head, and they are kept."""

    Growth = FreshGrowth


class LastLevelGrowth(Growth):
    learner: LastLevel

    def before_task(self, task: HRNEntry) -> None:
        super().before_task(task)
        if task.index:
            self.learner.lower(task.path).requires_grad_(False)

    def after_task(self, task: HRNEntry) -> None:
        super().after_task(task)
        decision = self._decision(task)
        if decision.action == "fork":
            decision.units_added = self.learner.own
            decision.bytes_added -= 4 * count_weights(self.learner.lower(task.path))


class LastLevel(HRN):
    """A fork has a last unit of its own. The units below are its parent's."""

    Growth = LastLevelGrowth
    own = 1

    def parameter_counts(self) -> dict[str, int]:
        counts = super().parameter_counts()
        return {**counts, "encoder": counts["encoder"] - self._copies()}

    def bytes_kept(self) -> dict[str, int]:
        kept = super().bytes_kept()
        return {**kept, "weights": kept["weights"] - 4 * self._copies()}

    def _copies(self) -> int:
        """Weights that are the same as a parent's: they are in memory twice, but need not be stored twice."""
        forks = (path for path, parent in enumerate(self.encoder.parents) if parent is not None)
        return sum(count_weights(self.lower(path)) for path in forks)

    def lower(self, path: int) -> nn.ModuleList:
        """The units of a path that are its parent's."""
        return nn.ModuleList(list(self.encoder.paths[path].children())[: -self.own])


class LastTwo(LastLevel):
    """A fork has two units of its own."""

    own = 2


# -------------------------------------------------------------------- other features


class Alike(HRN):
    """All levels have the same weight."""

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:
        return torch.stack(list(self.encoder.hashed(images, self.entries[task.index].path))).sum(0)


class LastHash(HRN):
    """Features are the hash of the last level alone."""

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:
        *_, last = self.encoder.hashed(images, self.entries[task.index].path)
        return last


class NotCentred(HRN):
    """Maps keep their mean."""

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:
        maps = self.encoder.maps(images, self.entries[task.index].path)
        hashed = [phi.normalised(each) for phi, each in zip(self.encoder.hashes, maps, strict=True)]
        return sum_by_halves(hashed)


class Uneven(HRN):
    """The paper's hash, which distributes numbers over buckets at random."""

    def new_encoder(self) -> Forest:
        encoder = super().new_encoder()
        encoder.hashes = [FeatureHash(phi.features, phi.seed) for phi in encoder.hashes]  # type: ignore[misc]
        return encoder


class Residues(HRN):
    """Features are residues: hashes without the principal directions of the data of the path that was forked."""

    directions: dict[int | None, list[Tensor]]

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.directions = {}

    def features(self, images: Tensor, task: TaskEntry) -> Tensor:
        path = self.entries[task.index].path
        first = next(entry.index for entry in self.entries if entry.path == path)
        known = self.directions.get(self.encoder.parents[path] if first == task.index else path)  # else it is reused
        hashed = list(self.encoder.hashed(images, path))
        if known is not None:
            hashed = [each - (each @ v.T) @ v for each, v in zip(hashed, known, strict=True)]
        return sum_by_halves(hashed)

    @torch.no_grad()
    def after_task(self, task: TaskEntry) -> None:
        super().after_task(task)
        path = self.entries[task.index].path
        if path not in self.directions:
            train = task.data.train
            rows = evenly_spaced_indices(len(train), self.options.remembered)
            images = self.normalise(train.images[rows], task)
            count = self.options.directions
            self.directions[path] = [
                torch.linalg.svd(each - each.mean(0), full_matrices=False)[2][:count].clone()
                for each in self.encoder.hashed(images, path)
            ]

    def bytes_kept(self) -> dict[str, int]:
        kept = super().bytes_kept()
        more = sum(4 * each.numel() for levels in self.directions.values() for each in levels)
        return {**kept, "memory": kept["memory"] + more}


# -------------------------------------------------------------------- other parents


class MostFamiliarGrowth(Growth):
    def candidates(self, familiar: int, similar: set[int], task: HRNEntry) -> list[int]:  # noqa: ARG002
        return [familiar]


class MostFamiliar(HRN):
    """The parent is the path of the most similar data."""

    Growth = MostFamiliarGrowth


class RandomGrowth(Growth):
    def candidates(self, familiar: int, similar: set[int], task: HRNEntry) -> list[int]:  # noqa: ARG002
        return [random.Random(f"{self.learner.seed} {task.index}").randrange(len(self.learner.encoder))]


class AnyParent(HRN):
    """The parent is drawn at random."""

    Growth = RandomGrowth


class TaskBeforeGrowth(Growth):
    def candidates(self, familiar: int, similar: set[int], task: HRNEntry) -> list[int]:  # noqa: ARG002
        return [self.learner.entries[task.index - 1].path]


class TaskBefore(HRN):
    """The parent is the path of the task before, whatever its data."""

    Growth = TaskBeforeGrowth


class ProbedGrowth(Growth):
    @torch.no_grad()
    def candidates(self, familiar: int, similar: set[int], task: HRNEntry) -> list[int]:  # noqa: ARG002
        learner, train = self.learner, task.data.train
        rows = evenly_spaced_indices(len(train), 1000)
        labels = train.labels[rows]
        chosen = nn.functional.one_hot(labels[::2]).double()
        shares = []
        for path in range(len(learner.encoder)):
            images = learner.normalise(train.images[rows], task)
            features = torch.cat([learner.encoder(part, path) for part in images.split(128)]).cpu().double()
            means = (chosen / chosen.sum(0)).T @ features[::2]
            shares.append((torch.cdist(features[1::2], means).argmin(1) == labels[1::2]).double().mean().item())
        return [shares.index(max(shares))]


class Probed(HRN):
    """The parent is the path on which nearest class means are most accurate, on labelled images of the task."""

    Growth = ProbedGrowth


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
"""By scenario, the rows: a learner class and its options."""


def load(name: str, fraction: float) -> Scenario:
    """A scenario, or its first four tasks."""
    scenario = load_scenario(name.removesuffix("-begin"), fraction)
    return replace(scenario, tasks=scenario.tasks[:4]) if name.endswith("-begin") else scenario


def recipe_of(scenario: Scenario) -> Recipe:
    """The default recipe with fewer epochs."""
    return replace(scenario_recipe(scenario), epochs=(EPOCHS,))


def sweep_of(name: str, rows: Sequence[str], seeds: int, fraction: float, folder: Path) -> Sweep:
    """The runs of one scenario. The shared head has no part in the training of units, so no row has one."""
    runs = [
        SweepRun(row, kind, seed, {**NO_SHARED_HEAD, **options})
        for seed in range(seeds)
        for row, (kind, options) in ROWS[name].items()
        if row in rows
    ]

    def command(comparison: Comparison) -> str:
        done = 1 + max(run.seed for run in comparison.runs)
        return f"python experiments/ablate_hrn.py --seeds {done} --fraction {fraction:g}"

    settings = SweepSettings(partial(load, name, fraction), recipe_of(load(name, fraction)), fraction=fraction)
    return Sweep(settings, runs, folder / f"ablation-hrn-{name}.json", command, order=list(ROWS[name]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--fraction", type=float, default=1.0)
    parser.add_argument("--scenarios", nargs="+", default=list(ROWS), choices=list(ROWS))
    names = list(dict.fromkeys(row for part in ROWS.values() for row in part))
    parser.add_argument("--rows", nargs="+", default=names, choices=names, help="these rows alone")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the result files")
    arguments = parser.parse_args()

    def on_result(each: SweepRun, result: RunResult) -> None:
        print(f"{each.name}, seed {each.seed}: {metrics.final(result.accuracy):.2f} %", flush=True)

    for name in arguments.scenarios:
        print(name, flush=True)
        sweep = sweep_of(name, arguments.rows, arguments.seeds, arguments.fraction, arguments.folder)
        for failure in sweep.run(arguments.jobs, on_result):
            print(failure, flush=True)


if __name__ == "__main__":
    main()
