"""Devices to compute on."""

from __future__ import annotations

import torch


def find_device(name: str) -> torch.device:
    """The device with this name; "auto" is an accelerator if there is one. An error if the machine does not have it."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"device {name!r} is not available on this machine: expected auto, cpu, or an accelerator that torch finds"
        ) from None
    return device
