"""How a fork should start: `hrn` learns five CIFAR tasks, and is asked about many training images that were held out.

Of each task's training images 3,000 are learned, for 20 epochs, and 2,000 held out, validation images among them; test
images are not used.
usage: python experiments/forks.py [SEED ...]      (20 minutes a seed; needs CIFAR-100)
Writes experiments/results/forks.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from hashroute import load_scenario
from hashroute.learners.hrn import HRN, HRNOptions
from hashroute.recipe import recipe_for
from hashroute.storage import write_json
from hashroute.tasks import Split, Task

OUTPUT = Path(__file__).parent / "results" / "forks.json"
TASKS, TRAINED, EPOCHS = 5, 3000, 20


class TrainedHead(HRN):
    """A fork starts with the head that was trained on its parent."""

    def look(self, tasks: Sequence[Task], first: int) -> None:
        super().look(tasks, first)
        if self.scratch:
            self.heads[first].load_state_dict(self.tried_head())


KINDS = {"a new head": HRN, "the head trained on its parent": TrainedHead}


def held_out(task: Task) -> Task:
    """The task with fewer training images; the others, and those for validation, stand in for the test images."""
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(5))
    kept, rest = order[:TRAINED], order[TRAINED:]
    images = torch.cat([task.train.images[rest], task.validation.images])
    labels = torch.cat([task.train.labels[rest], task.validation.labels])
    return replace(task, train=Split(task.train.images[kept], task.train.labels[kept]), test=Split(images, labels))


def measure(kind: type[HRN], seed: int, tasks: list[Task]) -> list[float]:
    """Percent of the images held out that are answered right, after each task."""
    settings = replace(recipe_for((3, 32, 32)), epochs=(EPOCHS,))
    torch.manual_seed(seed)
    learner = kind((3, 32, 32), settings, HRNOptions(), seed)
    right = []
    for number, task in enumerate(tasks):
        learner.learn(task)
        answers = learner.predict(task.test.images, number) == task.test.labels
        right.append(round(100 * answers.double().mean().item(), 2))
    return right


if __name__ == "__main__":
    torch.set_num_threads(1)
    tasks = [held_out(task) for task in load_scenario("split-cifar100").tasks[:TASKS]]
    found = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {"command": "python experiments/forks.py 0"}
    found |= {"tasks": [task.name for task in tasks], "epochs": EPOCHS, "trained": TRAINED}
    for seed in map(int, sys.argv[1:] or "0"):
        for name, kind in KINDS.items():
            found.setdefault(f"a fork starts with {name}", {})[f"seed {seed}"] = measure(kind, seed, tasks)
            write_json(OUTPUT, found)
            print(name, seed, found[f"a fork starts with {name}"], flush=True)
