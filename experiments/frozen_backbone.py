"""Class-incremental CIFAR-100 on a frozen pre-trained backbone: class means, and a linear head in closed form.

Ten tasks of ten classes, in the order of the labels. The features are the last maps of the backbone, averaged over each
image. Both heads keep sums alone: a task adds its own, so that the order of tasks does not matter and nothing is
forgotten. The closed form is the shared head of `hrn`: discriminant analysis with the penalty that the sums ask for.
Validation images are not learned: they show what other penalties would give. Test images are answered with no task
given, and among the classes of their task.
usage: python experiments/frozen_backbone.py [--backbone NAME] [--cache FILE] [--write FILE]
Features are computed once and kept in the cache file; a stopped run continues.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hashroute import Scenario, load_scenario
from hashroute.nn.closed_form import ClosedForm
from hashroute.nn.fixed_features import StemFeatures
from hashroute.nn.pretrained import FrozenStem, find_stem
from hashroute.storage import write_json
from hashroute.tasks import Split

RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
"""Other penalties, in units of the mean variance of a feature."""
BATCH = 500


def features_of(stem: FrozenStem, scenario: Scenario, cache: Path) -> tuple[dict[tuple[int, str], Tensor], float]:
    """Features of all images by task and part: (n, channels), and images per second of this run (0: all cached)."""
    parts = [(index, name) for index in range(len(scenario.tasks)) for name in ("train", "validation", "test")]
    splits = {(index, name): getattr(scenario.tasks[index], name) for index, name in parts}
    total = sum(map(len, splits.values()))
    done_file = cache.with_suffix(".done")
    done = int(done_file.read_text()) if done_file.exists() else 0
    cache.parent.mkdir(parents=True, exist_ok=True)
    kept = np.lib.format.open_memmap(
        cache, "r+" if done else "w+", dtype=np.float32, shape=None if done else (total, stem.shape[0])
    )
    if kept.shape != (total, stem.shape[0]):
        raise SystemExit(f"{cache} holds features of shape {kept.shape}: delete it, or name another file with --cache")
    start, first, row = time.process_time(), done, 0
    for key in parts:
        split: Split = splits[key]
        for rows in torch.arange(len(split)).split(BATCH):
            if row + len(rows) > done:
                images = split.images[rows].float() / 255
                kept[row : row + len(rows)] = stem(images).mean((2, 3)).numpy()
                kept.flush()
                done = row + len(rows)
                done_file.write_text(str(done))
                speed = (done - first) / (time.process_time() - start)
                print(f"{done:,} of {total:,} images, {speed:.0f} images/s", file=sys.stderr, flush=True)
            row += len(rows)
    speed = (done - first) / (time.process_time() - start) if done > first else 0.0
    found, row = {}, 0
    for key in parts:
        found[key] = torch.from_numpy(kept[row : row + len(splits[key])].copy())
        row += len(splits[key])
    return found, speed


Scores = Callable[[Tensor], Tensor]


def closed_form(features: Tensor, labels: Tensor, groups: Iterable[Tensor]) -> ClosedForm:
    """The sums of all images, group by group. groups: their rows."""
    sums = ClosedForm(features.shape[1])
    for rows in groups:
        sums.add(features[rows].round(), labels[rows])
    return sums


def class_means(features: Tensor, labels: Tensor) -> Scores:
    """The negative squared distance to the mean of each class, but for what all classes share."""
    means = torch.stack([features[labels == label].mean(0) for label in range(int(labels.max()) + 1)])
    return lambda asked: asked @ means.T - means.square().sum(1) / 2


def accuracy(score: Scores, features: Tensor, labels: Tensor, classes: int = 0) -> float:
    """Percent right among all classes; among the `classes` of an image's own task, if given."""
    scores = score(features)
    if classes:
        own = torch.arange(scores.shape[1]) // classes == (labels // classes)[:, None]
        scores = scores.masked_fill(~own, -torch.inf)
    return round(100 * (scores.argmax(1) == labels).double().mean().item(), 2)


def measure(scenario: Scenario, features: dict[tuple[int, str], Tensor]) -> dict[str, Any]:
    """Accuracy on the test images of all tasks, after the last task."""
    each, tasks = scenario.tasks[0].classes, range(len(scenario.tasks))

    def of(*names: str) -> tuple[Tensor, Tensor]:
        """Features and labels over all classes, task by task."""
        keys = [(index, name) for index in tasks for name in names]
        labels = [getattr(scenario.tasks[index], name).labels + index * each for index, name in keys]
        return torch.cat([features[key] for key in keys]), torch.cat(labels)

    train, validation, test = of("train"), of("validation"), of("test")
    by_task = [(train[1] // each == index).nonzero()[:, 0] for index in tasks]
    shuffled = [torch.randperm(len(train[0]), generator=torch.Generator().manual_seed(0))]
    sums, at_once = (closed_form(*train, groups) for groups in (by_task, shuffled))
    ridge = sums.shrinkage()
    tried = {each: accuracy(head, *validation) for each, head in zip(RIDGES, sums.solutions(RIDGES), strict=True)}
    one, other = sums.solve(ridge), at_once.solve(at_once.shrinkage())
    heads: dict[str, Scores] = {
        "class means": class_means(*train),
        "closed form, task by task": one,
        "closed form, all classes at once": other,
    }
    return {
        "ridge": ridge,
        "validation": {"ridge of the sums": accuracy(one, *validation), **{str(each): tried[each] for each in RIDGES}},
        "same_weights_in_any_order": torch.equal(one.weight, other.weight),
        "rows": [
            {"head": name, "task_free": accuracy(score, *test), "task_known": accuracy(score, *test, each)}
            for name, score in heads.items()
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--backbone", default="efficientnet-lite0@128")
    parser.add_argument("--cache", type=Path, default=Path("build/frozen_backbone.npy"))
    parser.add_argument("--write", type=Path, default=Path(__file__).parent / "results" / "frozen_backbone.json")
    arguments = parser.parse_args()
    stem, scenario = find_stem(arguments.backbone), load_scenario("split-cifar100")
    features, speed = features_of(stem, scenario, arguments.cache)
    fixed = StemFeatures(stem, scenario.image_shape)
    fixed.draw(seed=0)
    features = {key: fixed(each[:, :, None, None]) for key, each in features.items()}
    result = {
        "scenario": scenario.name,
        "backbone": stem.describe(),
        "features": stem.shape[0],
        "images": [sum(counts) for counts in zip(*scenario.images, strict=True)],
        "command": f"python experiments/frozen_backbone.py --backbone {arguments.backbone}",
        **measure(scenario, features),
    }
    for row in result["rows"]:
        print(f"{row['head']:34} task-free {row['task_free']:6.2f}   task known {row['task_known']:6.2f}")
    if speed:
        print(f"{speed:.0f} images/s of processor time")
    write_json(arguments.write, result)


if __name__ == "__main__":
    main()
