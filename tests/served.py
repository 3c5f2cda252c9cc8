"""Real servers: a process of its own for each, asked over HTTP."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import requests

from programs import Program

CHANGE = {"X-Hashroute": "1"}


class Server:
    """A server that runs."""

    def __init__(self, process: Program, address: str, model: Path) -> None:
        self.process, self.address, self.model = process, address, model

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.address + path, timeout=600, **options)

    def post(self, path: str, headers: dict[str, str] | None = None, **options: Any) -> requests.Response:
        return requests.post(
            self.address + path, headers=CHANGE if headers is None else headers, timeout=600, **options
        )

    def predict(self, *files: Path, **query: Any) -> list[dict[str, Any]]:
        answer = self.post("predict", {}, files=parts(files), params=query)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["answers"]
        return found

    def learn(self, task: str, folder: Path, *classes: str, **query: Any) -> dict[str, Any]:
        """Teach class folders, and wait for the end; the finished job."""
        files = [file for name in classes for file in sorted((folder / name).iterdir())]
        labels = [file.parent.name for file in files]
        begun = self.post("learn", params={"task": task, **query}, files=parts(files), data={"classes": labels})
        assert begun.status_code == 202, begun.text
        with self.get(f"jobs/{begun.json()['id']}/events", stream=True) as events:
            assert events.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in events.iter_lines() if line]
        assert all(line.startswith(b"data: ") for line in lines)
        job: dict[str, Any] = self.get(f"jobs/{begun.json()['id']}").json()
        return job

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(600)


def parts(files: Sequence[Path]) -> list[tuple[str, tuple[str, bytes]]]:
    return [("images", (file.name, file.read_bytes())) for file in files]


@contextmanager
def running(model: Path, *arguments: object, **options: Any) -> Iterator[Server]:
    """A server on a free port. options: of its `Program`."""
    process = Program("serve", model, "--port", 0, *arguments, folder=model.parent, **options)
    try:
        found = re.search(r"http://\S+?:(\d+)/", process.stdout.readline())
        assert found is not None, "the server did not start"
        yield Server(process, f"http://127.0.0.1:{found[1]}/", model)
    finally:
        process.kill()
        process.communicate()
