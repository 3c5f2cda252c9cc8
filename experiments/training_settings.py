"""What each setting of the recipe contributes: accuracy of `vc` and `hrn` on training images that were held out.

Mixed images and residual connections around units are measured, too. They are defined here, not in the package.

Two tasks, each learned from the beginning: the first SVHN part of `mixed`, with the training images of the second part
held out, and the first task of split-cifar100, with 3,000 images learned for 20 epochs and 2,000 held out. Test images
are not used.
usage: python experiments/training_settings.py [SEED ...]      (an hour a seed; needs all four data sets)
Writes experiments/results/training_settings.json as results come; what is there already is not measured again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from forks import EPOCHS, held_out
from torch import Tensor

from hashroute import load_scenario
from hashroute.learners import find_learner
from hashroute.learners.entries import Batch
from hashroute.learners.learner import Learner
from hashroute.nn.units import ConvUnit
from hashroute.recipe import Recipe, recipe_for
from hashroute.storage import write_json
from hashroute.tasks import Task

OUTPUT = Path(__file__).parent / "results" / "training_settings.json"
SHAPE = (3, 32, 32)
SCALED = {"feature_scale": 0.25, "label_smoothing": 0.0}
OURS = {"feature_scale": 0.25, "label_smoothing": 0.1}
ROWS: dict[str, dict[str, Any]] = {
    "features as they are": {**SCALED, "feature_scale": 0.0},  # vc alone: those of hrn are scaled to 1
    "features scaled to 1": {**SCALED, "feature_scale": 1.0},
    "features scaled to 0.25": SCALED,
    "features scaled to 0.25, labels smoothed by 0.1": OURS,
    "ours, weight decay 0.001": {**OURS, "weight_decay": 0.001},
    "ours, weight decay 0.1": {**OURS, "weight_decay": 0.1},
    "ours, peak rate 0.001": {**OURS, "learning_rate": 0.001},
    "ours, peak rate 0.004": {**OURS, "learning_rate": 0.004},
    "ours, constant rate 0.001": {**OURS, "learning_rate": 0.001, "one_cycle": False},
    "ours, images blended (mixup)": OURS,
    "ours, images pasted together (cutmix)": OURS,
    "ours, a way around each unit": OURS,
}
"""What is changed in our own settings; the fourth row changes nothing, nor do the last: what they change is below."""


class Blended(Learner):
    """Each image is blended with another, and has the labels of both, as much of each as there is of it."""

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        share, order = torch.distributions.Beta(0.2, 0.2).sample().item(), torch.randperm(len(batch.targets))
        return self.loss_of_two(batch, share, order, batch.images.lerp(batch.images[order], 1 - share))

    def loss_of_two(self, batch: Batch, share: float, order: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of images that have the labels of two, and the logits."""
        logits = self.heads[batch.task.index](self.features(images, batch.task))
        own, other = self.objective.loss(logits, batch.targets), self.objective.loss(logits, batch.targets[order])
        return share * own + (1 - share) * other, logits


class Pasted(Blended):
    """A rectangle of another image is pasted into each."""

    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        order, sides = torch.randperm(len(batch.targets)), batch.images.shape[2:]
        lengths = [round(side * torch.rand(()).item() ** 0.25 / 2**0.5) for side in sides]  # of area 1/3 in the mean
        top, left = (int(torch.randint(side - length + 1, ())) for side, length in zip(sides, lengths, strict=True))
        there = (..., slice(top, top + lengths[0]), slice(left, left + lengths[1]))
        images = batch.images.clone()
        images[there] = batch.images[order][there]
        share = 1 - lengths[0] * lengths[1] / (sides[0] * sides[1])
        return self.loss_of_two(batch, share, order, images)


KINDS = {"ours, images blended (mixup)": Blended, "ours, images pasted together (cutmix)": Pasted}


def with_a_way_around(unit: ConvUnit, maps: Tensor, through: Any = ConvUnit.forward) -> Tensor:
    """A residual connection: the output of a unit plus its input, pooled and padded to the same shape."""
    output: Tensor = through(unit, maps)
    around = F.adaptive_avg_pool2d(maps, output.shape[2:])
    return output + F.pad(around, (0, 0, 0, 0, 0, output.shape[1] - around.shape[1]))


def tasks() -> dict[str, tuple[Task, Recipe]]:
    """By name, a task whose test images are training images held out, and its recipe."""
    first, second = (task for task in load_scenario("mixed").tasks if task.name.startswith("SVHN"))
    svhn = replace(first, test=second.train)
    cifar = held_out(load_scenario("split-cifar100").tasks[0])
    longer = replace(recipe_for(SHAPE), epochs=(EPOCHS,))
    return {
        "SVHN, 4,501 images": (svhn, replace(recipe_for(SHAPE), epochs=(8,))),
        "CIFAR 0-9, 3,000 images": (cifar, longer),
    }


def measure(learner: str, row: str, seed: int, task: Task, settings: Recipe) -> float:
    """Accuracy on the images held out, in percent."""
    kind = find_learner(learner)
    if row in KINDS:
        kind = type(f"{KINDS[row].__name__} {learner}", (KINDS[row], kind), {})
    with patch.object(ConvUnit, "forward", with_a_way_around if "around" in row else ConvUnit.forward):
        model = kind(SHAPE, settings, seed=seed)
        model.learn(task)
        right = model.predict(task.test.images, 0).cpu() == task.test.labels
    return round(100 * right.double().mean().item(), 2)


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    for seed in map(int, sys.argv[1:] or "0"):
        for name, (task, settings) in tasks().items():
            for learner in ("vc", "hrn"):
                for row, changes in ROWS.items():
                    if learner == "hrn" and not changes["feature_scale"]:
                        continue
                    done = found.setdefault(name, {}).setdefault(f"{learner}, {row}", {})
                    if f"seed {seed}" in done:
                        continue
                    done[f"seed {seed}"] = measure(learner, row, seed, task, replace(settings, **changes))
                    seeds = sorted(key.removeprefix("seed ") for key in done)
                    found["command"] = f"python experiments/training_settings.py {' '.join(seeds)}"
                    print(name, learner, row, done[f"seed {seed}"], flush=True)
                    write_json(OUTPUT, found)
