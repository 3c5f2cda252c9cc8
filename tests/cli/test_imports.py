"""What is imported only when it is used: start-up takes a fraction of a second."""

from __future__ import annotations

import subprocess
import sys

import pytest

import hashroute

HEAVY = ("torch", "numpy", "matplotlib", "scipy", "sklearn", "pooch", "PIL", "joblib", "safetensors")
HELP = """
import contextlib, io
from hashroute.cli.app import main
for command in ([], ["bench"], ["demo"], ["search"], ["ablate"], ["inspect"], ["report"], ["data"]):
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
        main([*command, "--help"])
"""


@pytest.mark.parametrize("script", ["import hashroute; hashroute.__version__", HELP], ids=["import", "help"])
def test_start_up_imports_nothing_heavy(script: str) -> None:
    script += f"\nimport sys; print([name for name in {HEAVY} if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert process.stdout == "[]\n"


def test_every_public_name_is_there() -> None:
    for name in hashroute.__all__:
        assert getattr(hashroute, name) is not None
    assert set(hashroute.__all__) <= set(dir(hashroute))
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        hashroute.nothing  # noqa: B018
