"""The demo: one network learns five pairs of handwritten digits, one after the other, and is asked about all of them.

The digits come with scikit-learn, so nothing is downloaded. Beside the network stands the control `hash-only`: heads on
the hash of the image, with nothing learned but the heads and so nothing to forget.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.columns import Columns
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from safetensors.torch import save_file
from torch import Tensor, nn

from hashroute import metrics
from hashroute.devices import find_device
from hashroute.network import HashRoutedNetwork
from hashroute.scenarios import Task, load_scenario


@dataclass(frozen=True)
class DemoSettings:
    """Settings of the demo."""

    seed: int = 0
    """Seed of weights, hash functions and batches: the same seed gives the same result."""
    epochs: int = 10
    """Passes over each task's training images."""
    device: str = "auto"
    """Where to compute: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one."""
    output: Path = Path("runs")
    """Folder in which the run gets a folder of its own."""


BATCH = 16
HEAD_RATE = 1e-3
ENCODER_RATE = 1e-4
NETWORK: dict[str, Any] = {"max_age": float("inf")}
"""Bases grow but never replace a vector, so that old tasks keep their paths (see docs/findings.md)."""


@dataclass
class DemoRun:
    """What a run gives: accuracies in percent, a row after each task, None for tasks not yet learned."""

    tasks: list[str]
    accuracy: dict[str, list[list[float | None]]]
    network: HashRoutedNetwork
    heads: nn.ModuleList
    seconds: float


def pixels(images: Tensor, device: torch.device) -> Tensor:
    """Images of uint8 as the network takes them: one fixed scaling to about -2 to 2."""
    return (images.to(device, torch.float32) / 255 - 0.5) / 0.25


def new_head(features: int) -> nn.Sequential:
    """A small classifier of two classes; the layer norm makes unit-norm features easy to learn from."""
    norm = nn.LayerNorm(features, elementwise_affine=False)
    return nn.Sequential(norm, nn.Linear(features, 60), nn.LeakyReLU(), nn.Linear(60, 2))


def learn(
    task: Task, encode: Callable[[Tensor], Tensor], encoder: nn.Module | None, head: nn.Module, epochs: int
) -> None:
    """Train an encoder, if there is one, and a task's head on that task."""
    device = next(head.parameters()).device
    images, labels = pixels(task.train.images, device), task.train.labels.to(device)
    optimizer = torch.optim.AdamW(head.parameters(), HEAD_RATE)
    if encoder is not None:
        optimizer.add_param_group({"params": encoder.parameters(), "lr": ENCODER_RATE})
        encoder.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(images)).to(device).split(BATCH):
            loss = F.cross_entropy(head(encode(images[batch])), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    if encoder is not None:
        encoder.eval()


@torch.no_grad()
def accuracies(tasks: Sequence[Task], encode: Callable[[Tensor], Tensor], heads: nn.ModuleList) -> list[float | None]:
    """Test accuracy in percent of every task that has a head, None for the others."""
    right = []
    for task, head in zip(tasks, heads, strict=False):
        images = pixels(task.test.images, next(head.parameters()).device)
        right.append((head(encode(images)).argmax(1).cpu() == task.test.labels).float().mean().item() * 100)
    return [*right, *[None] * (len(tasks) - len(heads))]


def train(settings: DemoSettings, tasks: Sequence[Task], console: Console) -> DemoRun:
    """Take the network and the control through all tasks."""
    device = find_device(settings.device)
    torch.set_num_threads(1)  # batches this small gain nothing from more, and lose a lot on a busy machine
    start = time.perf_counter()
    torch.manual_seed(settings.seed)
    network = HashRoutedNetwork((1, 8, 8), **NETWORK, seed=settings.seed).to(device)
    # Each learner: how it encodes, what of it is trained beside the heads, and its heads.
    learners: dict[str, tuple[Callable[[Tensor], Tensor], nn.Module | None, nn.ModuleList]] = {
        "network": (lambda images: network(images).features, network, nn.ModuleList()),
        "hash-only": (network.image_hash.normalised, None, nn.ModuleList()),
    }
    accuracy: dict[str, list[list[float | None]]] = {name: [] for name in learners}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=len(tasks) * len(learners))
        for task in tasks:
            for name, (encode, encoder, heads) in learners.items():
                progress.update(bar, description=f"{name} learns {task.name}")
                heads.append(new_head(network.features).to(device))
                learn(task, encode, encoder, heads[-1], settings.epochs)
                accuracy[name].append(accuracies(tasks, encode, heads))
                progress.advance(bar)
    heads = learners["network"][2]
    return DemoRun([task.name for task in tasks], accuracy, network, heads, time.perf_counter() - start)


def run_demo(settings: DemoSettings, command: str, console: Console) -> Path:
    """Train, show and save; returns the run's folder, which appears whole or not at all."""
    if settings.epochs < 1:
        raise ValueError(f"--epochs is {settings.epochs}: expected at least 1")
    if not 0 <= settings.seed < 2**63:
        raise ValueError(f"--seed is {settings.seed}: expected a whole number from 0 to below 2^63")
    unfinished = settings.output / f".demo-{time.time_ns()}"
    unfinished.mkdir(parents=True)  # before the work: an unwritable folder should not cost a run
    try:
        run = train(settings, load_scenario("digits").tasks, console)
        save(run, settings, command, unfinished)
        folder = free_name(settings.output / f"demo-seed{settings.seed}")
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    show(run, console)
    console.print(f"saved in {folder}", markup=False, highlight=False, soft_wrap=True)
    return folder


def free_name(folder: Path) -> Path:
    """This folder, or the first of folder-2, folder-3, ... that does not exist."""
    number, candidate = 1, folder
    while candidate.exists():
        number += 1
        candidate = folder.with_name(f"{folder.name}-{number}")
    return candidate


def save(run: DemoRun, settings: DemoSettings, command: str, folder: Path) -> None:
    """settings.json, result.json and model.safetensors (the network and its heads)."""
    described = {**asdict(settings), "output": str(settings.output), "network": run.network.config}
    learners: dict[str, Any] = {
        name: {"seeds": [settings.seed], "accuracy": [rows]} for name, rows in run.accuracy.items()
    }
    learners["network"]["usage"] = run.network.bases.usage.tolist()
    result = {"scenario": "digits", "tasks": run.tasks, "command": command, "learners": learners}
    (folder / "settings.json").write_text(json.dumps(described, indent=1) + "\n")
    (folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    model = nn.ModuleDict({"network": run.network, "heads": run.heads})
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, folder / "model.safetensors")


def show(run: DemoRun, console: Console) -> None:
    """The accuracy of every task after every task, both learners side by side."""
    tables = []
    for name, rows in run.accuracy.items():
        table = Table(title=f"{name}: test accuracy, %", title_justify="left", header_style="")
        table.add_column("after learning")
        for task in run.tasks:
            table.add_column(task.replace(" or ", "/"), justify="right")
        for task, row in zip(run.tasks, rows, strict=True):
            table.add_row(task, *("" if value is None else f"{value:.1f}" for value in row))
        tables.append(table)
    console.print(Columns(tables, padding=(0, 3)))
    finals = ", ".join(
        f"{name} {metrics.final(rows):.1f} % (forgot {metrics.forgetting(rows):.1f})"
        for name, rows in run.accuracy.items()
    )
    used = int((run.network.bases.usage > 0).sum())
    console.print(
        f"after the last task, mean over all: {finals}; "
        f"{used} of {len(run.network.units)} units in use; {run.seconds:.0f} s",
        highlight=False,
        soft_wrap=True,
    )
