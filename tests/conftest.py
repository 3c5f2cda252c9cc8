"""Every test runs with one thread, and its programs hear Ctrl-C; some need onnxruntime."""

from __future__ import annotations

import signal
from typing import Any

import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell started in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the programs under test are to hear Ctrl-C


@pytest.fixture
def runtime() -> Any:
    """onnxruntime, with everything that an export needs."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="needs the extra export: make test-extras")
    return pytest.importorskip("onnxruntime", reason="needs onnxruntime: make test-extras")
