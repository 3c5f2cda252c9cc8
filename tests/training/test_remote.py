"""Runs in pieces, by workers that share no disk: the same numbers, whatever happens to a worker."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hashroute.cli.options import load_tasks
from hashroute.recipe import recipe_for
from hashroute.training import parcel, remote
from hashroute.training.run_folder import RunFolder
from hashroute.training.sweep import Sweep
from hashroute.training.sweep_runs import Record, SweepRun, SweepSettings
from programs import prepared_processes
from run_files import assert_same_files

LOAD = partial(load_tasks, "digits", None, None, 0.2)
RUNS = [SweepRun("hrn", "hrn"), SweepRun("vc", "vc")]


class Processes:
    """Each piece in a process of its own, which is started in another folder than the caller's."""

    shared_disk, piece = False, 0.0

    def __init__(self, most: int = 2) -> None:
        self.most = most
        self.pools: list[ProcessPoolExecutor] = []

    def slots(self) -> int:
        return self.most

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        pool = ProcessPoolExecutor(1, prepared_processes(), os.chdir, ("/",))
        self.pools.append(pool)
        return pool.submit(function, *arguments)

    def kill(self) -> None:
        """End the process of the last piece that has one."""
        for pool in reversed(self.pools):
            for pid in list(pool._processes or ()):
                os.kill(pid, signal.SIGKILL)
                return

    def close(self) -> None:
        for pool in self.pools:
            pool.shutdown(cancel_futures=True)


@pytest.fixture
def engine() -> Iterator[Processes]:
    processes = Processes()
    yield processes
    processes.close()


def settings(folder: Path, **changes: Any) -> SweepSettings:
    recipe = replace(recipe_for((1, 8, 8), classes=2), epochs=(2, 1, 1, 1, 1))
    return replace(SweepSettings(LOAD, recipe, fraction=0.2, runs=folder / "runs" / "all"), **changes)


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same runs in this process."""
    folder = tmp_path_factory.mktemp("local")
    assert Sweep(settings(folder), RUNS, folder / "results" / "all.json").run() == []
    return folder


def test_a_run_whose_workers_are_killed_ends_with_the_same_files(
    engine: Processes, local: Path, tmp_path: Path
) -> None:
    records: list[tuple[str, Record]] = []

    @contextmanager
    def watch(each: SweepRun) -> Iterator[Callable[[Record], None]]:
        def tell(record: Record) -> None:
            records.append((each.name, record))
            if len(records) in (2, 5):
                engine.kill()

        yield tell

    sweep = Sweep(settings(tmp_path, watch=watch), RUNS, tmp_path / "results" / "all.json")
    assert sweep.run(engine=engine) == []
    assert_same_files(tmp_path, local)
    assert len(engine.pools) > 2 * 6  # pieces of six epochs of each learner, and those that were lost
    for name in ("hrn", "vc"):
        told = [(record["task"], record["epoch"]) for each, record in records if each == name]
        logged = RunFolder(tmp_path / "runs" / "all" / f"{name}-seed0").read_epochs()
        assert told == [(record["task"], record["epoch"]) for record in logged], "each epoch is told once"


class Dying(Processes):
    """All workers die before they return anything."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:  # noqa: ARG002
        return super().submit(os._exit, 1)


def test_a_run_that_no_worker_survives_fails_and_can_be_resumed_here(local: Path, tmp_path: Path) -> None:
    engine = Dying()
    sweep = Sweep(settings(tmp_path), RUNS, tmp_path / "results" / "all.json")
    failures = sweep.run(engine=engine)
    engine.close()
    assert sorted(line.partition(", ")[0] for line in failures) == ["hrn", "vc"]
    assert all("its workers were lost 4 times in a row (BrokenProcessPool" in line for line in failures)
    assert Sweep(settings(tmp_path, resume=True), RUNS, tmp_path / "results" / "all.json").run() == []
    assert_same_files(tmp_path, local)


def test_what_a_worker_cannot_do_is_one_line(
    engine: Processes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run,) = runs = RUNS[1:]

    def failure(**changes: Any) -> str:
        given = settings(tmp_path, resume=True, **changes)
        (line,) = Sweep(given, runs, tmp_path / "results" / "all.json").run(engine=engine)
        return line

    monkeypatch.setattr(remote, "_versions", lambda: "hashroute 9 and torch 9")
    assert "a worker has hashroute 0" in failure()
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_module.py").write_text("")
    line = failure(plugins=("own_module",))  # the worker is in another folder
    assert "plugin 'own_module' cannot be imported" in line
    assert str(tmp_path / "runs" / "all" / "vc-seed0" / "error.txt") in line
    assert (tmp_path / "runs" / "all" / "vc-seed0" / "error.txt").exists()
    with settings(tmp_path).folder(run).writing():  # type: ignore[union-attr]
        monkeypatch.setattr("hashroute.training.run_folder.WAIT", 0)
        assert "is being written by another process" in failure()


def test_only_the_files_of_a_run_are_taken_from_a_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("../settings.json", "other.json", "model.safetensors", ".lock"):
        with pytest.raises(ValueError, match="expected the files of a run"):
            parcel.unpack({"settings.json": b"{}", name: b""}, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    parcel.unpack({"settings.json": b"{}", "checkpoint.pt": b"12345"}, tmp_path / "run")
    (tmp_path / "run" / "other.txt").write_text("of a user")
    assert parcel.pack(tmp_path / "run") == {"settings.json": b"{}", "checkpoint.pt": b"12345"}
    monkeypatch.setattr(parcel, "MOST_BYTES", 6)
    with pytest.raises(ValueError, match="the files of run take more than 6 bytes: do this run locally"):
        parcel.pack(tmp_path / "run")
    parcel.unpack({"settings.json": b"{}", "result.json": b"{}"}, tmp_path / "run")  # a finished run
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["other.txt", "result.json", "settings.json"]
