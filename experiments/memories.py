"""What a memory should store: how often the most likely memory is that of an image's own data.

An image is assigned to the data of its most likely memory, or to the kind of data whose memories make it most likely in
the mean: the best of ten memories of one kind easily wins over the only memory of another kind.

For given runs of `hrn`, memories of the maps of each level of a task's path are measured, too. The last measurement is
how many images of unknown data all memories find unlikely.

Memories are made from training images, as in `hrn`, and tested on validation images. Test images are not used.
usage: python experiments/memories.py [RUN ...]      RUN: folders of finished runs, such as runs/mixed/hrn-seed0
Two minutes; needs the data sets. Writes experiments/results/memories.json: what is in it of other runs stays.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d, avg_pool2d, pad

from hashroute import load_learner
from hashroute.learners.hrn import HRN
from hashroute.learners.randomness import evenly_spaced_indices
from hashroute.nn.gaussian import EDGES, GaussianMemories, edges
from hashroute.nn.hashing import FeatureHash
from hashroute.scenarios import load_scenario
from hashroute.tasks import Scenario

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
        return phi.normalised(SEEN[what](images[evenly_spaced_indices(len(images), count)].float()))

    memories = GaussianMemories(FEATURES, directions)
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


@torch.no_grad()
def measure_levels(learner: HRN, scenario: Scenario) -> dict[str, float]:
    """Percent of validation images that find their data set by memories of edges, and of the maps of each level."""
    levels = learner.backbone.depth
    phi = FeatureHash(FEATURES, 255)

    def hashed(images: Tensor, task: int) -> list[Tensor]:
        """Of edges, then of the maps of each level of a task's path: (n, features) each."""
        parts = []
        for part in images.split(128):
            entry = learner.entries[task]
            maps = list(learner.encoder.maps(learner.normalise(part, entry), entry.path))[1:]
            maps = [each - each.mean((1, 2, 3), keepdim=True) for each in maps]
            parts.append([phi.normalised(each) for each in (edges(part.float()), *maps)])
        return [torch.cat(several) for several in zip(*parts, strict=True)]

    held_out = [task.validation.images[evenly_spaced_indices(len(task.validation), 500)] for task in scenario.tasks]
    everything = torch.cat(held_out)
    likely = torch.zeros(levels + 1, len(everything), len(scenario.tasks), dtype=torch.float64)
    for index, task in enumerate(scenario.tasks):
        seen = hashed(task.train.images[evenly_spaced_indices(len(task.train), 2000)], index)
        for level, (ours, asked) in enumerate(zip(seen, hashed(everything, index), strict=True)):
            memory = GaussianMemories(FEATURES, learner.options.directions)
            memory.write(ours, asked[:1])
            likely[level, :, index] = memory.log_likelihood(asked)[:, 0]
    own = [task.dataset for task, images in zip(scenario.tasks, held_out, strict=True) for _ in images]

    def percent(score: Tensor) -> float:
        found = [scenario.tasks[task].dataset for task in score.argmax(1).tolist()]
        return round(100 * fmean(one == other for one, other in zip(found, own, strict=True)), 2)

    names = [f"maps of level {level}" for level in range(1, levels + 1)]
    alone = {name: percent(score) for name, score in zip(["edges", *names], likely, strict=True)}
    both = {f"edges and {name}": percent(likely[0] + more) for name, more in zip(names, likely[1:], strict=True)}
    return alone | both


def measure_unfamiliar(scenario: Scenario) -> list[dict[str, object]]:
    """Percent of validation images of each data set of `mixed` that are less likely than usual by so many deviations.

    By all memories of the data sets that are known: each alone, and all but one.
    """
    phi = FeatureHash(FEATURES, 255)
    first = {task.dataset: task for task in reversed(scenario.tasks)}  # of each data set the first part
    hashed = {
        name: [
            phi.normalised(edges(split.images[evenly_spaced_indices(len(split), count)].float()))
            for split, count in parts
        ]
        for name, task in first.items()
        for parts in [((task.train, 2000), (task.validation, 500))]
    }
    rows: list[dict[str, object]] = []
    for known in [{name} for name in first] + [set(first) - {name} for name in first]:
        memories = GaussianMemories(FEATURES, 24)
        for name in sorted(known):
            memories.write(*hashed[name])
        usual = memories.usual
        familiar = {
            name: ((memories.log_likelihood(held_out) - usual[:, 0]) / usual[:, 1]).amax(1)
            for name, (_, held_out) in hashed.items()
        }
        for deviations in (2, 3, 4, 5):
            flagged = {
                name: round(100 * (each < -deviations).double().mean().item(), 1) for name, each in familiar.items()
            }
            rows.append({"known": sorted(known), "deviations": deviations, "flagged": flagged})
            print(rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    found = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    runs = found.setdefault("runs", {})
    for folder in map(Path, sys.argv[1:]):
        learner = load_learner(folder)
        assert isinstance(learner, HRN), f"{folder} is not a run of hrn"
        name = f"{folder.parent.name}/{folder.name}"
        runs[name] = measure_levels(learner, load_scenario(folder.parent.name))
        print(name, runs[name], flush=True)
    unfamiliar = measure_unfamiliar(load_scenario("mixed"))
    rows = []
    for name, own in (("mixed", "data set"), ("svhn-cifar100", "data set"), ("pairwise-mnist", "task")):
        scenario = load_scenario(name)
        for what in SEEN:
            for directions in (16, 24, 64):
                rows.append(measure(scenario, what, directions, own))
                print({key: value for key, value in rows[-1].items() if key != "distances"}, flush=True)
    command = " ".join(["python experiments/memories.py", *(f"runs/{name}" for name in runs)])
    found = {"command": command, "rows": rows, "unfamiliar": unfamiliar, "runs": runs}
    OUTPUT.write_text(json.dumps(found) + "\n")
