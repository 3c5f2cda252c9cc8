"""A comparison that is killed, stopped or out of disk keeps every finished epoch and reaches the same numbers."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest

from hashroute.cli import main
from programs import Program, hashroute
from run_files import assert_kept, assert_same_files, check_whole, comparison, logs

THREE = ("digits", "--learners", "vc", "ewc", "hrn-paper", "--fraction", "0.5", "--epochs")
NAME = "digits-0.5-epochs=2"

Command = Callable[..., tuple[int, str, str]]


@contextmanager
def started(*arguments: str, folder: Path) -> Iterator[Program]:
    """A comparison and its workers in a process group of their own, as in a terminal; none outlives the block."""
    process = Program("bench", *arguments, folder=folder)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()


def wait_until(condition: Callable[[], bool], process: Program) -> None:
    """Wait for a condition that the process brings about while it is alive."""
    while not condition():
        assert process.poll() is None, f"it ended with {process.returncode} before anything could be seen"
        time.sleep(0.01)
    assert process.poll() is None, f"it ended with {process.returncode} too soon: give it more to do"


def workers(process: Program) -> list[int]:
    """The worker processes, as /proc shows them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            group = (folder / "stat").read_text().rpartition(")")[2].split()[2]
            if int(group) == process.pid and b"LokyProcess" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for workers in /proc")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which three learners were compared and nothing happened to them."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["bench", *THREE, "2"]) == 0
    return folder


# -------------------------------------------------------------------- killed


class Kill(NamedTuple):
    """How a process is killed: with how many jobs, which of its processes, and when."""

    jobs: int
    parent_only: bool = False
    in_a_checkpoint: bool = False
    delay: float = 0.0
    """Seconds after something new was written."""


def halt_in_a_checkpoint(process: Program, folder: Path) -> None:
    """Stop all the processes at a moment when one of them has written a part of a checkpoint."""
    while process.poll() is None:
        for path in folder.glob("runs/*/*/.checkpoint.pt.*.unfinished"):
            os.killpg(process.pid, signal.SIGSTOP)
            time.sleep(0.02)
            if path.exists():
                return
            os.killpg(process.pid, signal.SIGCONT)
    pytest.fail("it ended before a checkpoint was seen being written: give it more to do")


def kill_one(kill: Kill, arguments: Sequence[str], folder: Path, kept: dict[str, bytes]) -> dict[str, bytes]:
    """Start, see that it continues what was kept, kill, see that all files are whole; returns what is kept now."""
    before = logs(folder)

    def continued() -> bool:
        grown = [
            name
            for name, log in logs(folder).items()
            if log != before.get(name) and log.count(b"\n") > kept.get(name, b"").count(b"\n")
        ]
        return len(grown) >= kill.jobs

    with started(*arguments, "--jobs", str(kill.jobs), "--resume", folder=folder) as process:
        wait_until(continued, process)
        if kill.in_a_checkpoint:
            halt_in_a_checkpoint(process, folder)
        else:
            time.sleep(kill.delay)
        assert process.poll() is None, "it ended before it could be killed: give it more to do"
        if kill.parent_only:
            os.kill(process.pid, signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()  # the workers of a killed process end by themselves
        assert process.returncode == -signal.SIGKILL
    if kill.in_a_checkpoint:
        assert list(folder.glob("runs/*/*/.checkpoint.pt.*.unfinished"))
    assert_kept(kept, folder)
    return check_whole(folder)


def kill_and_finish(kills: Sequence[Kill], arguments: Sequence[str], folder: Path, finish: Command) -> None:
    kept: dict[str, bytes] = {}
    for kill in kills:
        kept = kill_one(kill, arguments, folder, kept)
    code, _, errors = finish(*arguments, "--resume")
    assert (code, errors) == (0, "")
    assert_kept(kept, folder)


@pytest.mark.slow  # tests/chaos kills a shorter one
def test_a_killed_comparison_reaches_the_same_numbers(undisturbed: Path, bench: Command, tmp_path: Path) -> None:
    kills = [Kill(2, parent_only=True, delay=Random(0).uniform(0, 0.1)), Kill(1, in_a_checkpoint=True)]
    kill_and_finish(kills, (*THREE, "2"), tmp_path, bench)
    assert_same_files(tmp_path, undisturbed)


@pytest.mark.slow
def test_a_comparison_killed_twenty_times_reaches_the_same_numbers(tmp_path: Path) -> None:
    whole, parts = tmp_path / "undisturbed", tmp_path / "killed"
    whole.mkdir()
    parts.mkdir()
    arguments = (*THREE, "12", "--seeds", "3")
    assert hashroute("bench", *arguments, folder=whole).returncode == 0

    def finish(*given: str) -> tuple[int, str, str]:
        process = hashroute("bench", *given, "--jobs", "2", folder=parts)
        return process.returncode, process.stdout, process.stderr

    random = Random(1)
    kinds = [Kill(1), Kill(1, in_a_checkpoint=True), Kill(2, parent_only=True), Kill(2), Kill(2, in_a_checkpoint=True)]
    kills = [kind._replace(delay=random.uniform(0, 0.3)) for kind in random.sample(kinds * 4, 20)]
    kill_and_finish(kills, arguments, parts, finish)
    assert_same_files(parts, whole)


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("learners", [("vc",), ("vc", "ewc")], ids=["one to do", "two to do"])
def test_workers_whose_parent_is_killed_while_they_start_end_by_themselves(
    learners: tuple[str, ...], tmp_path: Path
) -> None:
    arguments = ("digits", "--learners", *learners, "--epochs", "50", "--jobs", "2")
    with started(*arguments, folder=tmp_path) as process:
        wait_until(lambda: len(workers(process)) == 2 or bool(logs(tmp_path)), process)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    check_whole(tmp_path)
    assert not list(tmp_path.glob("runs/*/*/result.json"))


def names_in(folder: Path) -> list[str]:
    """The names of the files in a folder; that of the tensors depends on their content."""
    return sorted("tensors" if path.suffix == ".safetensors" else path.name for path in folder.iterdir())


def test_what_a_killed_process_left_is_removed(bench: Command, tmp_path: Path) -> None:
    quick = ("digits", "--epochs", "1", "--fraction", "0.5", "--learners", "vc")
    assert bench(*quick)[0] == 0
    (file,) = tmp_path.glob("results/*.json")
    (run,) = tmp_path.glob("runs/*/*")
    names, numbers = names_in(run), comparison(file)
    (run / "checkpoint.pt").write_bytes(b"")  # killed between the result and the end of the checkpoint ...
    file.rename(file.with_name(f".{file.name}.1.unfinished"))  # ... or while the result file was written
    other = run.with_name("ewc-seed0")
    other.mkdir()
    (other / ".settings.json.1.unfinished").write_text("{")  # killed in its first write
    (other / "error.txt").write_text("Traceback")  # failed before
    assert bench(*quick, "ewc", "--resume")[0] == 0
    assert comparison(file)["runs"]["vc 0"] == numbers["runs"]["vc 0"]
    assert names_in(run) == names_in(other) == names
    assert not list(tmp_path.rglob("*.unfinished"))


# -------------------------------------------------------------------- stopped with Ctrl-C


def interrupt(process: Program) -> list[str]:
    """Press Ctrl-C three times, which reaches the whole group, and wait until no worker is left.

    Returns the command that the last line names.
    """
    for _ in range(3):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.03)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert errors.count("\n") == 1, errors
    named = re.fullmatch(
        r"hashroute: stopped; every finished epoch is kept: continue with hashroute bench (.*)\n", errors
    )
    assert named, errors
    assert "--resume" in named[1]
    return shlex.split(named[1])


@pytest.mark.parametrize("jobs", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_ctrl_c_is_one_line_with_the_command_that_continues(
    jobs: str, undisturbed: Path, bench: Command, tmp_path: Path
) -> None:
    with started(*THREE, "2", "--jobs", jobs, folder=tmp_path) as process:
        wait_until(lambda: any(logs(tmp_path).values()), process)
        named = interrupt(process)
    kept = check_whole(tmp_path)
    assert len(list(tmp_path.glob("runs/*/*/result.json"))) < 3
    assert bench(*named, "--jobs", "1")[0] == 0  # in this process, to be fast
    assert_kept(kept, tmp_path)
    assert_same_files(tmp_path, undisturbed)


@pytest.mark.slow
def test_the_command_that_ctrl_c_names_finishes_with_workers_too(tmp_path: Path) -> None:
    with started(*THREE, "2", "--jobs", "2", folder=tmp_path) as process:
        wait_until(lambda: any(logs(tmp_path).values()), process)
        named = interrupt(process)
    finished = hashroute("bench", *named, folder=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert len(list(tmp_path.glob("runs/*/*/result.json"))) == 3


@pytest.mark.slow
@needs_proc
def test_ctrl_c_while_the_workers_start_is_one_line(tmp_path: Path) -> None:
    with started(*THREE, "2", "--jobs", "2", folder=tmp_path) as process:
        wait_until(lambda: len(workers(process)) == 2 or bool(logs(tmp_path)), process)
        time.sleep(0.2)
        interrupt(process)


# -------------------------------------------------------------------- disks


@pytest.mark.parametrize("option", ["--runs", "--results"])
def test_a_folder_without_write_permission_is_one_line(option: str, bench: Command, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    if os.geteuid() == 0:  # who can write into any folder, but not into a file as if it were one
        blocked.write_text("in the way")
        problem = "Not a directory"
    else:
        blocked.mkdir(mode=0o555)
        problem = "Permission denied"
    code, printed, errors = bench("digits", "--fraction", "0.5", "--learners", "vc", option, "blocked/inside")
    assert code in (1, 2)
    told = errors.splitlines() + [line for line in printed.splitlines() if line.startswith("vc, seed 0, failed")]
    assert len(told) == 1
    assert "blocked/inside" in told[0]
    assert problem in told[0]
    assert "Traceback" not in printed + errors
    assert not list(tmp_path.rglob("*.unfinished"))
    assert not list(tmp_path.rglob("settings.json"))


class Starved(NamedTuple):
    """A comparison on a disk that holds no file of more than some kilobytes."""

    folder: Path
    process: subprocess.CompletedProcess[str]
    kept: dict[str, bytes]


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Starved:
    folder = tmp_path_factory.mktemp("starved")

    process = hashroute("bench", *THREE, "2", folder=folder, largest_file=280_000)
    assert not list(folder.rglob("*.unfinished"))
    for path in folder.rglob("error.txt"):
        path.unlink()
    return Starved(folder, process, check_whole(folder))


def test_a_full_disk_is_one_line_for_each_run(starved: Starved) -> None:
    assert (starved.process.returncode, starved.process.stderr) == (1, "")
    lines = starved.process.stdout.splitlines()
    assert "--resume" in lines[-1]
    assert f"results of 0 of 3 runs in results/{NAME}.json" in lines
    for name in ("vc", "ewc", "hrn-paper"):
        (told,) = (line for line in lines if line.startswith(f"{name}, seed 0, failed"))
        assert f"runs/{NAME}/{name}-seed0" in told
        assert "File too large" in told
        assert "error.txt" not in told


def test_with_room_on_the_disk_again_a_comparison_reaches_the_same_numbers(
    starved: Starved, undisturbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert starved.process.returncode == 1
    assert any(starved.kept.values())
    monkeypatch.chdir(starved.folder)
    assert main(["bench", *THREE, "2", "--resume"]) == 0
    assert_kept(starved.kept, starved.folder)
    assert_same_files(starved.folder, undisturbed)
