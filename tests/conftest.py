"""Every test runs with one thread, and its programs hear Ctrl-C; some need onnxruntime or a browser."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell started in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the programs under test are to hear Ctrl-C


@pytest.fixture(scope="session")
def runtime() -> Any:
    """onnxruntime, with everything that an export needs."""
    for package in ("onnx", "onnxscript"):
        pytest.importorskip(package, reason="needs the extra export: make test-extras")
    return pytest.importorskip("onnxruntime", reason="needs onnxruntime: make test-extras")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real one, without a window."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        if os.environ.get("CI_BROWSER") == "1":
            pytest.fail("CI_BROWSER is 1, and there is no chromium")
        pytest.skip("there is no chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()
