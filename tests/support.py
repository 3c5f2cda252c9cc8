"""What several tests share."""

from __future__ import annotations

import importlib.util
import os
import pty
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hashroute import HashRoutedNetwork, UnitSpec

NEEDS = {
    "digits": [],
    "pairwise-mnist": ["mnist"],
    "fashion-mnist": ["fashion-mnist", "mnist"],
    "svhn-cifar100": ["svhn", "cifar-100"],
    "split-cifar100": ["cifar-100"],
    "mixed": ["svhn", "cifar-100", "mnist", "fashion-mnist"],
}
"""The data sets that each scenario is made of."""

SMALL_UNITS = (
    UnitSpec(4, 3, 1, 1, norm_groups=1),
    UnitSpec(6, 3, 2, 1),
    UnitSpec(3, 2, 1, 1, max_pool=2),
    UnitSpec(4, 3, 2, 1, norm_groups=2),
)


def small_network(*, seed: int = 0, **settings: Any) -> HashRoutedNetwork:
    """Four small units for 8 x 8 images of two channels."""
    torch.manual_seed(seed)
    return HashRoutedNetwork((2, 8, 8), **{"units": SMALL_UNITS, "features": 32, "seed": seed, **settings})


def some_images(n: int = 16, seed: int = 0) -> Tensor:
    return torch.randn(n, 2, 8, 8, generator=torch.Generator().manual_seed(seed))


def train(network: HashRoutedNetwork, steps: int = 20, seed: int = 0, optimizer: Any = None) -> list[float]:
    """A few steps on a made-up task; returns the losses."""
    optimizer = optimizer or torch.optim.Adam(network.parameters(), 1e-2)
    target = torch.randn(network.features, generator=torch.Generator().manual_seed(seed))
    losses = []
    for step in range(steps):
        loss = (network(some_images(seed=1000 * seed + step)).features @ target - 1).square().mean()
        optimizer.zero_grad()
        if loss.requires_grad:
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def import_file(path: Path) -> Any:
    """The module in a file that is not part of the package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_a_terminal(command: Sequence[str], folder: Path) -> str:
    """What a command writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    where = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, cwd=folder, env=where, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        with suppress(OSError):  # which is how a terminal says that nobody writes to it any more
            while part := os.read(ours, 65536):
                said += part
    os.close(ours)
    assert process.returncode == 0, said.decode()
    return said.decode()
