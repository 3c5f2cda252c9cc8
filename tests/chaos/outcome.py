"""What a campaign counts: tries and failures of each part, in child processes that cannot hurt it."""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random

MOST_SECONDS, MOST_WAITING = 10, 60
"""Of the processor to read a file, and by the clock: other processes may be busy, and what waits for ever uses none."""
MOST_BYTES = 2**30
NAMED = 20
"""Failures of a part that are described."""


@dataclass
class Part:
    """The tries of one kind."""

    name: str
    tries: int = 0
    failures: int = 0
    described: list[str] = field(default_factory=list)
    refused: int = 0
    """Of mutated files: those that were refused with one line."""
    note: str = ""
    """What was measured, or why there was no try."""

    def fail(self, text: str) -> None:
        """Count a failure."""
        self.failures += 1
        if len(self.described) < NAMED:
            self.described.append(text[:1500])
            print(f"{self.name}: {text}", file=sys.stderr, flush=True)


class Child:
    """Something that is done in a forked process."""

    def __init__(self, work: Callable[[], object]) -> None:
        self.said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (`wait` closes it)
        self.process = os.fork()
        if self.process == 0:
            try:
                work()
                code = 0
            except BaseException:
                self.said.write(traceback.format_exc())
                self.said.flush()
                code = 1
            os._exit(code)

    def wait(self) -> tuple[int, str]:
        """Its wait status, and what it failed with."""
        _, status = os.waitpid(self.process, 0)
        with self.said as said:
            said.seek(0)
            return status, said.read()


def in_a_child(work: Callable[[], object]) -> tuple[int, str]:
    """Do something in a forked process; returns its wait status, and what it failed with."""
    return Child(work).wait()


def or_one_line(work: Callable[[], object]) -> None:
    """Do something that may be refused with one line."""
    try:
        work()
    except (OSError, ValueError) as error:
        if not one_clear_line(error):
            raise


def one_clear_line(error: BaseException) -> bool:
    """Whether an error is one that a user can be shown."""
    text = str(error)
    return isinstance(error, ValueError | OSError) and "\n" not in text and len(text) <= 300


def read_mutated(part: Part, files: Iterator[tuple[str, Callable[[], object]]], seconds: float, random: Random) -> None:
    """Read files in child processes until the time is over.

    files: what was done to each, and how it is read; they are drawn with these random numbers.
    """
    next(files)  # the files before they are changed are made here, once
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        read_end, write_end = os.pipe()
        seed = random.random()
        child = os.fork()
        if child == 0:
            try:
                random.seed(seed)
                os.close(read_end)
                _read_some(files, write_end, min(end, time.monotonic() + 20))
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        os.close(write_end)
        with os.fdopen(read_end) as lines:
            for line in lines:
                event = json.loads(line)
                if "tries" in event:
                    part.tries += event["tries"]
                    part.refused += event["refused"]
                else:
                    part.fail(f"{event['error']} after {event['done'][:600]}")
        _, status = os.waitpid(child, 0)
        if status:
            part.fail(f"a process that read files ended with status {status}")


def _read_some(files: Iterator[tuple[str, Callable[[], object]]], to: int, end: float) -> None:
    def late(*_: object) -> None:
        raise TimeoutError(f"not read in {MOST_SECONDS} s of the processor, or {MOST_WAITING} s by the clock")

    signal.signal(signal.SIGALRM, late)
    signal.signal(signal.SIGPROF, late)
    resource.setrlimit(resource.RLIMIT_AS, (12 * MOST_BYTES, 12 * MOST_BYTES))
    tries = refused = 0
    with os.fdopen(to, "w") as out:

        def tell(**event: object) -> None:
            out.write(json.dumps(event) + "\n")
            out.flush()

        for done, read in files:
            signal.alarm(MOST_WAITING)
            signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
            try:
                read()
            except Exception as error:
                if one_clear_line(error) and not isinstance(error, TimeoutError):
                    refused += 1
                else:
                    tell(done=done, error=traceback.format_exc()[-1200:])
            finally:
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
            tries += 1
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MOST_BYTES:
                tell(done=done, error="the process took more than 1 GB")
                break
            if time.monotonic() > end:
                break
        tell(tries=tries, refused=refused)
