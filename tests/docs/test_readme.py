"""What README shows works as it stands, and what it links to exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def test_the_library_example_runs() -> None:
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "HashRoutedNetwork(" in block]
    names: dict[str, object] = {}
    exec(example, names)
    assert len(names["network"].units) == 5


def test_the_model_that_keeps_learning_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "create_learner(" in block]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    assert [task.name for task in names["learner"].tasks] == ["birds", "cars"]
    printed = capsys.readouterr().out
    assert "birds: fresh units" in printed
    assert "cars: looks like birds" in printed


def test_the_example_of_a_run_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (example,) = [
        block for block in re.findall(r"```python\n(.*?)```", README, re.S) if "outcome, learner = run(" in block
    ]
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    assert len(names["outcome"].accuracy) == 5
    assert (tmp_path / "runs" / "mine" / "model.safetensors").exists()


def test_the_learner_of_ones_own_in_the_docs_works(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    (example,) = [block for block in re.findall(r"```python\n(.*?)```", text, re.S) if "@register_learner" in block]
    (tmp_path / "my_module.py").write_text(example)
    command = "-m hashroute bench digits --plugins my_module --learners frozen vc --epochs 1 --fraction 0.3"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, *command.split()], cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert list(json.loads((tmp_path / "results" / "digits-0.3.json").read_text())["learners"]) == ["vc", "frozen"]


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *ROOT.glob("docs/**/*.md")):
        for target, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
            other = page.parent / target if target else page
            assert other.exists(), f"{page.name} links to {target}"
            if heading:
                headings = re.findall(r"^#+ (.+)$", other.read_text(), re.M)
                slugs = [re.sub(r"[^\w\- ]", "", each).strip().lower().replace(" ", "-") for each in headings]
                assert heading in slugs, f"{page.name} links to {target}#{heading}"


README = (ROOT / "README.md").read_text()
