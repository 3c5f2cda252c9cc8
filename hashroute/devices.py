"""Devices to compute on."""

from __future__ import annotations

import torch
from torch import Tensor


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


def waits(device: torch.device) -> bool:
    """Whether a program that looks at a value on a device waits until the device has computed it."""
    return device.type != "cpu"


def all_true(mask: Tensor) -> bool:
    """Whether all are true. Where looking makes the program wait, it does not look, and the answer is no."""
    return not waits(mask.device) and bool(mask.all())


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor on a device. The program does not wait for a transfer to a CUDA device."""
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)
