"""The documentation builds as a site that is complete and needs no network."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    site = tmp_path / "site"
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    method = (site / "method.html").read_text()
    assert '<math xmlns="http://www.w3.org/1998/Math/MathML" display="block">' in method
    assert "arithmatex" not in method, "a formula was not converted"
    assert (site / "files" / "results" / "mixed.json").exists()
    assert "create_learner" in (site / "api.html").read_text()
    for path in site.rglob("*.html"):
        outside = re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?://[^>]*>", path.read_text())
        assert not outside, f"{path.name} loads {outside} from the network"
