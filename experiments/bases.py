"""Bases that replace vectors, and bases that do not: what digits keep of old tasks, experiments/results/bases.json.

usage: python experiments/bases.py      (some minutes)

A hash-routed network learns five pairs of handwritten digits, one after the other; the numbers are its final accuracies
on held-out training images.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hashroute import HashRoutedNetwork
from hashroute.scenarios import load_scenario
from hashroute.tasks import Task, hold_out

RESULTS = Path(__file__).parent / "results" / "bases.json"
SEEDS = 8
EPOCHS = 10
BATCH = 16
HEAD_RATE = 1e-3
ENCODER_RATE = 1e-4
VARIANTS: dict[str, dict[str, Any]] = {
    "as published": {},
    "bases of 16 that expand below 0.5": {"basis_size": 16, "tau_expand": 0.5},
    "the same, slower replacement": {"basis_size": 16, "tau_expand": 0.5, "aging_rate": 2.0},
    "the same, no replacement": {"basis_size": 16, "tau_expand": 0.5, "max_age": float("inf")},
    "bases of 3, no replacement": {"max_age": float("inf")},
}


def final_accuracy(tasks: Sequence[Task], settings: dict[str, Any], seed: int) -> float:
    """Learn all tasks one after the other; returns the mean accuracy at the end, in percent."""
    torch.manual_seed(seed)
    network = HashRoutedNetwork((1, 8, 8), **settings, seed=seed)
    heads = []
    for task in tasks:
        heads.append(new_head(network.features))
        learn(task, network, heads[-1])
        with torch.no_grad():
            right = [
                (head(network(pixels(task.test.images)).features).argmax(1) == task.test.labels).float().mean().item()
                for task, head in zip(tasks, heads, strict=False)
            ]
    return 100 * statistics.fmean(right)


def learn(task: Task, network: HashRoutedNetwork, head: nn.Module) -> None:
    """Train the network and a task's head on that task."""
    images, labels = pixels(task.train.images), task.train.labels
    optimizer = torch.optim.AdamW(head.parameters(), HEAD_RATE)
    optimizer.add_param_group({"params": network.parameters(), "lr": ENCODER_RATE})
    network.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            loss = F.cross_entropy(head(network(images[batch]).features), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()


def new_head(features: int) -> nn.Sequential:
    """A small classifier of two classes; the layer norm makes unit-norm features easy to learn from."""
    norm = nn.LayerNorm(features, elementwise_affine=False)
    return nn.Sequential(norm, nn.Linear(features, 60), nn.LeakyReLU(), nn.Linear(60, 2))


def pixels(images: Tensor) -> Tensor:
    """Images of uint8 as the network takes them: one fixed scaling to about -2 to 2."""
    return (images.float() / 255 - 0.5) / 0.25


def held_out(task: Task) -> Task:
    """The task with a quarter of its training images in place of the test images."""
    kept, held = hold_out(task.train, task.name, 0.25)
    return Task(task.name, kept, task.validation, held, task.class_names)


if __name__ == "__main__":
    torch.set_num_threads(1)
    tasks = [held_out(task) for task in load_scenario("digits").tasks]
    rows = []
    for name, settings in VARIANTS.items():
        finals = [round(final_accuracy(tasks, settings, seed), 2) for seed in range(SEEDS)]
        rows.append({"name": name, "mean": round(statistics.mean(finals), 2), "lowest": min(finals), "final": finals})
        print(f"{name}: mean {rows[-1]['mean']}, lowest {rows[-1]['lowest']}", flush=True)
        RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
