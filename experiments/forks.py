"""How a fork should start: with a new head, or with the head that was trained on its parent.

`hrn` learns five CIFAR tasks from 3,000 training images each, for 20 epochs. Accuracy is measured on 2,000 others,
validation images among them. Test images are not used.
usage: python experiments/forks.py [SEED ...]      (20 minutes a seed; needs CIFAR-100)
Writes experiments/results/forks.json.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from hashroute import create_learner, load_scenario
from hashroute.learners.growth import Growth, HRNEntry
from hashroute.learners.hrn import HRN
from hashroute.storage import write_json
from hashroute.tasks import Split, Task

OUTPUT = Path(__file__).parent / "results" / "forks.json"
TASKS, TRAINED, EPOCHS = 5, 3000, 20


class TrainedHeadGrowth(Growth):
    def before_task(self, task: HRNEntry) -> None:
        super().before_task(task)
        if self.learner.scratch:
            self.learner.heads[task.index].load_state_dict(self.tried_head())


class TrainedHead(HRN):
    """A fork starts with the head that was trained on its parent."""

    Growth = TrainedHeadGrowth


KINDS = {"a new head": HRN, "the head trained on its parent": TrainedHead}


def held_out(task: Task) -> Task:
    """The task with fewer training images; the others and the validation images replace the test images."""
    order = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(5))
    kept, rest = order[:TRAINED], order[TRAINED:]
    images = torch.cat([task.train.images[rest], task.validation.images])
    labels = torch.cat([task.train.labels[rest], task.validation.labels])
    return replace(task, train=Split(task.train.images[kept], task.train.labels[kept]), test=Split(images, labels))


def measure(kind: type[HRN], seed: int, tasks: list[Task]) -> list[float]:
    """Accuracy of each task on the images held out, right after learning it, in percent."""
    learner = create_learner(kind, (3, 32, 32), seed=seed, epochs=EPOCHS)
    right = []
    for task in tasks:
        learner.learn(task)
        answers = learner.predict(task.test.images, task.name) == task.test.labels
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
