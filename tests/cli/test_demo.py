"""The demo learns, forgets little, repeats itself, and leaves a whole run or nothing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

import hashroute
from hashroute import create_learner, load_learner, load_scenario, run
from hashroute.cli.app import main
from hashroute.cli.demo import DemoSettings, train
from hashroute.nn.network import Routing
from hashroute.recipe import recipe_for
from hashroute.training import metrics
from support import on_a_terminal

COMMAND = [sys.executable, "-m", "hashroute"]


def run_command(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str], float]:
    """A demo run as a user starts it: its folder, what it printed, its seconds of a processor."""
    folder = tmp_path_factory.mktemp("demo")
    start = processor_seconds()
    process = run_command("demo", folder=folder)
    return folder / "runs" / "demo-seed0", process, processor_seconds() - start


def processor_seconds() -> float:
    """Of all processes that were started from here and are over: other work on the machine does not count."""
    used = os.times()
    return used.children_user + used.children_system


def test_it_takes_seconds_and_says_what_came_out(
    finished: tuple[Path, subprocess.CompletedProcess[str], float],
) -> None:
    folder, process, seconds = finished
    assert process.returncode == 0, process.stderr
    assert seconds < 30
    assert process.stderr == ""
    assert "saved in runs/demo-seed0" in process.stdout
    lines = process.stdout.splitlines()
    result = json.loads((folder / "results.json").read_text())
    assert list(result["learners"]) == ["hrn", "hrn-paper", "vc", "hash-only", "separate"]
    for name, learner in result["learners"].items():
        (matrix,) = learner["accuracy"]
        summary = [metrics.final(matrix), fmean(metrics.best_ever(matrix)), metrics.forgetting(matrix)]
        summary.append(learner["task_free"][0]["all_classes"])
        (line,) = (line for line in lines if line.startswith(f"│ {name} "))
        assert re.findall(r"\d+\.\d", line) == [f"{value:.1f}" for value in summary]
        for after, row in enumerate(matrix):
            assert [value is None for value in row] == [task > after for task in range(5)]
    assert "hrn: test accuracy, %" in process.stdout
    for after, row in enumerate(result["learners"]["hrn"]["accuracy"][0]):
        printed = [f"{value:.1f}" for value in row[: after + 1]]
        assert any(re.findall(r"\d+\.\d", line) == printed for line in lines)
    decisions = result["learners"]["hrn"]["decisions"][0]
    assert len(decisions) == 5
    assert [f"  {decision['said']}" for decision in decisions] == [line.rstrip() for line in lines[-7:-2]]
    assert lines[-1] == "report in runs/demo-seed0/report.html"
    assert "hash-only" in (folder / "report.html").read_text()
    assert len(list((folder / "figures").glob("*.pdf"))) > 5
    assert result["command"] == "hashroute demo"


def test_it_remembers(finished: tuple[Path, subprocess.CompletedProcess[str], float]) -> None:
    learners = json.loads((finished[0] / "results.json").read_text())["learners"]
    assert metrics.final(learners["hrn"]["accuracy"][0]) >= 95
    for name in ("hrn", "hash-only"):  # units are frozen, or there are none: nothing is forgotten
        for before, after in pairwise(learners[name]["accuracy"][0]):
            assert all(old is None or old == new for old, new in zip(before, after, strict=True))


def test_the_saved_models_give_the_saved_accuracy(
    finished: tuple[Path, subprocess.CompletedProcess[str], float],
) -> None:
    learners = json.loads((finished[0] / "results.json").read_text())["learners"]
    for name, entry in learners.items():
        folder = finished[0] / f"{name}-seed0"
        learner = load_learner(folder)
        assert json.loads((folder / "settings.json").read_text())["command"] == "hashroute demo"
        for number, task in enumerate(load_scenario("digits").tasks):
            right = (learner.predict(task.test.images, number) == task.test.labels).float().mean().item() * 100
            assert right == pytest.approx(entry["accuracy"][0][-1][number])


def demo(seed: int, epochs: int, folder: Path) -> dict[str, Any]:
    return train(DemoSettings(seed=seed, epochs=epochs), "", folder, Console(quiet=True))["learners"]


def test_every_unit_that_convolved_for_some_sample_learned() -> None:
    convolved = set()

    def record(module: nn.Module, _: object, output: object) -> None:
        if isinstance(output, Routing) and module.training:
            convolved.update(unit for path in output.paths.tolist() for unit, after in pairwise(path) if after >= 0)

    hook = nn.modules.module.register_module_forward_hook(record)
    try:
        settings = replace(recipe_for((1, 8, 8), classes=2), epochs=(3,))
        learner: Any = run(load_scenario("digits"), "hrn-paper", settings)[1]
    finally:
        hook.remove()
    assert len(convolved) >= 2
    torch.manual_seed(0)
    fresh: Any = create_learner("hrn-paper", learner.image_shape, learner.recipe, 0, **vars(learner.options))
    for unit in convolved:
        for name, weight in learner.encoder.units[unit].named_parameters():
            before = fresh.encoder.units[unit].get_parameter(name)
            assert not torch.equal(weight, before), f"unit {unit}: {name} did not move"


def test_same_seed_same_result(tmp_path: Path) -> None:
    largest = 2**63 - 1
    first, second, other = (demo(seed, 1, tmp_path / str(n)) for n, seed in enumerate((1, 1, largest)))
    assert list(first) == list(other) == ["hrn", "hrn-paper", "vc", "hash-only", "separate"]
    for name in first:
        assert first[name]["accuracy"] == second[name]["accuracy"]
        one, again = ((tmp_path / n / f"{name}-seed1" / "model.safetensors").read_bytes() for n in ("0", "1"))
        assert one == again
        assert one != (tmp_path / "2" / f"{name}-seed{largest}" / "model.safetensors").read_bytes()
    assert first != other


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_it_remembers_with_any_seed(seed: int, tmp_path: Path) -> None:
    learners = demo(seed, 10, tmp_path)
    assert metrics.final(learners["hrn"]["accuracy"][0]) >= 95
    assert metrics.forgetting(learners["hrn"]["accuracy"][0]) == 0


def test_a_second_run_on_a_terminal_shows_how_far_it_is_and_does_not_overwrite_the_first(tmp_path: Path) -> None:
    first = tmp_path / "runs" / "demo-seed0"
    first.mkdir(parents=True)
    (first / "results.json").write_text("of the first")
    said = on_a_terminal([*COMMAND, "demo", "--epochs", "1"], tmp_path)
    assert re.search(r"(hrn|hrn-paper|vc|hash-only) learns \d or \d .*━", said)
    assert "saved in runs/demo-seed0-2" in said
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["demo-seed0", "demo-seed0-2"]
    assert [path.read_text() for path in first.iterdir()] == ["of the first"]
    assert json.loads((tmp_path / "runs" / "demo-seed0-2" / "results.json").read_text())["scenario"] == "digits"


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
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a-file").write_text("in the way")
    assert main(["demo", *arguments]) == 2
    _, said = capsys.readouterr()
    assert said.startswith("hashroute: ")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.glob("runs/*"))
    assert not list(tmp_path.glob("runs/.*"))


def test_a_mistake_ends_the_process_with_code_2(tmp_path: Path) -> None:
    process = run_command("demo", "--epochs", "0", folder=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == "hashroute: --epochs is 0: expected at least 1\n"


def test_interrupted_it_leaves_nothing(tmp_path: Path) -> None:
    command = [*COMMAND, "demo", "--epochs", "1000"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        try:
            while not list(tmp_path.glob("runs/.demo-*")):  # it has begun
                assert process.poll() is None
                time.sleep(0.05)
            time.sleep(0.5)
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()  # one that is not stopped would go on for hours
    assert process.returncode == 130
    assert errors == "hashroute: stopped; nothing unfinished was kept\n"
    assert not list((tmp_path / "runs").iterdir())


def test_interrupted_within_code_made_from_text_it_ends_with_its_own_code(tmp_path: Path) -> None:
    script = """
import sys, types
from hashroute.cli import app as cli

def interrupt(**_):
    exec("raise KeyboardInterrupt")

cli.app = types.SimpleNamespace(cli=interrupt)
sys.exit(cli.main(["demo"]))
"""
    (tmp_path / "script.py").write_text(script)
    process = subprocess.run(
        [sys.executable, "-m", "script"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (process.returncode, process.stderr) == (130, "hashroute: stopped; nothing unfinished was kept\n")


def test_help_and_version(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("--version", folder=tmp_path).stdout == f"hashroute {hashroute.__version__}\n"
    shown = run_command(folder=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "demo" in shown.stdout
    for arguments, said in (
        (["--help"], ["demo"]),
        (["demo", "--help"], ["--seed", "--epochs", "--device", "--output"]),
    ):
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == 0
        printed = capsys.readouterr().out
        assert all(each in printed for each in said)
