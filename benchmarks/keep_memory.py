"""The cost of requesting memory from the system at each step: CPU time of a training step, both ways.

Each way runs three times, in turns, in processes of its own. CPU time does not depend on other processes.
usage: python benchmarks/keep_memory.py      writes benchmarks/results/keep_memory.json
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F

from hashroute import create_learner
from hashroute.learners.entries import TaskEntry
from hashroute.scenarios.svhn_cifar100 import PUBLISHED_RECIPE
from hashroute.training.workers import keep_memory

OUTPUT = Path(__file__).parent / "results" / "keep_memory.json"
STEPS = 100


def measure() -> dict[str, float]:
    """Milliseconds of CPU time, and page faults, of a training step of the published SVHN/CIFAR plain network."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    settings = PUBLISHED_RECIPE
    learner = create_learner("vc", (3, 32, 32), settings)
    learner.add_task(TaskEntry(0, "task", tuple("0123456789")))
    learner.train()
    optimizer = torch.optim.Adam(learner.parameters(), fused=True)
    images, labels = torch.randn(settings.batch_size, 3, 32, 32), torch.arange(settings.batch_size) % 10

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(learner.heads[0](learner.encoder(images)), labels).backward()
        optimizer.step()

    for _ in range(20):
        step()
    before = resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(STEPS):
        step()
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "user_ms": 1000 * (after.ru_utime - before.ru_utime) / STEPS,
        "system_ms": 1000 * (after.ru_stime - before.ru_stime) / STEPS,
        "page_faults": (after.ru_minflt - before.ru_minflt) / STEPS,
    }


if __name__ == "__main__":
    if len(sys.argv) > 1:
        if sys.argv[1] == "kept":
            keep_memory()
        print(json.dumps(measure()))
        sys.exit()
    runs: dict[str, list[dict[str, float]]] = {"returned": [], "kept": []}
    for _ in range(3):
        for way, found in runs.items():
            done = subprocess.run([sys.executable, __file__, way], check=True, capture_output=True, text=True)
            found.append(json.loads(done.stdout))
    total = {way: median(run["user_ms"] + run["system_ms"] for run in found) for way, found in runs.items()}
    result = {"torch": torch.__version__, "ratio": total["kept"] / total["returned"], "total_ms": total, "runs": runs}
    OUTPUT.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"ratio": result["ratio"], "total_ms": total}, indent=1))
