"""Memory of a task of 100,000 photographs of 224 x 224 pixels, which are read from files while training.

The files are hard links to 400 different JPEG files, so that they take little space on the disk. Each link is opened,
decoded and resized like any other file. `vc` learns the task for one epoch, with a small backbone and one thread.
usage: python benchmarks/photographs.py [COUNT ...]      writes benchmarks/results/photographs.json
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from hashroute import UnitSpec, create_learner, load_scenario
from hashroute.recipe import recipe_for

OUTPUT = Path(__file__).parent / "results" / "photographs.json"
COUNTS = (10_000, 100_000)
DISTINCT = 400
SHAPE = (3, 224, 224)


def write_photographs(folder: Path, count: int) -> None:
    """Two classes of blurred noise, brighter on the left or on the right, as folder/task/CLASS/NUMBER.jpg."""
    random = np.random.default_rng(0)
    for number in range(count):
        label = number % 2
        path = folder / "task" / ("left", "right")[label] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        if number < DISTINCT:
            pixels = random.integers(0, 150, (16, 16, 3), np.uint8)
            pixels[:, 8 * label : 8 * label + 8] += 100
            Image.fromarray(pixels).resize(SHAPE[1:], Image.Resampling.BICUBIC).save(path, quality=85)
        else:
            os.link(path.with_name(f"{number % DISTINCT}.jpg"), path)


def measure(folder: str) -> dict[str, float]:
    """Learn the task in a folder; megabytes of the whole process at most, and seconds of CPU time."""
    torch.set_num_threads(1)
    recipe = replace(recipe_for(SHAPE, 2, (UnitSpec(8, 8, 8), UnitSpec(8, 3, 3))), epochs=(1,))
    learner = create_learner("vc", SHAPE, recipe)
    torch.optim.Adam(learner.parameters())  # the first one imports a part of torch
    idle = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    (task,) = load_scenario("folders", folder=folder, size=224).tasks
    learner.learn(task, progress=False)
    right = learner.scores(task.test, learner.tasks[0]).double().mean().item()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "photographs": sum(map(len, (task.train, task.validation, task.test))),
        "pixels_mb": round(sum(map(len, (task.train, task.validation, task.test))) * np.prod(SHAPE) / 1e6),
        "before_mb": round(idle / 1024),
        "peak_mb": round(used.ru_maxrss / 1024),
        "cpu_seconds": round(used.ru_utime + used.ru_stime),
        "test_accuracy": round(100 * right, 1),
    }


if __name__ == "__main__":
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(sys.argv[2])))
        sys.exit()
    rows = []
    for count in [int(each) for each in sys.argv[1:]] or COUNTS:
        with tempfile.TemporaryDirectory() as name:
            write_photographs(Path(name), count)
            command = [sys.executable, __file__, "measure", name]
            rows.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        print(rows[-1], flush=True)
    OUTPUT.write_text(json.dumps(rows, indent=1) + "\n")
