"""What settings of training are worth: `vc` and `hrn` learn a task, and are asked about images held out.

Two tasks, each learned from nothing: the first SVHN part of `mixed`, with the training images of the second part held
out, and the first task of split-cifar100, with 3,000 images learned for 20 epochs and 2,000 held out. Test images are
not used.
usage: python benchmarks/training_settings.py [SEED ...]      (40 minutes a seed; needs all four data sets)
Writes benchmarks/results/training_settings.json as results come; what is there already is not measured again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from forks import EPOCHS, held_out

from hashroute import create_learner, load_scenario
from hashroute.scenarios import Task
from hashroute.settings import Settings, settings_for
from hashroute.storage import write_json

OUTPUT = Path(__file__).parent / "results" / "training_settings.json"
COMMAND = "python benchmarks/training_settings.py 0"
SHAPE = (3, 32, 32)
SCALED = {"feature_size": 0.25, "label_smoothing": 0.0}
OURS = {"feature_size": 0.25, "label_smoothing": 0.1}
ROWS: dict[str, dict[str, Any]] = {
    "features as they are": {**SCALED, "feature_size": 0.0},  # vc alone: those of hrn are scaled to 1
    "features scaled to 1": {**SCALED, "feature_size": 1.0},
    "features scaled to 0.25": SCALED,
    "features scaled to 0.25, labels smoothed by 0.1": OURS,
    "ours, weight decay 0.001": {**OURS, "weight_decay": 0.001},
    "ours, weight decay 0.1": {**OURS, "weight_decay": 0.1},
    "ours, peak rate 0.001": {**OURS, "learning_rate": 0.001},
    "ours, peak rate 0.004": {**OURS, "learning_rate": 0.004},
    "ours, constant rate 0.001": {**OURS, "learning_rate": 0.001, "one_cycle": False},
}
"""What is changed in our own settings; the fourth row changes nothing."""


def tasks() -> dict[str, tuple[Task, Settings]]:
    """By name: a task whose test images are training images held out, and how it is learned."""
    first, second = (task for task in load_scenario("mixed").tasks if task.name.startswith("SVHN"))
    svhn = replace(first, test=second.train)
    cifar = held_out(load_scenario("split-cifar100").tasks[0])
    longer = replace(settings_for("split-cifar100", SHAPE), epochs=(EPOCHS,))
    return {"SVHN, 4,501 images": (svhn, settings_for("mixed", SHAPE)), "CIFAR 0-9, 3,000 images": (cifar, longer)}


def measure(learner: str, seed: int, task: Task, settings: Settings) -> float:
    """Percent of the images held out that are answered right."""
    torch.manual_seed(seed)
    model = create_learner(learner, SHAPE, settings, seed=seed)
    model.learn(task)
    right = model.predict(task.test.images, 0).cpu() == task.test.labels
    return round(100 * right.double().mean().item(), 2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {"command": COMMAND}
    for seed in map(int, sys.argv[1:] or "0"):
        for name, (task, settings) in tasks().items():
            for learner in ("vc", "hrn"):
                for row, changes in ROWS.items():
                    if learner == "hrn" and not changes["feature_size"]:
                        continue
                    done = found.setdefault(name, {}).setdefault(f"{learner}, {row}", {})
                    if f"seed {seed}" in done:
                        continue
                    done[f"seed {seed}"] = measure(learner, seed, task, replace(settings, **changes))
                    print(name, learner, row, done[f"seed {seed}"], flush=True)
                    write_json(OUTPUT, found)
