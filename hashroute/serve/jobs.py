"""Jobs: tasks that are learned in the background, one at a time."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from typing import Any, Literal

from fastapi import HTTPException
from pydantic import BaseModel

from hashroute.serve.lesson import Order
from hashroute.serve.limits import Limits

LONGEST_LINE = 2**24
"""Bytes of one line of the process that learns."""
SECONDS_BETWEEN = 0.2
"""Time between two looks at a job that is followed."""


class Lesson(BaseModel):
    """What was learned."""

    task: str
    classes: list[str]
    images: int
    held_out: int
    accuracy: float | None
    """Share of right answers to held-out images."""
    epochs: int
    seconds: float
    new_classes: list[str]
    notes: list[str]
    decision: str | None
    """What was decided about the units of the task, and why."""
    old_tasks: int
    old_answers: int
    """Answers of the other tasks, asked before and after."""
    old_answers_changed: int
    """How many of them are not the same, bit for bit."""


class Job(BaseModel):
    """A task that is being learned, or was."""

    id: str
    task: str
    state: Literal["running", "done", "failed"] = "running"
    epoch: int = 0
    epochs: int | None = None
    images: int = 0
    """Images that were trained on, over all epochs."""
    total: int | None = None
    seconds: float = 0.0
    report: Lesson | None = None
    error: str | None = None


class Jobs:
    """The jobs of a server."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.known: dict[str, Job] = {}
        self._running: asyncio.Task[None] | None = None

    def check_free(self) -> None:
        """Refuse a change while something is being learned."""
        if self._running is not None and not self._running.done():
            raise HTTPException(409, "a task is being learned: wait until it has ended")

    def start(self, order: Order, folder: AbstractContextManager[Any]) -> Job:
        """Start to learn. The folder with the images is removed at the end."""
        self.check_free()
        job = Job(id=secrets.token_hex(8), task=order.task)
        while len(self.known) >= self.limits.jobs_kept:
            del self.known[next(iter(self.known))]
        self.known[job.id] = job
        self._running = asyncio.create_task(self._run(job, order, folder))
        return job

    def find(self, name: str) -> Job:
        """The job with this id."""
        if name not in self.known:
            raise HTTPException(404, f"there is no job {name[:40]!r}: only the last {self.limits.jobs_kept} are kept")
        return self.known[name]

    async def follow(self, job: Job, closing: Callable[[], bool]) -> AsyncIterator[str]:
        """The states of a job as server-sent events, until it has ended or the server is closing."""
        told = ""
        while True:
            state = job.model_dump_json()
            if state != told:
                told = state
                yield f"data: {state}\n\n"
            if job.state != "running" or closing():
                return
            await asyncio.sleep(SECONDS_BETWEEN)

    async def stop(self) -> None:
        """End the job that runs: its model is then as before, and finished epochs are kept."""
        if self._running is not None:
            self._running.cancel()
            with suppress(asyncio.CancelledError):
                await self._running

    async def _run(self, job: Job, order: Order, folder: AbstractContextManager[Any]) -> None:
        process = None
        try:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "hashroute.serve.lesson"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LONGEST_LINE,
                start_new_session=True,  # Ctrl-C in a terminal reaches the server alone
            )
            await asyncio.wait_for(self._listen(job, order, process), self.limits.lesson_seconds)
            code = await process.wait()
            if job.report is None and job.error is None:
                job.error = f"the process that learns ended with code {code}: the model is as it was"
        except asyncio.TimeoutError:
            job.error = (
                f"learning took longer than {self.limits.lesson_seconds:g} seconds: send the same images to continue"
            )
        except asyncio.CancelledError:
            job.error = "the server was stopped: send the same images to continue"
        except (OSError, ValueError) as error:
            job.error = f"the process that learns failed: {' '.join(str(error).split())}"
        finally:
            if process is not None and process.returncode is None:
                process.kill()  # the store allows it at any moment
                await process.wait()
            folder.__exit__(None, None, None)
            job.state = "failed" if job.report is None else "done"  # last: a client may ask for the next change now

    async def _listen(self, job: Job, order: Order, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(asdict(order)).encode())
        process.stdin.close()
        async for line in process.stdout:
            event = json.loads(line)
            if "progress" in event:
                done = event["progress"]
                job.epoch, job.epochs, job.images = done["epoch"], done["epochs"], done["images"]
                job.total, job.seconds = done["total"], done["seconds"]
            elif "report" in event:
                job.report = Lesson(**event["report"])
            else:
                job.error = event["error"]
