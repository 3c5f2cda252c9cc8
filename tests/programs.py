"""Programs in processes of their own.

Most are forked from a process that has imported torch already: importing it takes longer than most programs do.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import pty
import resource
import runpy
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

PRELOADED = (
    *("hashroute.model.model", "hashroute.training.run", "hashroute.cli.app", "torch._dynamo"),
    *("hashroute.reporting.page", "hashroute.serve.app", "sklearn.datasets", "uvicorn"),
)


class Program:
    """`hashroute ...`, with pipes for what it prints, in a session of its own: a subset of `subprocess.Popen`.

    Args:
        arguments: of the command.
        folder: where it runs.
        variables: more environment variables.
        largest_file: bytes that the process can write into a file.
        script: Python code that runs instead of the command.
    """

    def __init__(
        self,
        *arguments: object,
        folder: Path,
        variables: Mapping[str, str] | None = None,
        largest_file: int | None = None,
        script: str | None = None,
    ) -> None:
        pipes = [prepared_processes().Pipe(duplex=False) for _ in range(2)]
        words = ["hashroute", *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})}
        writers = [writer for _, writer in pipes]
        given = (words, str(folder), environment, largest_file, script, writers)
        self._process = prepared_processes().Process(target=_be_hashroute, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid
        self.stdout, self.stderr = (os.fdopen(os.dup(reader.fileno())) for reader, _ in pipes)
        for pipe in pipes:
            for end in pipe:
                end.close()

    @property
    def returncode(self) -> int | None:
        code: int | None = self._process.exitcode
        return code

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("hashroute", timeout or 0.0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self) -> tuple[str, str]:
        """What it printed, to the end, which comes when nobody who shares its pipes is left."""
        with self.stdout, self.stderr:
            printed = self.stdout.read(), self.stderr.read()
        self.wait()
        return printed


def hashroute(*arguments: object, folder: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own; see `Program`."""
    program = Program(*arguments, folder=folder, **options)
    printed, errors = program.communicate()
    assert program.returncode is not None
    return subprocess.CompletedProcess(list(arguments), program.returncode, printed, errors)


def succeeded(*arguments: object, folder: Path, **options: Any) -> str:
    """Run a command that works; what it printed."""
    done = hashroute(*arguments, folder=folder, **options)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def run_script(path: Path, folder: Path, *arguments: str) -> str:
    """What a script prints in a process of its own, in a folder; it must succeed."""
    printed = folder / f".{path.stem}.printed"
    process = prepared_processes().Process(target=_run_file, args=(str(path), str(folder), str(printed), arguments))
    process.start()
    process.join()
    assert process.exitcode == 0, printed.read_text()
    return printed.read_text()


def run_together(folder: Path, *lines: Sequence[str], before: str = "") -> str:
    """What commands print in one process, in a folder; all must succeed. before: code that it runs first."""
    script = folder / ".commands.py"
    script.write_text(f"{before}\nfrom hashroute.cli import main\nassert not any([main(line) for line in {lines}])\n")
    return run_script(script, folder)


def on_a_terminal(command: Sequence[str], folder: Path) -> str:
    """What a command writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    where = {**os.environ, "OMP_NUM_THREADS": "1", "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(command, cwd=folder, env=where, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        with suppress(OSError):  # which is how a terminal says that nobody writes to it any more
            while part := os.read(ours, 65536):
                said += part
    os.close(ours)
    assert process.returncode == 0, said.decode()
    return said.decode()


@cache
def prepared_processes() -> Any:
    """Starts processes that have imported what most programs need."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _be_hashroute(
    words: list[str],
    folder: str,
    environment: dict[str, str],
    largest_file: int | None,
    script: str | None,
    writers: list[Connection],
) -> None:
    """Be the process of a command."""
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    if largest_file is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, resource.RLIM_INFINITY))
    for stream, writer in enumerate(writers, 1):
        os.dup2(writer.fileno(), stream)
        writer.close()
    with _as_a_program(words, folder):
        if script is not None:
            exec(script, {"__name__": "__main__"})
        else:
            from hashroute.cli import main

            sys.exit(main())


def _run_file(path: str, folder: str, printed: str, arguments: Sequence[str]) -> None:
    """Be the process of a script."""
    output = os.open(printed, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.path[:0] = [str(Path(path).parent)]
    with _as_a_program([path, *arguments], folder):
        runpy.run_path(path, run_name="__main__")


@contextmanager
def _as_a_program(words: list[str], folder: str) -> Iterator[None]:
    """Be a process as a shell starts it, to its end: not a worker of the tests."""
    os.chdir(folder)
    sys.argv = words
    torch.set_num_threads(1)
    multiprocessing.process._parent_process = None  # type: ignore[attr-defined]
    try:
        yield
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
