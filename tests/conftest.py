"""Every test runs with one thread, and its programs hear Ctrl-C."""

from __future__ import annotations

import signal

import torch

torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a job that a shell started in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the programs under test are to hear Ctrl-C
