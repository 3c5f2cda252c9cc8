"""The demo learns, forgets little, repeats itself, and leaves complete runs or nothing."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from rich.console import Console

from hashroute import Comparison, load_learner, load_scenario
from hashroute.cli.demo import LEARNERS, DemoSettings, train
from hashroute.reporting.decisions import describe
from hashroute.training import metrics
from programs import Program, hashroute, on_a_terminal
from run_files import read_json
from support import tensors_of

DEMO = [sys.executable, "-m", "hashroute", "demo"]
Command = Callable[..., tuple[int, str, str]]
Finished = tuple[Path, subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A short demo, as a user starts it: its folder, and its process."""
    folder = tmp_path_factory.mktemp("demo")
    return folder / "runs" / "demo-seed0", hashroute("demo", "--epochs", 5, folder=folder)


def test_it_prints_what_came_out(finished: Finished) -> None:
    folder, process = finished
    assert (process.returncode, process.stderr) == (0, "")
    assert "saved in runs/demo-seed0" in process.stdout
    lines = process.stdout.splitlines()
    result = Comparison.read(folder / "results.json")
    assert tuple(result.learners) == LEARNERS
    assert result.command == "hashroute demo --epochs 5"
    for name, (run,) in result.learners.items():
        (line,) = (line for line in lines if line.startswith(f"│ {name} "))
        assert f"{metrics.final(run.accuracy):.1f}" in line
        assert f"{run.task_free['all_classes']:.1f}" in line
    hrn = result.learners["hrn"][0]
    assert "hrn: test accuracy, %" in process.stdout
    for after, row in enumerate(hrn.accuracy):
        printed = [f"{value:.1f}" for value in row[: after + 1]]
        assert any(re.findall(r"\d+\.\d", line) == printed for line in lines)
    assert len(hrn.decisions) == 5
    assert [f"  {describe(decision)}" for decision in hrn.decisions] == [line.rstrip() for line in lines[-7:-2]]
    assert lines[-1] == "report in runs/demo-seed0/report.html"
    assert "hash-only" in (folder / "report.html").read_text()
    assert len(list((folder / "figures").glob("*.pdf"))) > 5


def test_it_remembers(finished: Finished) -> None:
    learners = Comparison.read(finished[0] / "results.json").learners
    assert metrics.final(learners["hrn"][0].accuracy) >= 95
    for name in ("hrn", "hash-only"):  # units are frozen, or there are none: nothing is forgotten
        for before, after in pairwise(learners[name][0].accuracy):
            assert all(old is None or old == new for old, new in zip(before, after, strict=True))


def test_the_saved_models_give_the_saved_accuracy(finished: Finished) -> None:
    for name, (run,) in Comparison.read(finished[0] / "results.json").learners.items():
        folder = finished[0] / f"{name}-seed0"
        learner = load_learner(folder)
        assert read_json(folder / "settings.json")["command"] == "hashroute demo --epochs 5"
        for index, task in enumerate(load_scenario("digits").tasks):
            right = (learner.predict(task.test.images, index) == task.test.labels).float().mean().item() * 100
            assert right == pytest.approx(run.accuracy[-1][index])


def demo(seed: int, epochs: int, folder: Path) -> Comparison:
    return train(DemoSettings(seed=seed, epochs=epochs), "", folder, Console(quiet=True))


@pytest.mark.slow
def test_same_seed_same_result(tmp_path: Path) -> None:
    largest = 2**63 - 1
    first, second, other = (demo(seed, 1, tmp_path / str(n)) for n, seed in enumerate((1, 1, largest)))
    for name in LEARNERS:
        assert first.learners[name][0].accuracy == second.learners[name][0].accuracy
        one, again = (tensors_of(tmp_path / n / f"{name}-seed1").name for n in ("0", "1"))
        assert one == again
        assert one != tensors_of(tmp_path / "2" / f"{name}-seed{largest}").name
    assert [run.accuracy for run in first.runs] != [run.accuracy for run in other.runs]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_it_remembers_with_any_seed(seed: int, tmp_path: Path) -> None:
    (hrn,) = demo(seed, 10, tmp_path).learners["hrn"]
    assert metrics.final(hrn.accuracy) >= 95
    assert metrics.forgetting(hrn.accuracy) == 0


@pytest.mark.slow
def test_a_second_demo_on_a_terminal_shows_progress_and_does_not_overwrite_the_first(tmp_path: Path) -> None:
    first = tmp_path / "runs" / "demo-seed0"
    first.mkdir(parents=True)
    (first / "results.json").write_text("of the first")
    printed = on_a_terminal([*DEMO, "--epochs", "1"], tmp_path)
    assert re.search(r"(hrn|hrn-paper|vc|hash-only) learns \d or \d .*━", printed)
    assert "saved in runs/demo-seed0-2" in printed
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["demo-seed0", "demo-seed0-2"]
    assert [path.read_text() for path in first.iterdir()] == ["of the first"]
    assert read_json(tmp_path / "runs" / "demo-seed0-2" / "results.json")["scenario"] == "digits"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda:77"], "device 'cuda:77' is not available on this machine"),
        (["--device", "toaster"], "device 'toaster' is not available on this machine"),
        (["--epochs", "0"], "--epochs is 0: expected at least 1"),
        (["--seed", "99999999999999999999"], "--seed is 99999999999999999999: expected a whole number from 0 to below"),
        (["--output", "a-file"], "a-file"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments: list[str], message: str, hashroute_command: Command, tmp_path: Path
) -> None:
    Path("a-file").write_text("in the way")
    code, _, errors = hashroute_command("demo", *arguments)
    assert (code, errors.count("\n")) == (2, 1)
    assert errors.startswith("hashroute: ")
    assert message in errors
    assert not list(tmp_path.glob("runs/*"))
    assert not list(tmp_path.glob("runs/.*"))


def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    process = Program("demo", "--epochs", 1000, folder=tmp_path)
    try:
        while not list(tmp_path.glob("runs/.demo-*")):  # it has begun
            assert process.poll() is None
            time.sleep(0.05)
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    finally:
        process.kill()  # one that is not stopped would run for hours
    assert process.returncode == 130
    assert errors == "hashroute: stopped; nothing unfinished was kept\n"
    assert not list((tmp_path / "runs").iterdir())
