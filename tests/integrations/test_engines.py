"""The same comparison on Dask, Ray and submitit: real clusters on this machine, whose workers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hashroute.cli import main
from hashroute.cli.options import load_tasks
from hashroute.integrations.engines import DaskEngine, RayEngine, SlurmEngine
from hashroute.recipe import recipe_for
from hashroute.training.run_folder import RunFolder
from hashroute.training.sweep import Sweep
from hashroute.training.sweep_runs import Record, SweepRun, SweepSettings
from run_files import assert_same_files, comparison

RUNS = [SweepRun("hrn", "hrn"), SweepRun("gpm", "gpm")]
RECIPE = replace(recipe_for((1, 8, 8), classes=2), epochs=(2,))
Watch = Callable[[SweepRun], Any]

# What Dask and Ray leave to the garbage collector is not ours to close.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def sweep(folder: Path, watch: Watch | None = None) -> Sweep:
    load = partial(load_tasks, "digits", None, None, 0.2)
    settings = SweepSettings(load, RECIPE, fraction=0.2, runs=folder / "runs" / "all", watch=watch)
    return Sweep(settings, RUNS, folder / "results" / "all.json")


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the same comparison in this process."""
    folder = tmp_path_factory.mktemp("local")
    assert sweep(folder).run() == []
    return folder


class Disturbed:
    """Watches runs, and kills a worker once, when some epochs are done and one is under way.

    kill: returns whether there was a worker to kill.
    """

    def __init__(self, kill: Callable[[], bool]) -> None:
        self.kill, self.epochs, self.killed = kill, 0, False

    @contextmanager
    def __call__(self, each: SweepRun) -> Iterator[Callable[[Record], None]]:  # noqa: ARG002
        def tell(record: Record) -> None:  # noqa: ARG001
            self.epochs += 1
            if self.epochs >= 3 and not self.killed:
                self.killed = self.kill()

        yield tell


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    """The address of a Dask scheduler with two workers."""
    distributed = pytest.importorskip("distributed", reason="needs the extra dask: make test-integrations")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
    ) as cluster:
        yield cluster.scheduler_address


def test_dask_gives_the_same_files_though_a_worker_is_killed(scheduler: str, local: Path, tmp_path: Path) -> None:
    from distributed import Client

    with Client(scheduler, set_as_default=False) as client, closing(DaskEngine(scheduler, piece=0)) as engine:
        pids = client.run(os.getpid)

        def kill() -> bool:
            busy = [worker for worker, tasks in client.processing().items() if tasks]
            if busy:
                os.kill(pids[busy[0]], signal.SIGKILL)
            return bool(busy)

        disturbed = Disturbed(kill)
        assert engine.slots() == 2
        assert sweep(tmp_path, disturbed).run(engine=engine) == []
    assert disturbed.killed
    assert disturbed.epochs == 20  # two learners, five tasks, two epochs: each is told once
    assert_same_files(tmp_path, local)


def test_ctrl_c_ends_a_comparison_on_dask_which_continues_here(
    scheduler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    line = ["bench", "digits", "--learners", "vc", "--fraction", "0.2", "--epochs", "40"]
    remote = [*line, "--engine", f"dask:{scheduler}", "--json"]
    short = "from hashroute.integrations import engines; engines.PIECE = 0.5"
    script = f"import sys; {short}; from hashroute.cli import main; sys.exit(main())"
    with subprocess.Popen(
        [sys.executable, "-c", script, *remote], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert json.loads(process.stdout.readline())["task"] == "0 or 1"  # progress, while it runs
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait() == 130
    assert "stopped; every finished epoch is kept: continue with" in said.splitlines()[-1]
    name = "digits-0.2-epochs=40"
    run = RunFolder(Path("runs") / name / "vc-seed0")
    assert 0 < len(run.read_epochs()) < 200
    assert main([*line, "--resume"]) == 0
    assert len(run.read_epochs()) == 200
    assert main([*line, "--runs", "again", "--results", "again"]) == 0
    assert comparison(Path("results") / f"{name}.json") == comparison(Path("again") / f"{name}.json")


def test_ray_gives_the_same_files_though_a_node_is_killed(
    local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ray", reason="needs the extra ray: make test-integrations")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    from ray.cluster_utils import Cluster

    memory = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**memory, "include_dashboard": False})
    try:
        second = cluster.add_node(**memory)

        def kill() -> bool:
            cluster.remove_node(second, allow_graceful=False)
            cluster.add_node(**memory)
            return True

        disturbed = Disturbed(kill)
        with closing(RayEngine(cluster.address, piece=0)) as engine:
            assert engine.slots() == 2
            assert sweep(tmp_path, disturbed).run(engine=engine) == []
    finally:
        cluster.shutdown()
    assert (disturbed.killed, disturbed.epochs) == (True, 20)
    assert_same_files(tmp_path, local)


def test_slurm_gives_the_same_files_though_a_job_is_killed(local: Path, tmp_path: Path) -> None:
    pytest.importorskip("submitit", reason="needs the extra slurm: make test-integrations")
    psutil = pytest.importorskip("psutil")

    def kill() -> bool:
        jobs = [each for each in psutil.Process().children(recursive=True) if "submitit.core._submit" in each.cmdline()]
        for each in jobs[:1]:
            each.kill()
        return bool(jobs)

    disturbed = Disturbed(kill)
    with closing(SlurmEngine(tmp_path / "jobs", local=True)) as engine:
        assert sweep(tmp_path, disturbed).run(engine=engine) == []
    assert disturbed.killed
    assert_same_files(tmp_path, local)


@pytest.mark.parametrize(
    ("engine", "package", "extra"),
    [("dask:somewhere", "distributed", "dask"), ("ray", "ray", "ray"), ("slurm", "submitit", "slurm")],
)
def test_a_missing_library_is_one_line(
    engine: str,
    package: str,
    extra: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    assert main(["bench", "digits", "--learners", "closed-form", "--engine", engine]) == 2
    said = f"hashroute: the engine {extra} needs the package {package}: pip install 'hashroute[{extra}]'\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize("engine", ["dask", "dask:", "spark:host", "slurm:fast"])
def test_an_engine_that_does_not_exist_is_one_line(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if engine.startswith("slurm"):
        pytest.importorskip("submitit", reason="needs the extra slurm: make test-integrations")
    assert main(["bench", "digits", "--learners", "closed-form", "--engine", engine]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hashroute: the engine is {engine!r}: expected ")
    assert said.count("\n") == 1
