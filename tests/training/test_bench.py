"""A comparison that is killed, stopped, out of disk or asked for nonsense: what it keeps, and what it says."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file

import hashroute
from hashroute.cli.app import main
from hashroute.learners import LEARNERS
from hashroute.reporting.gather import gather
from hashroute.reporting.live import Job, duration, overview, time_left
from support import on_a_terminal

COMMAND = [sys.executable, "-m", "hashroute", "bench"]
QUICK = ("digits", "--epochs", "1", "--fraction", "0.5")
THREE = ("digits", "--learners", "vc", "ewc", "hrn-paper", "--fraction", "0.5", "--epochs")
TIMES = ("seconds", "images_per_second")
NAME = "digits-0.5"

# -------------------------------------------------------------------- processes


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **more}


def bench_process(*arguments: str, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    options.setdefault("env", environment())
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=300, **options)


@contextmanager
def started(*arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A comparison and its workers in a process group of their own, as in a terminal; none outlives the block."""
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert process.stderr is not None
        process.stderr.close()


def last_words(process: subprocess.Popen[str], seconds: float = 30) -> str:
    """Standard error to its end, which comes when the process and all its workers, who share it, have ended."""
    return process.communicate(timeout=seconds)[1]


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str], seconds: float = 120) -> None:
    """Wait for a condition that the process brings about while it is alive."""
    end = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"it ended with {process.returncode} before anything could be seen"
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
    assert process.poll() is None, f"it ended with {process.returncode} too soon: give it more to do"


def workers(process: subprocess.Popen[str]) -> list[int]:
    """The worker processes, as /proc shows them."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            group = (folder / "stat").read_text().rpartition(")")[2].split()[2]
            if int(group) == process.pid and b"LokyProcess" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for workers in /proc")

Bench = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Bench:
    """The command in this process, in a folder of its own; gives the exit code and what it printed."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        try:
            code = main(["bench", *arguments])
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call


# -------------------------------------------------------------------- files


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def timeless(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in TIMES}


def results(folder: Path) -> dict[str, Any]:
    """The result file, without how long things took."""
    content = read_json(folder / "results" / f"{NAME}.json")
    return {**content, "learners": {name: timeless(entry) for name, entry in content["learners"].items()}}


def records(folder: Path) -> list[dict[str, Any]]:
    """The epochs of a run, without how long they took."""
    return [timeless(json.loads(line)) for line in (folder / "epochs.jsonl").read_text().splitlines()]


def logs(folder: Path) -> dict[str, bytes]:
    """The epochs of all runs, as they stand in their files."""
    return {path.parent.name: path.read_bytes() for path in folder.glob("runs/*/*/epochs.jsonl")}


def held_by_checkpoint(run: Path) -> bytes:
    """The epochs that the checkpoint of a run holds."""
    length = torch.load(run / "checkpoint.pt", weights_only=True)["log_length"]
    return (run / "epochs.jsonl").read_bytes()[:length]


def check_whole(folder: Path) -> dict[str, bytes]:
    """See that every file with a final name is whole; returns the epochs that must never be trained again."""
    kept: dict[str, bytes] = {}
    files = [path for part in ("runs", "results") for path in (folder / part).rglob("*") if path.is_file()]
    for path in files:
        if path.suffix == ".json":
            read_json(path)
        elif path.suffix == ".jsonl":
            content = path.read_bytes()
            assert content == b"" or content.endswith(b"\n")
            lines = [json.loads(line) for line in content.splitlines()]
            if (path.parent / "result.json").exists():
                kept[path.parent.name] = content
            elif (path.parent / "checkpoint.pt").exists():
                checkpoint = torch.load(path.parent / "checkpoint.pt", weights_only=True)
                kept[path.parent.name] = content[: checkpoint["log_length"]]
                held = kept[path.parent.name].splitlines(keepends=True)
                assert len(kept[path.parent.name]) == checkpoint["log_length"]
                assert held[-1].endswith(b"\n")
                assert len(lines) - len(held) in (0, 1)
                assert sum(line["images"] for line in lines[: len(held)]) == checkpoint["outcome"]["images"]
        elif path.suffix == ".pt":
            assert (path.parent / "epochs.jsonl").exists()
            torch.load(path, weights_only=True)
        elif path.suffix == ".safetensors":
            load_file(path)
        else:
            assert path.suffix in (".lock", ".unfinished") or path.name == ".lock", f"what is {path}?"
    return kept


def assert_kept(kept: dict[str, bytes], folder: Path) -> None:
    """What checkpoints held was not trained again: it still stands there with its seconds."""
    now = check_whole(folder)
    for name, log in kept.items():
        assert now[name].startswith(log), f"{name} lost epochs that were in its checkpoint"


def assert_same(folder: Path, undisturbed: Path) -> None:
    """Everything that the same command wrote into two folders is the same, but for how long things took."""
    assert results(folder) == results(undisturbed)
    expected = sorted(run.name for run in (undisturbed / "runs" / NAME).iterdir())
    assert sorted(run.name for run in (folder / "runs" / NAME).iterdir()) == expected
    for name in expected:
        one, other = (place / "runs" / NAME / name for place in (folder, undisturbed))
        assert {path.name for path in one.iterdir()} == {path.name for path in other.iterdir()}
        assert records(one) == records(other)
        assert timeless(read_json(one / "result.json")) == timeless(read_json(other / "result.json"))
        for file in ("settings.json", "learner.json", "model.safetensors", "samples.json"):
            assert (one / file).read_bytes() == (other / file).read_bytes(), f"{name}: {file}"
    assert not list(folder.rglob("*.unfinished"))


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
    """How a process is killed: with how many jobs, what of it, and when."""

    jobs: int
    parent_only: bool = False
    in_a_checkpoint: bool = False
    delay: float = 0.0
    """Seconds after something new was written."""


def halt_in_a_checkpoint(process: subprocess.Popen[str], folder: Path) -> None:
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
    """Start, see that it goes on from what was kept, kill, see that all files are whole; returns what is kept now."""
    before = logs(folder)

    def gone_on() -> bool:
        grown = [
            name
            for name, log in logs(folder).items()
            if log != before.get(name) and log.count(b"\n") > kept.get(name, b"").count(b"\n")
        ]
        return len(grown) >= kill.jobs

    with started(*arguments, "--jobs", str(kill.jobs), "--resume", folder=folder) as process:
        wait_until(gone_on, process)
        if kill.in_a_checkpoint:
            halt_in_a_checkpoint(process, folder)
        else:
            time.sleep(kill.delay)
        assert process.poll() is None, "it ended before it could be killed: give it more to do"
        if kill.parent_only:
            os.kill(process.pid, signal.SIGKILL)
        else:
            os.killpg(process.pid, signal.SIGKILL)
        last_words(process)  # the workers of a killed process end by themselves
        assert process.returncode == -signal.SIGKILL
    if kill.in_a_checkpoint:
        assert list(folder.glob("runs/*/*/.checkpoint.pt.*.unfinished"))
    assert_kept(kept, folder)
    return check_whole(folder)


def kill_and_finish(kills: Sequence[Kill], arguments: Sequence[str], folder: Path, finish: Bench) -> None:
    kept: dict[str, bytes] = {}
    for kill in kills:
        kept = kill_one(kill, arguments, folder, kept)
    code, _, said = finish(*arguments, "--resume")
    assert (code, said) == (0, "")
    assert_kept(kept, folder)


def test_a_killed_comparison_goes_on_to_the_same_numbers(undisturbed: Path, bench: Bench, tmp_path: Path) -> None:
    random = Random(0)
    kills = [
        Kill(1, delay=random.uniform(0, 0.1)),
        Kill(2, parent_only=True, delay=random.uniform(0, 0.1)),
        Kill(1, in_a_checkpoint=True),
    ]
    kill_and_finish(kills, (*THREE, "2"), tmp_path, bench)
    assert_same(tmp_path, undisturbed)


@pytest.mark.slow
def test_a_comparison_killed_twenty_times_goes_on_to_the_same_numbers(tmp_path: Path) -> None:
    whole, parts = tmp_path / "undisturbed", tmp_path / "killed"
    whole.mkdir()
    parts.mkdir()
    arguments = (*THREE, "12", "--seeds", "3")
    assert bench_process(*arguments, folder=whole).returncode == 0

    def finish(*given: str) -> tuple[int, str, str]:
        process = bench_process(*given, "--jobs", "2", folder=parts)
        return process.returncode, process.stdout, process.stderr

    random = Random(1)
    kinds = [Kill(1), Kill(1, in_a_checkpoint=True), Kill(2, parent_only=True), Kill(2), Kill(2, in_a_checkpoint=True)]
    kills = [kind._replace(delay=random.uniform(0, 0.3)) for kind in random.sample(kinds * 4, 20)]
    kill_and_finish(kills, arguments, parts, finish)
    assert_same(parts, whole)


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
        last_words(process)
    check_whole(tmp_path)
    assert not list(tmp_path.glob("runs/*/*/result.json"))


@pytest.mark.parametrize("jobs", [1, 2])
def test_workers_use_one_thread_each(jobs: int) -> None:
    script = "import torch; from hashroute.training.workers import *; "
    script += f"print(*side_by_side({jobs}, torch.get_num_threads, [()] * 2))"
    environment = {**os.environ, "OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}  # what they would use by themselves
    process = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=120, check=True
    )
    assert process.stdout == "1 1\n"


def test_what_a_killed_process_left_is_cleared_away(bench: Bench, tmp_path: Path) -> None:
    assert bench(*QUICK, "--learners", "vc")[0] == 0
    file, run = tmp_path / "results" / f"{NAME}.json", tmp_path / "runs" / NAME / "vc-seed0"
    names, numbers = {path.name for path in run.iterdir()}, results(tmp_path)
    (run / "checkpoint.pt").write_bytes(b"")  # killed between the result and the end of the checkpoint ...
    file.rename(file.with_name(f".{file.name}.1.unfinished"))  # ... or in the merge
    other = tmp_path / "runs" / NAME / "ewc-seed0"
    other.mkdir()
    (other / ".settings.json.1.unfinished").write_text("{")  # killed in its first write
    (other / "error.txt").write_text("Traceback")  # failed before
    assert bench(*QUICK, "--learners", "vc", "ewc", "--resume")[0] == 0
    assert results(tmp_path)["learners"]["vc"] == numbers["learners"]["vc"]
    assert {path.name for path in run.iterdir()} == names
    assert {path.name for path in other.iterdir()} == names
    assert not list(tmp_path.rglob("*.unfinished"))


# -------------------------------------------------------------------- stopped with Ctrl-C


def interrupt(process: subprocess.Popen[str]) -> list[str]:
    """Press Ctrl-C, which reaches the whole group, and wait until no worker is left; returns the command it names."""
    os.killpg(process.pid, signal.SIGINT)
    said = last_words(process)
    assert process.returncode == 130, said
    assert said.count("\n") == 1, said
    named = re.fullmatch(r"hashroute: stopped; every finished epoch was kept: go on with hashroute bench (.*)\n", said)
    assert named, said
    assert "--resume" in named[1]
    return shlex.split(named[1])


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_ctrl_c_is_one_line_that_says_how_to_go_on(jobs: str, undisturbed: Path, bench: Bench, tmp_path: Path) -> None:
    with started(*THREE, "2", "--jobs", jobs, folder=tmp_path) as process:
        wait_until(lambda: any(logs(tmp_path).values()), process)
        named = interrupt(process)
    kept = check_whole(tmp_path)
    assert len(list(tmp_path.glob("runs/*/*/result.json"))) < 3
    assert bench(*named, "--jobs", "1")[0] == 0  # in this process, to be fast
    assert_kept(kept, tmp_path)
    assert_same(tmp_path, undisturbed)


@pytest.mark.slow
def test_the_command_that_ctrl_c_names_finishes_with_workers_too(tmp_path: Path) -> None:
    with started(*THREE, "2", "--jobs", "2", folder=tmp_path) as process:
        wait_until(lambda: any(logs(tmp_path).values()), process)
        named = interrupt(process)
    finished = bench_process(*named, folder=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert len(list(tmp_path.glob("runs/*/*/result.json"))) == 3


@pytest.mark.slow
@needs_proc
def test_ctrl_c_while_the_workers_start_is_one_line(tmp_path: Path) -> None:
    with started(*THREE, "2", "--jobs", "2", folder=tmp_path) as process:
        wait_until(lambda: len(workers(process)) == 2 or bool(logs(tmp_path)), process)
        time.sleep(0.2)
        interrupt(process)


# -------------------------------------------------------------------- one fails

PLUGIN = """
from hashroute.learners.base import register_learner
from hashroute.learners.plain import Vanilla


@register_learner("stumbling")
class Stumbling(Vanilla):
    def loss(self, batch):
        if batch.task == 1:
            raise RuntimeError("cannot count to two")
        return super().loss(batch)
"""


def test_one_failing_learner_does_not_end_the_others_and_goes_on_when_mended(tmp_path: Path) -> None:
    plugin, run = tmp_path / "my_plugin.py", tmp_path / "runs" / NAME / "stumbling-seed0"
    arguments = (*QUICK, "--plugins", "my_plugin", "--learners", "stumbling", "vc")
    plugin.write_text(PLUGIN)
    where = environment(PYTHONPATH=os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    failed = bench_process(*arguments, folder=tmp_path, env=where)
    assert failed.returncode == 1, failed.stderr
    assert failed.stderr == ""
    error = run.relative_to(tmp_path) / "error.txt"
    said = f"stumbling, seed 0, failed: RuntimeError: cannot count to two (see {error})"
    assert said in failed.stdout.splitlines()
    assert "Traceback" not in failed.stdout
    traceback = (tmp_path / error).read_text()
    assert traceback.startswith("Traceback")
    assert traceback.endswith("RuntimeError: cannot count to two\n")
    assert list(results(tmp_path)["learners"]) == ["vc"]
    kept = held_by_checkpoint(run)
    assert len(kept.splitlines()) == 1

    plugin.write_text(PLUGIN.replace('raise RuntimeError("cannot count to two")', "pass"))
    mended = bench_process(*arguments, "--resume", folder=tmp_path, env=where)
    assert (mended.returncode, mended.stderr) == (0, "")
    assert "failed" not in mended.stdout
    assert (run / "epochs.jsonl").read_bytes().startswith(kept)
    learners = results(tmp_path)["learners"]
    assert list(learners) == ["vc", "stumbling"]
    assert learners["stumbling"] == learners["vc"]  # of which it is a copy


# -------------------------------------------------------------------- what is written down


def test_a_run_names_versions_and_the_command_that_repeats_just_it(bench: Bench, tmp_path: Path) -> None:
    assert bench(*QUICK, "--learners", "vc", "hash-only", "--seeds", "2")[0] == 0
    run = tmp_path / "runs" / NAME / "hash-only-seed1"
    settings = read_json(run / "settings.json")
    assert settings["versions"] == {
        "hashroute": hashroute.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    program, command, *arguments = shlex.split(settings["command"])
    assert (program, command) == ("hashroute", "bench")
    assert bench(*arguments, "--runs", "again", "--results", "again")[0] == 0
    assert records(tmp_path / "again" / NAME / "hash-only-seed1") == records(run)
    assert sorted(path.name for path in (tmp_path / "again" / NAME).iterdir()) == ["hash-only-seed0", "hash-only-seed1"]


def test_lines_for_programs_say_everything_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "my_plugin.py").write_text(PLUGIN)
    where = environment(PYTHONPATH=os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")])))
    arguments = (*QUICK, "--plugins", "my_plugin", "--learners", "stumbling", "hrn", "hrn-paper", "--json")
    process = bench_process(*arguments, "--jobs", "2", folder=tmp_path, env=where)
    assert (process.returncode, process.stderr) == (1, "")
    lines = [json.loads(line) for line in process.stdout.splitlines()]
    assert lines.pop() == {"results": f"results/{NAME}.json"}
    for name, epochs in (("stumbling", 1), ("hrn", 5), ("hrn-paper", 5)):
        folder = tmp_path / "runs" / NAME / f"{name}-seed0"
        who = {"learner": name, "seed": 0}
        *said, last = [line for line in lines if line.items() >= who.items()]
        assert said == [who | json.loads(line) for line in (folder / "epochs.jsonl").read_text().splitlines()]
        assert len(said) == epochs
        if name == "stumbling":
            problem = f"RuntimeError: cannot count to two (see runs/{NAME}/{name}-seed0/error.txt)"
            assert last == {**who, "error": problem}
        else:
            assert last == {**who, "result": read_json(folder / "result.json")}
    assert len(lines) == 1 + 5 + 5 + 3


def test_lines_for_programs_tell_of_runs_that_were_finished_before(bench: Bench, tmp_path: Path) -> None:
    assert bench(*QUICK, "--learners", "hash-only")[0] == 0
    (tmp_path / "results" / f"{NAME}.json").unlink()
    code, printed, _ = bench(*QUICK, "--learners", "hash-only", "--json")
    assert code == 0
    result = read_json(tmp_path / "runs" / NAME / "hash-only-seed0" / "result.json")
    assert [json.loads(line) for line in printed.splitlines()] == [
        {"learner": "hash-only", "seed": 0, "result": result},
        {"results": f"results/{NAME}.json"},
    ]


# -------------------------------------------------------------------- while it runs


def test_a_terminal_shows_time_left_and_accuracy_so_far(tmp_path: Path) -> None:
    said = on_a_terminal([*COMMAND, "digits", "--learners", "vc", "hash-only", "--epochs", "15"], tmp_path)
    lines = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", said).splitlines()
    assert any(re.fullmatch(r"│ vc .*│ +\d:\d\d │", line) for line in lines)
    assert any(re.match(r"[01] of 2 runs done, about \d:\d\d left", line) for line in lines)
    assert any(line.startswith(" vc, seed 0, %") for line in lines)
    assert any(re.match(r" 0 or 1 +\d+ *$", line) for line in lines)
    assert max(len(line) for line in lines) <= 100


def shown(jobs: list[Job], at_once: int = 1) -> list[str]:
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(overview(jobs, at_once))
    return console.export_text().splitlines()


def test_matrices_of_the_two_latest_runs_fit_the_screen(tmp_path: Path) -> None:
    jobs = []
    for seed in range(3):
        jobs.append(Job("a-learner", seed, tmp_path / str(seed), 4000))
        jobs[-1].folder.mkdir()
        for known in range(1, 31):
            row = [90.0 if task else 100.0 - known for task in range(known)] + [None] * (40 - known)
            record = {"task": f"a task with a long name {known}", "images": 10, "seconds": 0.1, "accuracy": row}
            record |= {"epoch": 1, "epochs": 1, "loss": 123.456, "validation_accuracy": 100.0}
            record["decision"] = {"said": f"task {known}: forks task {known - 1}"}
            with open(jobs[-1].folder / "epochs.jsonl", "a") as log:
                log.write(json.dumps(record) + "\n")
        jobs[-1].look()
    lines = shown(jobs)
    assert max(map(len, lines)) <= 100
    assert len(lines) < 40
    assert re.findall(r"a-learner, seed \d, %", "".join(lines)) == ["a-learner, seed 1, %", "a-learner, seed 2, %"]
    assert [line for line in lines if "forks" in line] == [
        f"a-learner, seed {seed}, task 30: forks task 29" for seed in (1, 2)
    ]
    jobs[2].state = "done"
    assert "a-learner, seed 0, %" in "".join(shown(jobs))


def test_time_left_follows_from_the_pace(undisturbed: Path, tmp_path: Path) -> None:
    log = (undisturbed / "runs" / NAME / "vc-seed0" / "epochs.jsonl").read_text().splitlines(keepends=True)
    images = sum(json.loads(line)["images"] for line in log)
    jobs = [Job("vc", seed, tmp_path / str(seed), images) for seed in range(3)]
    assert time_left(jobs, 1) is None
    jobs[0].folder.mkdir()
    for count in (2, 5):
        (jobs[0].folder / "epochs.jsonl").write_text("".join(log[:count]))
        jobs[0].look()
    assert (jobs[0].state, len(jobs[0].matrix)) == ("running", 2)
    jobs[0].begun = (jobs[0].seen - 3.0, sum(json.loads(line)["images"] for line in log[:2]))  # three epochs ago
    whole = 3.0 * images / sum(json.loads(line)["images"] for line in log[2:5])
    assert jobs[0].left(jobs[0].pace) == pytest.approx(whole / 2, rel=0.05)
    assert time_left(jobs, 1) == pytest.approx(2.5 * whole, rel=0.05)
    assert time_left(jobs, 2) == pytest.approx(1.25 * whole, rel=0.05)
    assert time_left(jobs, 9) == pytest.approx(whole, rel=0.05)
    (tmp_path / "3").mkdir()
    (tmp_path / "3" / "epochs.jsonl").write_text("".join(log[:5]))
    stopped = Job("vc", 3, tmp_path / "3", images)
    stopped.look()
    assert (stopped.state, stopped.pace) == ("waiting", None)  # its epochs are of another day
    assert time_left([*jobs, stopped], 1) == pytest.approx(3 * whole, rel=0.05)
    assert [duration(seconds) for seconds in (None, 59.6, 3599, 7260)] == ["", "1:00", "59:59", "2 h 01"]


# -------------------------------------------------------------------- run again


def test_finished_runs_are_skipped_and_more_are_merged_in_order(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "results" / f"{NAME}.json"

    def written(*names: str) -> list[int]:
        return [(tmp_path / "runs" / NAME / name / "result.json").stat().st_mtime_ns for name in names]

    assert bench(*QUICK, "--learners", "ewc")[0] == 0
    first, content = written("ewc-seed0"), file.read_text()
    assert bench(*QUICK, "--learners", "ewc")[0] == 0
    assert file.read_text() == content

    assert bench(*QUICK, "--learners", "ewc", "vc", "--seeds", "2")[0] == 0
    assert written("ewc-seed0") == first
    merged = results(tmp_path)
    assert list(merged["learners"]) == ["vc", "ewc"]
    assert all(entry["seeds"] == [0, 1] for entry in merged["learners"].values())
    assert merged["learners"]["ewc"]["accuracy"][0] == json.loads(content)["learners"]["ewc"]["accuracy"][0]
    assert merged["learners"]["ewc"]["accuracy"][0] != merged["learners"]["ewc"]["accuracy"][1]

    file.unlink()  # now seed 1 comes from its folder, before seed 0 is run again
    for path in (tmp_path / "runs" / NAME / "ewc-seed0").iterdir():
        path.unlink()
    second = written("ewc-seed1", "vc-seed0", "vc-seed1")
    assert bench(*QUICK, "--learners", "ewc", "vc", "--seeds", "2")[0] == 0
    assert written("ewc-seed1", "vc-seed0", "vc-seed1") == second
    assert results(tmp_path) == merged


def test_other_recipe_for_the_same_file_are_refused(bench: Bench) -> None:
    assert bench(*QUICK, "--learners", "vc")[0] == 0
    code, _, said = bench("digits", "--fraction", "0.5", "--epochs", "2", "--learners", "vc", "--seeds", "2")
    assert code == 2
    assert said.startswith(f"hashroute: results/{NAME}.json was made with other recipe")
    assert "epochs: [1] there, [2] here" in said
    assert said.count("\n") == 1


def test_files_from_before_a_setting_came_are_gone_on_with(bench: Bench, tmp_path: Path) -> None:
    assert bench(*QUICK, "--learners", "vc")[0] == 0
    folder = tmp_path / "runs" / NAME / "vc-seed0"
    for path in (tmp_path / "results" / f"{NAME}.json", folder / "settings.json"):
        kept = json.loads(path.read_text())
        assert kept["recipe"].pop("pool") == 0, "its default"
        path.write_text(json.dumps(kept))
    code, _, said = bench(*QUICK, "--learners", "vc", "--seeds", "2")
    assert code == 0, said
    assert results(tmp_path)["learners"]["vc"]["seeds"] == [0, 1]
    assert results(tmp_path)["recipe"]["pool"] == 0
    assert bench(*QUICK, "--learners", "vc", "--results", "others")[0] == 0, "the run is taken as it is"
    (group,), _ = gather([folder, tmp_path / "runs" / NAME / "vc-seed1"])
    assert [run.seed for run in group.learners["vc"]] == [0, 1]


def test_how_many_images_there_are_is_said_and_kept(bench: Bench, tmp_path: Path) -> None:
    code, said, _ = bench(*QUICK, "--learners", "vc")
    assert code == 0
    assert "digits, images to train on / validate / test: 0 or 1 1" in said
    scenario = hashroute.load_scenario("digits", 0.5)
    assert results(tmp_path)["images"] == scenario.images
    settings = json.loads((tmp_path / "runs" / NAME / "vc-seed0" / "settings.json").read_text())
    assert settings["images"] == scenario.images
    more = [[train + 1, validation, test] for train, validation, test in scenario.images]
    (tmp_path / "results" / f"{NAME}.json").write_text(json.dumps({**results(tmp_path), "images": more}))
    code, _, said = bench(*QUICK, "--learners", "vc", "--seeds", "2")
    assert code == 2
    assert said.startswith(f"hashroute: results/{NAME}.json was made with other images: give the same")


def test_two_versions_of_a_learner_are_not_put_together(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench(*QUICK, "--learners", "vc")[0] == 0
    before = results(tmp_path)
    monkeypatch.setattr(LEARNERS["vc"], "version", 7)
    code, _, said = bench(*QUICK, "--learners", "vc", "--seeds", "2")
    assert code == 2
    assert said.startswith(f"hashroute: results/{NAME}.json holds vc of version 1, this is version 7")
    code, _, said = bench(*QUICK, "--learners", "vc", "--results", "others", "--resume")
    assert code == 2
    assert f"runs/{NAME}/vc-seed0 holds a run with other settings, version differs" in said
    assert results(tmp_path) == before


def test_finished_runs_with_other_settings_are_not_taken_for_these(bench: Bench, tmp_path: Path) -> None:
    assert bench(*QUICK, "--learners", "vc")[0] == 0
    code, _, said = bench("digits", "--fraction", "0.5", "--epochs", "2", "--learners", "vc", "--results", "others")
    assert code == 2
    assert f"runs/{NAME}/vc-seed0" in said
    assert "epochs" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "others" / f"{NAME}.json").exists()


def test_an_unfinished_run_is_not_gone_on_with_unasked(bench: Bench, tmp_path: Path) -> None:
    assert bench(*QUICK, "--learners", "vc")[0] == 0
    (tmp_path / "results" / f"{NAME}.json").unlink()
    (tmp_path / "runs" / NAME / "vc-seed0" / "result.json").unlink()
    code, _, said = bench(*QUICK, "--learners", "vc")
    assert code == 2
    assert said.startswith(f"hashroute: runs/{NAME}/vc-seed0 holds an unfinished run: add --resume")
    assert said.count("\n") == 1


# -------------------------------------------------------------------- disks


@pytest.mark.parametrize("option", ["--runs", "--results"])
def test_an_unwritable_folder_is_one_clear_line(option: str, bench: Bench, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    if os.geteuid() == 0:  # who can write into any folder, but not into a file as if it were one
        blocked.write_text("in the way")
        problem = "Not a directory"
    else:
        blocked.mkdir(mode=0o555)
        problem = "Permission denied"
    code, printed, said = bench(*QUICK, "--learners", "vc", option, "blocked/inside")
    assert code in (1, 2)
    told = said.splitlines() + [line for line in printed.splitlines() if line.startswith("vc, seed 0, failed")]
    assert len(told) == 1
    assert "blocked/inside" in told[0]
    assert problem in told[0]
    assert "Traceback" not in printed + said
    assert not list(tmp_path.rglob("*.unfinished"))
    assert not list(tmp_path.rglob("*.json"))


class Starved(NamedTuple):
    """A comparison on a disk that holds no file of more than some kilobytes."""

    folder: Path
    process: subprocess.CompletedProcess[str]
    kept: dict[str, bytes]


@pytest.fixture(scope="module")
def starved(tmp_path_factory: pytest.TempPathFactory) -> Starved:
    folder = tmp_path_factory.mktemp("starved")

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (280_000, resource.RLIM_INFINITY))

    process = bench_process(*THREE, "2", folder=folder, preexec_fn=limit)
    assert not list(folder.rglob("*.unfinished"))
    for path in folder.rglob("error.txt"):
        path.unlink()
    return Starved(folder, process, check_whole(folder))


def test_a_full_disk_is_one_clear_line_for_each_run(starved: Starved) -> None:
    assert starved.process.returncode == 1
    assert starved.process.stderr == ""
    for name in ("vc", "ewc", "hrn-paper"):
        (told,) = (line for line in starved.process.stdout.splitlines() if line.startswith(f"{name}, seed 0, failed"))
        assert f"runs/{NAME}/{name}-seed0" in told
        assert "File too large" in told
        assert "--resume" in told
        assert "error.txt" not in told


def test_when_there_is_room_again_a_starved_comparison_goes_on_to_the_same_numbers(
    starved: Starved, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert starved.process.returncode == 1
    assert any(starved.kept.values())
    monkeypatch.chdir(starved.folder)
    assert main(["bench", *THREE, "2", "--resume"]) == 0
    capsys.readouterr()
    assert_kept(starved.kept, starved.folder)
    assert_same(starved.folder, undisturbed)


# -------------------------------------------------------------------- options


def test_options_of_learners_can_be_given(bench: Bench, tmp_path: Path) -> None:
    given = ("--learners", "hrn", "vc", "--options", "hrn.max_units=2", "hrn.rank=1")
    assert bench(*QUICK, *given)[0] == 0
    found = results(tmp_path)
    assert found["learners"]["hrn"]["options"]["max_units"] == 2
    assert found["learners"]["hrn"]["options"]["rank"] == 1
    assert all(sum(made["units_added"] for made in run) == 2 for run in found["learners"]["hrn"]["decisions"])
    assert found["command"].endswith("--options hrn.max_units=2 hrn.rank=1")
    code, _, said = bench(*QUICK, "--learners", "hrn", "--seeds", "2")
    assert code == 2
    assert "holds hrn with other options (rank: 1 there, 0 here, max_units: 2 there, None here)" in said


# -------------------------------------------------------------------- wrong words


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["digits", "--learners", "nobody"], "there is no learner 'nobody': expected one of "),
        (["nowhere"], "nowhere"),
        (["digits", "--seeds", "0"], "--seeds is 0: expected at least 1"),
        (["digits", "--jobs", "0"], "--jobs is 0: expected at least 1"),
        (["digits", "--epochs", "1", "0"], "--epochs is 0: expected at least 1"),
        (["digits", "--fraction", "0"], "fraction is 0"),
        (["digits", "--fraction", "1.5"], "fraction is 1.5"),
        (["digits", "--plugins", "no_such_plugin"], "--plugins has 'no_such_plugin', which cannot be imported"),
        (["digits", "--device", "toaster"], "--device is 'toaster'"),
        (["digits", "--recipe", "paper"], "scenario 'digits' has no published recipe"),
        (
            ["digits", "--options", "rank=4"],
            "--options has 'rank=4': expected LEARNER.OPTION=VALUE, such as gpm.threshold=0.9",
        ),
        (["digits", "--learners", "vc", "--options", "hrn.rank=4"], "of a learner that is not asked for: expected one"),
        (["digits", "--options", "hrn.rang=4"], "HRNOptions has no option 'rang': expected one of rank, max_units"),
        (["digits", "--options", "hrn.rank=some"], "rank of hrn is 'some': expected a whole number, at least 0"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    arguments: list[str], message: str, bench: Bench, tmp_path: Path
) -> None:
    code, printed, said = bench(*arguments)
    assert code == 2
    assert printed == ""
    assert said.startswith("hashroute: ")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


# -------------------------------------------------------------------- extras


def test_tensorboard_files_are_written_into_the_folder_of_the_run(bench: Bench, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    assert bench(*QUICK, "--learners", "vc", "--tensorboard")[0] == 0
    (events,) = (tmp_path / "runs" / NAME / "vc-seed0").glob("tensorboard/events.out.tfevents.*")
    content = events.read_bytes()
    for name in (b"loss", b"train_accuracy", b"validation_accuracy", b"test_accuracy/task_4"):
        assert name in content
