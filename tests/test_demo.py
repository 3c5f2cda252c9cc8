"""The demo learns, forgets little, repeats itself, and leaves a whole run or nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import nn

import hashroute
from hashroute import metrics
from hashroute.demo import NETWORK, DemoRun, DemoSettings, new_head, pixels, train
from hashroute.network import HashRoutedNetwork, Routing
from hashroute.scenarios import load_scenario

COMMAND = [sys.executable, "-m", "hashroute"]


def run_command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str], float]:
    """A demo run as a user starts it: its folder, what it printed, its seconds."""
    folder = tmp_path_factory.mktemp("demo")
    start = time.perf_counter()
    process = run_command("demo", folder=folder)
    return folder / "runs" / "demo-seed0", process, time.perf_counter() - start


def test_it_takes_seconds_and_says_what_came_out(
    finished: tuple[Path, subprocess.CompletedProcess[str], float],
) -> None:
    folder, process, seconds = finished
    assert process.returncode == 0, process.stderr
    assert seconds < 30
    assert process.stderr == ""
    assert "saved in runs/demo-seed0" in process.stdout
    result = json.loads((folder / "result.json").read_text())
    for name, learner in result["learners"].items():
        assert f"{name}: test accuracy" in process.stdout
        (matrix,) = learner["accuracy"]
        for after, row in enumerate(matrix):
            assert [value is None for value in row] == [task > after for task in range(5)]
            printed = [f"{value:.1f}" for value in row[: after + 1]]
            assert any(re.findall(r"\d+\.\d", line) == printed for line in process.stdout.splitlines())
    assert result["command"] == "hashroute demo"


def test_it_remembers(finished: tuple[Path, subprocess.CompletedProcess[str], float]) -> None:
    learners = json.loads((finished[0] / "result.json").read_text())["learners"]
    last = learners["network"]["accuracy"][0][-1]
    assert sum(last) / len(last) >= 95
    control = learners["hash-only"]["accuracy"][0]
    for before, after in pairwise(control):  # nothing learned but the heads: nothing forgotten
        assert all(old is None or old == new for old, new in zip(before, after, strict=True))


def test_the_saved_model_gives_the_saved_accuracy(
    finished: tuple[Path, subprocess.CompletedProcess[str], float],
) -> None:
    folder = finished[0]
    state = load_file(folder / "model.safetensors")
    network = HashRoutedNetwork.from_state_dict(
        {name.removeprefix("network."): tensor for name, tensor in state.items() if name.startswith("network.")}
    ).eval()
    heads = nn.ModuleList(new_head(network.features) for _ in range(5))
    heads.load_state_dict(
        {name.removeprefix("heads."): tensor for name, tensor in state.items() if name.startswith("heads.")}
    )
    saved = json.loads((folder / "result.json").read_text())["learners"]["network"]["accuracy"][0][-1]
    for task, head, expected in zip(load_scenario("digits").tasks, heads, saved, strict=True):
        images = pixels(task.test.images, torch.device("cpu"))
        right = (head(network(images).features).argmax(1) == task.test.labels).float().mean().item() * 100
        assert right == pytest.approx(expected)


def demo(seed: int, epochs: int) -> DemoRun:
    return train(DemoSettings(seed=seed, epochs=epochs), load_scenario("digits").tasks, Console(quiet=True))


def test_every_unit_that_convolved_for_some_sample_learned() -> None:
    convolved = set()

    def record(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Routing) and module.training:
            convolved.update(unit for path in output.paths.tolist() for unit, after in pairwise(path) if after >= 0)

    hook = nn.modules.module.register_module_forward_hook(record)
    try:
        run = demo(0, 1)
    finally:
        hook.remove()
    assert len(convolved) >= 2
    torch.manual_seed(0)
    fresh = HashRoutedNetwork((1, 8, 8), **NETWORK, seed=0)
    for unit in convolved:
        for name, weight in run.network.units[unit].named_parameters():
            assert not torch.equal(weight, fresh.units[unit].get_parameter(name)), f"unit {unit}: {name} did not move"


def test_same_seed_same_result() -> None:
    first, second, other = demo(1, 1), demo(1, 1), demo(2, 1)
    assert first.accuracy == second.accuracy
    assert torch.equal(first.network.bases.vectors, second.network.bases.vectors)
    assert not torch.equal(first.network.bases.vectors, other.network.bases.vectors)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_it_remembers_with_any_seed(seed: int) -> None:
    assert metrics.final(demo(seed, 10).accuracy["network"]) >= 95


def test_a_second_run_does_not_overwrite_the_first(tmp_path: Path) -> None:
    for _ in range(2):
        assert run_command("demo", "--epochs", "1", folder=tmp_path).returncode == 0
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["demo-seed0", "demo-seed0-2"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda:77"], "--device is 'cuda:77', which this machine does not have"),
        (["--device", "toaster"], "--device is 'toaster', which this machine does not have or does not know"),
        (["--epochs", "0"], "--epochs is 0: expected at least 1"),
        (["--seed", "99999999999999999999"], "--seed is 99999999999999999999: expected a whole number from 0 to below"),
        (["--output", "a-file"], "a-file"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(arguments: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "a-file").write_text("in the way")
    process = run_command("demo", *arguments, folder=tmp_path)
    assert process.returncode == 2
    assert process.stderr.startswith("hashroute: ")
    assert message in process.stderr
    assert process.stderr.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))
    assert not list(tmp_path.glob("runs/.*"))


def test_interrupted_it_leaves_nothing(tmp_path: Path) -> None:
    process = subprocess.Popen([*COMMAND, "demo", "--epochs", "1000"], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    while not list(tmp_path.glob("runs/.demo-*")):  # it has begun
        assert process.poll() is None
        time.sleep(0.05)
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "hashroute: stopped; nothing unfinished was kept\n"
    assert not list((tmp_path / "runs").iterdir())


def test_help_and_version(tmp_path: Path) -> None:
    assert run_command("--version", folder=tmp_path).stdout == f"hashroute {hashroute.__version__}\n"
    for arguments in ([], ["--help"]):
        shown = run_command(*arguments, folder=tmp_path)
        assert shown.returncode == 0
        assert "demo" in shown.stdout
    shown = run_command("demo", "--help", folder=tmp_path)
    assert all(option in shown.stdout for option in ("--seed", "--epochs", "--device", "--output"))
