"""Runs on other machines: pieces of a run go out, and what it wrote comes back.

A worker keeps nothing. It gets the files of a run's folder, trains for some seconds, and gives the files back. The
caller keeps them and sends the next piece, to any worker. So no disk is shared, and a piece that is lost is sent again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import torch

import hashroute
from hashroute.schema import one_line
from hashroute.training.parcel import Files, pack, unpack
from hashroute.training.result import RunResult
from hashroute.training.run_folder import RunFolder, RunSettings
from hashroute.training.sweep_runs import Record, StopRun, SweepRun, SweepSettings, run_one
from hashroute.training.workers import keep_memory

POLL = 0.1
"""Seconds between two looks at what workers have done."""
LOOK = 1.0
"""Seconds between two looks at the log of a run on a shared disk."""
PATIENCE = 3
"""A run fails if its workers are lost this many times in a row, without an epoch in between."""

Outcome = tuple[str, int, RunResult | None, str]
"""Row and seed of a run, its result, or what went wrong."""


class Call(Protocol):
    """A function that runs somewhere else."""

    def done(self) -> bool:
        """Whether it has ended, or is lost."""

    def result(self) -> Any:
        """What it returned; any error means that it is lost."""


class Engine(Protocol):
    """Where functions run: a cluster of other machines."""

    shared_disk: bool
    """Whether workers see the folders of the caller. If so, they write there, and a run is one piece."""
    piece: float
    """Seconds of training after which a worker gives the files of a run back."""

    def slots(self) -> int:
        """How many functions can run at the same time now."""

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Call:
        """Run a function on a worker."""


def run_remotely(
    engine: Engine,
    settings: SweepSettings,
    runs: Sequence[SweepRun],
    expected: Mapping[tuple[str, int], RunSettings],
    jobs: int | None = None,
) -> Iterator[Outcome]:
    """The outcomes of runs as they end.

    Args:
        engine: where they run.
        settings: what they have in common, with a folder for each run. Epochs are watched by the caller.
        runs: what to run.
        expected: by row and seed, what the numbers of each run depend on. A worker with other images is an error.
        jobs: runs at the same time; by default as many as the engine has room for.
    """
    waiting, active = deque(runs), list[_RemoteRun]()
    try:
        while waiting or active:
            while waiting and len(active) < (jobs or max(1, engine.slots())):
                each = waiting.popleft()
                active.append(_RemoteRun(engine, settings, each, expected[each.name, each.seed]))
            for remote in list(active):
                outcome = remote.advance()
                if outcome is not None:
                    active.remove(remote)
                    remote.close()
                    yield outcome
            time.sleep(POLL)
    finally:
        for remote in active:
            remote.close()


class _RemoteRun:
    """A run that is done in pieces by workers, and kept in the caller's folder."""

    def __init__(self, engine: Engine, settings: SweepSettings, each: SweepRun, expected: RunSettings) -> None:
        folder = settings.folder(each)
        assert folder is not None
        self.engine, self.settings, self.each, self.expected = engine, settings, each, expected
        self.folder: RunFolder = folder
        self.call: Call | None = None
        self.lost = 0
        self.told = self.told_before = 0
        """Epochs that were told so far, and when the last piece was sent."""
        self.looked = 0.0
        self._stack = ExitStack()
        self._tell: Callable[[Record], None] = lambda _: None

    def close(self) -> None:
        """Let others write into the folder, and end watching."""
        self._stack.close()

    def advance(self) -> Outcome | None:
        """Look after the run; its outcome when it has ended."""
        try:
            if self.call is None:
                self._begin()
            elif self.call.done():
                return self._take(self.call)
            elif self.engine.shared_disk and time.monotonic() > self.looked + LOOK:
                self._watch_log()
        except (ValueError, OSError) as error:  # the folder is busy, full, damaged, or of other settings
            return self._failed(str(error))
        return None

    def _begin(self) -> None:
        if not self.engine.shared_disk:
            self._stack.enter_context(self.folder.writing())
            self.folder.begin(self.expected, self.settings.resume, self.each.command)
        if self.settings.watch is not None:
            self._tell = self._stack.enter_context(self.settings.watch(self.each))
        self.told = len(self.folder.read_epochs())
        self._submit(self.settings.resume)

    def _submit(self, resume: bool) -> None:
        """Send the next piece."""
        settings = replace(self.settings, watch=None, resume=resume)
        call: tuple[Any, ...]
        if self.engine.shared_disk:
            call = run_whole, replace(settings, runs=self.folder.path.parent.resolve()), self.each
        else:
            call = run_piece, settings, self.each, pack(self.folder.path), self.engine.piece, _versions()
        self.told_before = self.told
        try:
            self.call = self.engine.submit(*call)
        except Exception as error:
            raise ValueError(f"it cannot be sent to a worker ({_named(error)})") from None

    def _take(self, call: Call) -> Outcome | None:
        """Keep what a piece gave, and send the next one, or the same one again if it is lost."""
        try:
            answer = call.result()
        except Exception as error:  # libraries raise what they like if a worker dies
            self._watch_log()
            self.lost = 1 if self.told > self.told_before else self.lost + 1
            if self.lost > PATIENCE:
                return self._failed(f"its workers were lost {self.lost} times in a row ({_named(error)})")
            self._submit(resume=True)
            return None
        self.lost = 0
        if self.engine.shared_disk:
            self._watch_log()
            return self.each.name, self.each.seed, *answer
        files, problem = answer
        if files:
            unpack(files, self.folder.path)
            self._watch_log()
        if problem:
            return self._failed(problem.replace(_PLACE, str(self.folder.path)))
        if self.folder.finished:
            return self.each.name, self.each.seed, self.folder.read_result(self.expected), ""
        self._submit(resume=True)
        return None

    def _watch_log(self) -> None:
        """Tell about the epochs that are new in the log."""
        self.looked = time.monotonic()
        for record in self.folder.read_epochs()[self.told :]:
            self.told += 1
            self._tell(record)

    def _failed(self, problem: str) -> Outcome:
        return self.each.name, self.each.seed, None, " ".join(problem.split())


def _named(error: Exception) -> str:
    """An error of a library, in one line."""
    return one_line(f"{type(error).__name__}: {error}", 120)


# ------------------------------------------------------------------------ on a worker

_PLACE = "RUN-FOLDER"
"""Stands for the folder of a run in a worker's message: the caller has it elsewhere."""
_one_run = threading.Lock()
"""Runs share a process's random numbers, so that a worker with several threads does one at a time."""


def run_piece(
    settings: SweepSettings, each: SweepRun, files: Files, seconds: float, versions: str
) -> tuple[Files, str]:
    """Continue a run for some seconds, at least for an epoch; returns its files, and what went wrong.

    versions: those of the caller.
    """
    if versions != _versions():
        return {}, f"a worker has {_versions()}: expected {versions}, as here"
    with _one_run, TemporaryDirectory(prefix="hashroute-") as place:
        _use_one_thread()
        here = replace(settings, runs=Path(place), resume=True, watch=partial(_stop_after, seconds))
        folder = here.folder(each)
        assert folder is not None
        unpack(files, folder.path)
        *_, problem = run_one(here, each)
        try:
            return pack(folder.path), problem.replace(str(folder.path), _PLACE)
        except ValueError as error:
            return {}, str(error)


def run_whole(settings: SweepSettings, each: SweepRun) -> tuple[RunResult | None, str]:
    """Do a run in the caller's folder; returns its result, and what went wrong."""
    _use_one_thread()
    _, _, result, problem = run_one(settings, each)
    return result, problem


def _versions() -> str:
    """What has to be the same everywhere, so that numbers are."""
    return f"hashroute {hashroute.__version__} and torch {torch.__version__}"


def _use_one_thread() -> None:
    """Use one thread for computing, as local workers do: more give other numbers."""
    torch.set_num_threads(1)
    keep_memory()


@contextmanager
def _stop_after(seconds: float, each: SweepRun) -> Iterator[Callable[[Record], None]]:  # noqa: ARG001
    """A function that stops a run after the first epoch that ends so many seconds from now."""
    end = time.monotonic() + seconds

    def tell(record: Record) -> None:  # noqa: ARG001
        if time.monotonic() >= end:
            raise StopRun

    yield tell
