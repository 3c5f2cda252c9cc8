"""The campaign of kills and hostile files in short; `make chaos` runs it for half an hour."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CAMPAIGN = Path(__file__).with_name("campaign.py")
needs_shim = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("gcc") is None, reason="the library that disturbs calls needs gcc and Linux"
)


def campaign(minutes: float, only: str, folder: Path) -> dict[str, int]:
    """The tries of each part of a campaign in which nothing failed."""
    command = [sys.executable, str(CAMPAIGN), "--minutes", str(minutes), "--seed", "0", "--only", only]
    command += ["--result", str(folder / "result.json")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-3000:]
    return {part["name"]: part["tries"] for part in json.loads((folder / "result.json").read_text())["parts"]}


@needs_shim
def test_killed_or_without_space_there_is_always_one_whole_version(tmp_path: Path) -> None:
    tries = campaign(0.05, "kills", tmp_path)
    assert sum(tries.values()) >= 8


@needs_shim
def test_mutated_files_are_refused_in_one_line_and_run_nothing(tmp_path: Path) -> None:
    assert all(count > 0 for count in campaign(0.08, "files", tmp_path).values())
