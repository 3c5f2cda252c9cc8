"""Processes that work side by side: one thread each, quiet on Ctrl-C, and gone when the process that asked is gone."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time

import torch


def one_thread() -> None:
    """Use one thread for computing: several processes with several threads each slow each other down."""
    torch.set_num_threads(1)
    keep_memory()
    if multiprocessing.parent_process() is not None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it as well, and ends its workers
        _follow_parent()


def keep_memory() -> None:
    """Let the C library keep freed memory for the next batch: getting it anew costs a fifth of a step."""
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        trim_threshold, mmap_threshold = -1, -3  # glibc's names are M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
        library.mallopt(trim_threshold, 2**30)
        library.mallopt(mmap_threshold, 2**25)


_followed: list[threading.Thread] = []


def _follow_parent() -> None:
    """End this process as soon as its parent has ended, however that came about."""
    if _followed:
        return
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.2)
        os._exit(1)

    _followed.append(threading.Thread(target=watch, daemon=True))
    _followed[0].start()
