"""What torch.compile gives for the units of a path: processor time for images, eager and compiled, and to compile.

usage: python benchmarks/compiled.py      writes benchmarks/results/compiled.json; needs a C++ compiler
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from hashroute import create_learner
from hashroute.tasks import Split, Task

OUTPUT = Path(__file__).parent / "results" / "compiled.json"
SHAPE, IMAGES, REPEATS = (3, 32, 32), 128, 15


def main() -> None:
    """Measure a path of hrn with the usual backbone; weights do not matter."""
    torch.set_num_threads(1)
    images, labels = torch.randint(256, (40, *SHAPE), dtype=torch.uint8), torch.arange(40) % 2
    split = Split(images, labels)
    learner = create_learner("hrn", SHAPE, epochs=1, fixed_features=0)
    learner.learn(Task("task", split, split, split, ("0", "1")), progress=False)
    asked = torch.randint(256, (IMAGES, *SHAPE), dtype=torch.uint8)
    eager, eager_ms = features(learner, asked)
    for unit in learner.encoder.paths[0]:
        unit.compile()
    start = time.process_time()
    learner.encode(asked, 0)
    seconds = time.process_time() - start
    compiled, compiled_ms = features(learner, asked)
    result = {
        "images": IMAGES,
        "eager_ms": eager_ms,
        "compiled_ms": compiled_ms,
        "compile_s": seconds,
        "largest_difference": (eager - compiled).abs().max().item(),
        "torch": torch.__version__,
    }
    OUTPUT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def features(learner: torch.nn.Module, images: Tensor) -> tuple[Tensor, float]:
    """The features of images, and the processor time for them in milliseconds."""
    times = []
    for _ in range(REPEATS):
        start = time.process_time()
        found = learner.encode(images, 0)
        times.append(1000 * (time.process_time() - start))
    return found, median(times)


if __name__ == "__main__":
    main()
