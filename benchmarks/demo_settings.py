"""What keeps the demo's old tasks: final accuracy on held-out training images, benchmarks/results/demo_settings.json.

usage: python benchmarks/demo_settings.py      (some minutes)
"""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from hashroute import demo, metrics
from hashroute.scenarios import Task, load_scenario
from hashroute.scenarios.base import hold_out

RESULTS = Path(__file__).parent / "results" / "demo_settings.json"
SEEDS = 8
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "bases of 16 that expand below 0.5": {"basis_size": 16, "tau_expand": 0.5},
    "the same, slower replacement": {"basis_size": 16, "tau_expand": 0.5, "aging_rate": 2.0},
    "the same, no replacement": {"basis_size": 16, "tau_expand": 0.5, "max_age": float("inf")},
    "bases of 3, no replacement": {"max_age": float("inf")},
}


def without_test(task: Task) -> Task:
    """The task with a quarter of its training images in place of the test images."""
    kept, held = hold_out(task.train, task.name, 0.25)
    return replace(task, train=kept, test=held)


if __name__ == "__main__":
    tasks = [without_test(task) for task in load_scenario("digits").tasks]
    rows = []
    for name, settings in VARIANTS.items():
        demo.NETWORK = settings
        runs = [demo.train(demo.DemoSettings(seed=seed), tasks, Console(quiet=True)) for seed in range(SEEDS)]
        finals = [round(metrics.final(run.accuracy["network"]), 2) for run in runs]
        rows.append({"name": name, "mean": round(statistics.mean(finals), 2), "lowest": min(finals), "final": finals})
        print(f"{name}: mean {rows[-1]['mean']}, lowest {rows[-1]['lowest']}", flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
