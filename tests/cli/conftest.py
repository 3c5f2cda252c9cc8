"""Commands in this process, in a folder of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from hashroute.cli import main

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hashroute_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `hashroute ...` in an empty folder; gives the exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def call(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main(list(map(str, arguments)))
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capsys.readouterr()

    return call


@pytest.fixture
def bench(hashroute_command: Command) -> Command:
    """Runs `hashroute bench ...`."""
    return lambda *arguments: hashroute_command("bench", *arguments)
