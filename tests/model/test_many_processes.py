"""A kept model that two processes teach together."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from hashroute import Model
from hashroute.model.store import Store
from ranks import on_ranks
from support import digits

LESSONS = (("low", 0, 2), ("high", 2, 4), ("low", 4, 6))
"""Three lessons: the last teaches more classes of the first task."""


def some_digits(first: int, last: int) -> tuple[Tensor, list[str]]:
    """Images of these digits, and their names."""
    splits = [task.train for task in digits(3, 0.3).tasks]
    labels = torch.cat([2 * number + split.labels for number, split in enumerate(splits)])
    images = torch.cat([split.images for split in splits])  # type: ignore[arg-type]
    rows = (labels >= first) & (labels < last)
    return images[rows], [f"digit {label}" for label in labels[rows].tolist()]


def teach(folder: Path) -> list[tuple[float | None, dict[str, object], list[str]]]:
    """What was decided in each lesson."""
    model = Model(folder, size=8)
    reports = [model.learn(some_digits(*these), task, epochs=1) for task, *these in LESSONS]
    model.rename("high", "higher")
    return [(each.accuracy, each.decision, each.notes) for each in reports]


def tensors(folder: Path) -> dict[str, Tensor]:
    """All tensors of a model, by task and name."""
    store, found = Store(folder), {}
    manifest = store.read()
    for task, record in manifest.tasks.items():
        for kind, name in store.json(record)["objects"].items():
            found |= {f"{task} {kind} {each}": tensor for each, tensor in store.tensors(name).items()}
    assert manifest.shared is not None
    return found | {f"shared {name}": tensor for name, tensor in store.tensors(manifest.shared).items()}


def test_two_processes_teach_what_one_teaches(tmp_path: Path) -> None:
    alone = teach(tmp_path / "alone")
    first, second = on_ranks(teach, tmp_path / "ranks", tmp_path / "together")
    assert first == second
    assert [accuracy for accuracy, *_ in first] == [accuracy for accuracy, *_ in alone]
    expected, found = tensors(tmp_path / "alone"), tensors(tmp_path / "together")
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=name)
    assert Model(tmp_path / "together").verify() == []
    assert not (tmp_path / "together" / "unfinished").exists()


def torchrun(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "hashroute",
    ]
    where = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*command, *arguments], cwd=folder, env=where, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_torchrun_teaches_and_prints_once(tmp_path: Path) -> None:
    for place, (image, name) in enumerate(zip(*some_digits(0, 2), strict=True)):
        (tmp_path / "low" / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0].numpy()).save(tmp_path / "low" / name / f"{place}.png")
    done = torchrun(tmp_path, "learn", "kept", "low", "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("held-out images are right") == 1
    assert Model(tmp_path / "kept").verify() == []
    assert [each.name for each in Model(tmp_path / "kept").tasks()] == ["low"]


def test_torchrun_of_another_command_is_refused(tmp_path: Path) -> None:
    where = {**os.environ, "TORCHELASTIC_RUN_ID": "some", "WORLD_SIZE": "2"}
    command = [sys.executable, "-m", "hashroute", "tasks", "kept"]
    done = subprocess.run(command, cwd=tmp_path, env=where, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "torchrun has started several processes of hashroute tasks: expected hashroute learn" in done.stderr
