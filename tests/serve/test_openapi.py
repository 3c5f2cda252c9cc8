"""The server does what its OpenAPI schema says: schemathesis finds no difference. `make test-extras` installs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hashroute import Model
from served import running

PROGRAM = Path(sys.executable).with_name("schemathesis")
HOOKS = """
from pathlib import Path

import schemathesis
from hypothesis import strategies

images = [file.read_bytes() for file in sorted(Path("round").glob("*/0.png"))]
schemathesis.openapi.format("binary", strategies.sampled_from(images))
"""
SETTINGS = """
seed = 1
hooks = "hooks"
continue-on-failure = true
generation.max-examples = 30
phases.stateful.generation.max-examples = 10

[[operations]]
include-path = "/learn"  # it needs as many classes as images: a schema cannot say so
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "403", "409"]
"""


@pytest.mark.slow
@pytest.mark.skipif(not PROGRAM.exists(), reason="needs the extra openapi: make test-extras")
def test_schemathesis_finds_nothing(images: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(images / "model", tmp_path / "model"))
    shutil.copytree(images / "round", tmp_path / "round")
    (tmp_path / "hooks.py").write_text(HOOKS)
    (tmp_path / "schemathesis.toml").write_text(SETTINGS)
    with running(model) as server:
        command = [str(PROGRAM), "run", f"{server.address}openapi.json", "--no-color"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-6000:]
        assert server.get("health").json()["status"] == "ok"
        assert server.stop() == 0
    assert Model(model).verify() == []
