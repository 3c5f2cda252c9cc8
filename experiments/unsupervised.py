"""Features of unlabelled streams that need no training, after the last phase, in the protocol of STAM.

Each stream is seen once, in an order that the seed draws within each phase. Kept are sums; no image is. Then few
labelled training images name 100 test images of each class, and these are clustered: means over five draws.
The choices in `nn/stream_features.py` were made with validation images in place of test images.
usage: python experiments/unsupervised.py [STREAM ...]      (minutes; needs MNIST, SVHN and CIFAR-100)
Writes experiments/results/unsupervised.json. What the file has is not measured again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute import load_scenario
from hashroute.nn.hashing import FeatureHash
from hashroute.nn.stream_features import StreamFeatures
from hashroute.scenarios import probe_labels
from hashroute.storage import write_json
from hashroute.tasks import Scenario
from hashroute.training.features import FeatureProbe, joined

OUTPUT = Path(__file__).parent / "results" / "unsupervised.json"
STREAMS = ("upl-mnist", "upl-svhn", "upl-cifar100")
SEEDS = 3
COMPONENTS = 150

Encode = Callable[[Tensor], Tensor]


def encoders(scenario: Scenario, seed: int) -> dict[str, Encode]:
    """What turns images into features, by name, after a stream."""
    stream, order = StreamFeatures(scenario.image_shape, seed=seed), torch.Generator().manual_seed(seed)
    size = torch.Size(scenario.image_shape).numel()
    count, total, square = 0, torch.zeros(size, dtype=torch.float64), torch.zeros(size, size, dtype=torch.float64)
    for task in scenario.tasks:
        for rows in torch.randperm(len(task.train), generator=order).split(1000):
            images = task.train.images[rows]
            stream.observe(images)
            flat = pixels(images)
            count, total, square = count + len(flat), total + flat.sum(0), square + (flat.T @ flat).double()
    mean = total / count
    components = torch.linalg.eigh(square / count - mean[:, None] * mean)[1][:, -COMPONENTS:].float()
    hashing = FeatureHash(1000, seed)
    found: dict[str, Encode] = {
        "pixels": pixels,
        "hash of pixels": lambda images: hashing.normalised(pixels(images).view(images.shape)),
        "PCA of pixels": lambda images: pixels(images) @ components,
        "patch features": stream.fixed,
        "stream features": stream,
    }
    directions = stream.directions().principal.shape[1]
    found["stream features, principal ones alone"] = lambda images: stream(images)[:, :directions]
    return found


def pixels(images: Tensor) -> Tensor:
    """(n, numbers) pixels from 0 to 1."""
    return images.flatten(1).float() / 255


def measure(name: str, scenario: Scenario, seed: int) -> list[dict[str, Any]]:
    """A row for each kind of features."""
    start = time.process_time()
    tasks = scenario.tasks
    labelled, asked = joined(tasks, [task.train for task in tasks]), joined(tasks, [task.test for task in tasks])
    probe, rows = FeatureProbe(probe_labels(name)), []
    for kind, encode in encoders(scenario, seed).items():
        found = probe.measure(encode, labelled, asked, seed)
        row = {"stream": name, "seed": seed, "features": kind}
        rows.append(row | {part: round(value, 2) for part, value in found.items()})
        print(rows[-1], f"{time.process_time() - start:.0f} s", flush=True)
    return rows


if __name__ == "__main__":
    torch.set_num_threads(1)
    results: dict[str, Any] = {"command": "python experiments/unsupervised.py", "rows": []}
    if OUTPUT.exists():
        results = json.loads(OUTPUT.read_text())
    for seed in range(SEEDS):
        for name in sys.argv[1:] or STREAMS:
            if not any((row["stream"], row["seed"]) == (name, seed) for row in results["rows"]):
                results["rows"] += measure(name, load_scenario(name), seed)
                write_json(OUTPUT, results)
