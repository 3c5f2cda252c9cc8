"""Lets torchvision be imported where its operators were built for another torch. Avalanche uses none of them."""

from __future__ import annotations

import torch

OPERATORS: list[torch.library.Library] = []
"""Definitions last as long as what made them."""


def define_missing() -> None:
    """Declare the operators that torchvision looks for when it is imported, without a body."""
    if OPERATORS or hasattr(torch.ops.torchvision, "nms"):
        return
    OPERATORS.append(torch.library.Library("torchvision", "DEF"))
    for name in ("nms", "qnms"):
        OPERATORS[0].define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
