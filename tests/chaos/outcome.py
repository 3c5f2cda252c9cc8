"""What a campaign counts: tries and failures of each part, in child processes that cannot hurt it."""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import BinaryIO, Literal

MOST_SECONDS, MOST_WAITING = 10, 60
"""Of the processor to read a file, and by the clock: other processes may be busy, and what waits for ever uses none."""
MOST_BYTES = 2**30
"""Memory of a process that reads files, at most. Python and torch take about a third of it."""
MOST_GROWN = 2**28
"""Memory that one file may add to its process, at most."""
PATIENCE = 20
"""Seconds in which a process reads file after file."""
NAMED = 20
"""Failures of a part that are described."""


@dataclass
class Part:
    """The tries of one kind."""

    name: str
    kind: Literal["", "kill", "file"] = ""
    """What its tries are, if they are among those that are added up."""
    tries: int = 0
    failures: int = 0
    described: list[str] = field(default_factory=list)
    refused: int = 0
    """Of mutated files: those that were refused with one line."""
    note: str = ""
    """What was measured, or why there was no try."""
    slowest: float = 0.0
    """Of mutated files: seconds of the processor that one took, at most."""
    grown: int = 0
    """Of mutated files: bytes of memory that one added to its process, at most."""

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


class Late(BaseException):
    """A file takes too long. No reader can mistake it for an error of its own."""


def read_mutated(part: Part, files: Iterator[tuple[str, Callable[[], object]]], seconds: float, random: Random) -> None:
    """Read files in child processes until the time is over.

    files: what was done to each, and how it is read; they are drawn with these random numbers.
    """
    next(files)  # the files before they are changed are made here, once
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        read_end, write_end = os.pipe()
        seed, last = random.random(), tempfile.TemporaryFile("w+")  # noqa: SIM115 (it is closed below)
        until = min(end, time.monotonic() + PATIENCE)
        child = os.fork()
        if child == 0:
            try:
                random.seed(seed)
                os.close(read_end)
                _read_some(files, write_end, last.fileno(), until)
                os._exit(0)
            finally:
                traceback.print_exc()
                os._exit(1)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as events:
            ended = _take_events(part, events, until + 2 * MOST_WAITING)
        if not ended:
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with last:
            if status:
                last.seek(0)
                what = f"ended with status {status}" if ended else "did not end"
                part.fail(f"a process that read files {what} at {last.read()}")


def _take_events(part: Part, events: BinaryIO, until: float) -> bool:
    """Count what a process tells; whether it has ended in time."""
    while select.select([events], [], [], max(0.0, until - time.monotonic()))[0]:
        if not (line := events.readline()):
            return True
        event = json.loads(line)
        if "tries" in event:
            part.tries += event["tries"]
            part.refused += event["refused"]
            part.slowest = max(part.slowest, event["slowest"])
            part.grown = max(part.grown, event["grown"])
        else:
            part.fail(f"{event['error']} after {event['done'][:600]}")
    return False


def _read_some(files: Iterator[tuple[str, Callable[[], object]]], to: int, last: int, end: float) -> None:
    late = False

    def interrupt(*_: object) -> None:
        nonlocal late
        late = True
        raise Late

    signal.signal(signal.SIGALRM, interrupt)
    signal.signal(signal.SIGPROF, interrupt)
    resource.setrlimit(resource.RLIMIT_AS, (12 * MOST_BYTES, 12 * MOST_BYTES))
    tries = refused = grown = 0
    slowest = 0.0
    with os.fdopen(to, "w") as out:

        def tell(**event: object) -> None:
            out.write(json.dumps(event) + "\n")
            out.flush()

        for done, read in files:
            os.ftruncate(last, 0)
            os.pwrite(last, done[:600].encode("utf-8", "replace"), 0)
            forget_highest_memory()
            before, start, late = memory(), time.process_time(), False
            signal.alarm(MOST_WAITING)
            signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
            try:
                read()
            except (Exception, Late) as error:
                signal.alarm(0)
                if one_clear_line(error):
                    refused += 1
                elif not late:
                    tell(done=done, error=traceback.format_exc()[-1200:])
            finally:
                signal.alarm(0)
                signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.process_time() - start)
            if late:
                tell(
                    done=done, error=f"not read in {MOST_SECONDS} s of the processor, or {MOST_WAITING} s by the clock"
                )
            tries += 1
            highest = highest_memory()
            grown = max(grown, highest - before)
            if highest - before > MOST_GROWN:
                tell(done=done, error=f"a file took {highest - before:,} bytes of memory")
            if highest > MOST_BYTES:
                tell(done=done, error=f"the process took {highest:,} bytes of memory")
                break
            if time.monotonic() > end:
                break
        tell(tries=tries, refused=refused, slowest=slowest, grown=grown)


def memory() -> int:
    """Bytes of resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def highest_memory() -> int:
    """The same at most, since the last `forget_highest_memory`."""
    (found,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(found.split()[1]) * 1024


def forget_highest_memory() -> None:
    """Let `highest_memory` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")
