"""Engines: where the runs of a comparison are done, if not here. Dask, Ray and submitit (for Slurm) are extras."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hashroute.integrations.installed import check_installed
from hashroute.schema import one_line
from hashroute.training.remote import Call, Engine

PIECE = 15.0
"""Seconds of training after which a worker gives the files of a run back."""
TIMEOUT = 10
"""Seconds that a scheduler has to answer."""
EXPECTED = "expected local, dask:ADDRESS, ray:ADDRESS, or slurm"


class DaskEngine:
    """The workers of a Dask scheduler. Each one does one run at a time: start them with one thread.

    address: of the scheduler, such as tcp://host:8786.
    """

    shared_disk = False

    def __init__(self, address: str, piece: float | None = None) -> None:
        check_installed("the engine dask", "distributed", "dask")
        from distributed import Client

        self.piece = PIECE if piece is None else piece
        with _reaching(f"dask:{address}"):
            self._client = Client(address, timeout=TIMEOUT, set_as_default=False)

    def slots(self) -> int:
        """How many workers there are now."""
        return len(self._client.nthreads())

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Call:
        """Run a function on a worker. Dask repeats it by itself if the worker dies."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # about the size of checkpoints
            future: Call = self._client.submit(function, *arguments, pure=False)
        return future

    def close(self) -> None:
        """Leave the scheduler, which then forgets what was submitted."""
        self._client.close()


class RayEngine:
    """The nodes of a Ray cluster.

    address: of its head, such as host:6379, or //host:10001 for a Ray client; empty for the cluster of this machine.
    """

    shared_disk = False

    def __init__(self, address: str = "", piece: float | None = None) -> None:
        check_installed("the engine ray", "ray", "ray")
        import ray

        self.piece = PIECE if piece is None else piece
        self._ray = ray
        self._functions: dict[Callable[..., Any], Any] = {}
        given = f"ray:{address}" if address.startswith("//") else address or "auto"
        with _reaching(f"ray:{address}"):
            ray.init(given, log_to_driver=False, logging_level="ERROR", configure_logging=False)

    def slots(self) -> int:
        """How many processors the cluster has now."""
        return int(self._ray.cluster_resources().get("CPU", 0))

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Call:
        """Run a function on a node."""
        if function not in self._functions:
            self._functions[function] = self._ray.remote(max_retries=0)(function)
        future: Call = self._functions[function].remote(*arguments).future()
        return future

    def close(self) -> None:
        """Leave the cluster, which then ends what was submitted."""
        self._ray.shutdown()


class SlurmEngine:
    """Jobs of Slurm, by submitit: one for each run. They write into the folders of the caller.

    Args:
        folder: for the files of submitit, on a disk that all nodes see.
        settings: of submitit, such as slurm_partition="gpu" or timeout_min=60.
        local: start processes on this machine instead, to try it out.
    """

    shared_disk = True
    piece = 0.0

    def __init__(self, folder: Path, local: bool = False, **settings: Any) -> None:
        check_installed("the engine slurm", "submitit", "slurm")
        import submitit

        self._jobs: list[Any] = []
        try:
            self._executor = submitit.AutoExecutor(folder, cluster="local" if local else "slurm")
            self._executor.update_parameters(**{"name": "hashroute", "timeout_min": 24 * 60, **settings})
        except (NameError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"the engine slurm cannot be used ({one_line(error, 200)})") from None

    def slots(self) -> int:
        """Slurm has a queue of its own: as many as there are."""
        return 10**6

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Call:
        """Put a job into the queue."""
        self._jobs.append(self._executor.submit(function, *arguments))
        job: Call = self._jobs[-1]
        return job

    def close(self) -> None:
        """End all jobs."""
        for job in self._jobs:
            if not job.done():
                job.cancel(check=False)


@contextmanager
def open_engine(text: str, folder: Path) -> Iterator[Engine | None]:
    """The engine that a text names: dask:ADDRESS, ray:ADDRESS, slurm, slurm:NAME=VALUE,... None for `local`.

    folder: of the runs.
    """
    name, _, rest = text.partition(":")
    if text == "local":
        yield None
        return
    if name == "dask" and rest:
        engine: DaskEngine | RayEngine | SlurmEngine = DaskEngine(rest)
    elif name == "ray":
        engine = RayEngine(rest)
    elif name == "slurm":
        engine = SlurmEngine(folder / ".slurm", rest == "local", **_settings(text, rest if rest != "local" else ""))
    else:
        raise ValueError(f"the engine is {text!r}: {EXPECTED}")
    try:
        yield engine
    finally:
        engine.close()


def _settings(text: str, given: str) -> dict[str, Any]:
    """The settings of NAME=VALUE,NAME=VALUE."""
    found: dict[str, Any] = {}
    for part in given.split(",") if given else ():
        name, equals, value = part.partition("=")
        if not (name and equals):
            raise ValueError(f"the engine is {text!r}: expected slurm:NAME=VALUE, such as slurm:slurm_partition=gpu")
        found[name] = int(value) if value.isdigit() else value
    return found


@contextmanager
def _reaching(name: str) -> Iterator[None]:
    """Turns whatever a library raises about an address into one line."""
    try:
        yield
    except Exception as error:
        what = one_line(f"{type(error).__name__}: {error}", 120)
        raise ValueError(f"the engine {name} cannot be reached ({what}): start it first") from None
