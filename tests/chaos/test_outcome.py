"""The campaign sees what it looks for: hangs that are swallowed, memory that is given back, a process that ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import json, os, outcome
from random import Random
outcome.MOST_SECONDS, outcome.MOST_GROWN = 0.2, 2**26

def refused():
    raise ValueError("one line")

def hangs():
    try:
        while True:
            pass
    except Exception:  # as readers do, to whom every error is a damaged file
        refused()

def much():
    b"x" * 2**27
    refused()

def many_lines():
    raise ValueError("one line\\nand another one")

parts = {}
for read in (refused, hangs, much, many_lines, os.abort):
    part = parts[read.__name__] = outcome.Part(read.__name__)
    outcome.read_mutated(part, iter([("no file", read), (f"a file for {read.__name__}", read)]), 0.001, Random(0))
print(json.dumps({name: [part.tries, part.refused, part.described] for name, part in parts.items()}))
"""


def test_hangs_memory_and_the_end_of_a_process_are_failures() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    parts = json.loads(done.stdout)
    assert parts["refused"] == [1, 1, []]
    for name, reason in (
        ("hangs", "not read in 0.2 s"),
        ("much", "bytes of memory"),
        ("many_lines", "ValueError"),
        ("abort", "ended with status"),
    ):
        described = parts[name][2]
        assert len(described) == 1
        assert reason in described[0]
        assert f"a file for {name}" in described[0]
