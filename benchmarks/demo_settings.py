"""What keeps the demo's old tasks: final accuracy on held-out training images, benchmarks/results/demo_settings.json.

usage: python benchmarks/demo_settings.py      (some minutes)
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from sklearn.model_selection import train_test_split

from hashroute import demo

RESULTS = Path(__file__).parent / "results" / "demo_settings.json"
SEEDS = 8
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "bases of 16 that expand below 0.5": {"basis_size": 16, "tau_expand": 0.5},
    "the same, slower replacement": {"basis_size": 16, "tau_expand": 0.5, "aging_rate": 2.0},
    "the same, no replacement": {"basis_size": 16, "tau_expand": 0.5, "max_age": float("inf")},
    "bases of 3, no replacement": {"max_age": float("inf")},
}


def held_out_pairs(device: torch.device) -> list[demo.DigitPair]:
    """The demo's tasks with a quarter of their training images in place of the test images."""
    tasks = []
    for task in digit_pairs(device):
        images, labels = task.train
        kept, held = train_test_split(range(len(labels)), test_size=0.25, random_state=1, stratify=labels)
        tasks.append(demo.DigitPair(task.name, (images[kept], labels[kept]), (images[held], labels[held])))
    return tasks


if __name__ == "__main__":
    digit_pairs, demo.digit_pairs = demo.digit_pairs, held_out_pairs
    rows = []
    for name, settings in VARIANTS.items():
        demo.NETWORK = settings
        runs = [demo.train(demo.DemoSettings(seed=seed), Console(quiet=True)) for seed in range(SEEDS)]
        finals = [round(run.final("hrn"), 2) for run in runs]
        rows.append({"name": name, "mean": round(statistics.mean(finals), 2), "lowest": min(finals), "final": finals})
        print(f"{name}: mean {rows[-1]['mean']}, lowest {rows[-1]['lowest']}", flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
