"""Where to compute."""

from __future__ import annotations

import torch


def find_device(name: str) -> torch.device:
    """The device of this name; an error if it is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ValueError(
            f"--device is {name!r}, which this machine does not have or does not know: "
            "expected auto, cpu, or an accelerator that torch sees; leave it out to let hashroute choose"
        ) from None
    return device
