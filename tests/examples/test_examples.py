"""Every example runs, and says something."""

from __future__ import annotations

from pathlib import Path

import pytest

from programs import run_script

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, tmp_path: Path) -> None:
    assert run_script(example, tmp_path).strip()
