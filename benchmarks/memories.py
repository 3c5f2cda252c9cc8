"""What a memory should be of: how often an image finds its own data by likelihood, and how far kinds of data are apart.

An image is taken for the data of its most likely memory, or for the kind of data whose memories make it most likely in
the mean: of ten memories of one kind, one is easily likelier than the only one of another.

Memories are made of training images, as `hrn` makes them, and asked about validation images; test images are not used.
usage: python benchmarks/memories.py      (two minutes; needs the data sets) writes benchmarks/results/memories.json
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, pad

from hashroute.hashing import FeatureHash
from hashroute.learners.base import evenly
from hashroute.memory import EDGES, Memories, edges
from hashroute.scenarios import Scenario, load_scenario

OUTPUT = Path(__file__).parent / "results" / "memories.json"
FEATURES = 1000


def slopes(images: Tensor) -> Tensor:
    """Square roots of mean slopes on a grid: edges with colours as they are, and without curvatures."""
    across, down = images.diff(dim=3), images.diff(dim=2)
    parts = [each.clamp_min(0) for slope in (across, down) for each in (slope, -slope)]
    return torch.cat([adaptive_avg_pool2d(each, EDGES) for each in parts], 1).sqrt()


SEEN: dict[str, Callable[[Tensor], Tensor]] = {
    "pixels": lambda images: images / 255 - 0.5,
    "pixels less their surroundings": lambda images: images - avg_pool2d(pad(images, (2,) * 4, mode="replicate"), 5, 1),
    "slopes of colours": slopes,
    "edges": edges,
}


def measure(scenario: Scenario, what: str, directions: int, own: str) -> dict[str, object]:
    """Percent of validation images that are taken for the right task, or data set; distances of tasks."""
    phi = FeatureHash(FEATURES, 255)

    def hashed(images: Tensor, count: int) -> Tensor:
        return phi.normalised(SEEN[what](images[evenly(len(images), count)].float()))

    memories = Memories(FEATURES, directions)
    for task in scenario.tasks:
        memories.write(hashed(task.train.images, 2000), hashed(task.validation.images, 500))
    kinds = [task.name if own == "task" else task.dataset for task in scenario.tasks]
    several = sorted(set(kinds))
    member = torch.tensor([[float(kind == each) for each in several] for kind in kinds])
    right, by_mean, distances = [], [], []
    for task, kind in zip(scenario.tasks, kinds, strict=True):
        held_out = hashed(task.validation.images, 500)
        likely = memories.log_likelihood(held_out)
        right.append(100 * fmean(kinds[memory] == kind for memory in likely.argmax(1).tolist()))
        mean = likely @ (member / member.sum(0))
        by_mean.append(100 * fmean(several[found] == kind for found in mean.argmax(1).tolist()))
        distances.append([round(value, 1) for value in memories.divergence(held_out).tolist()])
    return {
        "scenario": scenario.name,
        "memory of": what,
        "directions": directions,
        f"right {own}": round(fmean(right), 2),
        f"right {own}, by the mean": round(fmean(by_mean), 2),
        "each": [round(value, 1) for value in right],
        "each, by the mean": [round(value, 1) for value in by_mean],
        "distances": distances,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    rows = []
    for name, own in (("mixed", "data set"), ("svhn-cifar100", "data set"), ("pairwise-mnist", "task")):
        scenario = load_scenario(name)
        for what in SEEN:
            for directions in (16, 24, 64):
                rows.append(measure(scenario, what, directions, own))
                print({key: value for key, value in rows[-1].items() if key != "distances"}, flush=True)
    OUTPUT.write_text(json.dumps({"command": "python benchmarks/memories.py", "rows": rows}) + "\n")
