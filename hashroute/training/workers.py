"""Worker processes: one thread each, silent on Ctrl-C, and ended when their parent process ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from joblib import Parallel, delayed
from joblib.externals.loky.process_executor import TerminatedWorkerError


def side_by_side(jobs: int, function: Callable[..., Any], calls: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
    """The results of calls of a function, as they end, with this many processes at the same time.

    A single job runs in this process.
    """
    work = [delayed(function)(*call) for call in calls]
    if not work:
        return
    one_thread()
    pool = Parallel(min(jobs, len(work)), return_as="generator_unordered", initializer=one_thread)
    try:
        with _without_interrupts():
            outcomes = pool(work)
        yield from outcomes
    except TerminatedWorkerError:
        raise ValueError(
            "a worker process was killed, perhaps because memory ran out; finished runs are kept: "
            "continue with fewer runs at the same time"
        ) from None


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """Processes that are started in here never receive Ctrl-C, and print nothing when they are stopped."""
    if threading.current_thread() is not threading.main_thread():  # signals are the main thread's
        yield
        return
    before = signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # they inherit it; joblib unblocks a signal that is only blocked
    warnings = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = "ignore:resource_tracker"  # joblib warns about what it cleans up
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if warnings is None:
            del os.environ["PYTHONWARNINGS"]
        else:
            os.environ["PYTHONWARNINGS"] = warnings


def one_thread() -> None:
    """Use one thread for computing: several processes with several threads each slow each other down."""
    torch.set_num_threads(1)
    keep_memory()
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it as well, and ends its workers
        _follow_parent()


def keep_memory() -> None:
    """Let the C library keep freed memory for the next batch: requesting it again costs a seventh of a step."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        trim_threshold, mmap_threshold = -1, -3  # glibc's names are M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
        library.mallopt(trim_threshold, 2**30)
        library.mallopt(mmap_threshold, 2**25)


_followed: list[threading.Thread] = []


def _follow_parent() -> None:
    """End this process as soon as its parent has ended, for whatever reason."""
    process = multiprocessing.parent_process()
    if _followed or process is None:
        return
    parent = process.pid  # not os.getppid(): the parent may have ended before this line

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    _followed.append(threading.Thread(target=watch, daemon=True))
    _followed[0].start()
