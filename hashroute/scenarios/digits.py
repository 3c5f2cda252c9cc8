"""digits: scikit-learn's handwritten digits, 8 x 8, as five pairs. Needs no download."""

from __future__ import annotations

import numpy as np
import torch

from hashroute.data import Split
from hashroute.scenarios.base import Scenario, Task, choose_classes, hold_out, register_scenario


@register_scenario("digits")
def digits() -> Scenario:
    """0 or 1, 2 or 3, ..., 8 or 9; a quarter of the images is for the test."""
    from sklearn.datasets import load_digits  # here: it takes as long to import as torch

    bunch = load_digits()
    pixels = np.round(bunch.images / 16 * 255).astype(np.uint8)[:, None]
    rest, test = hold_out(Split(torch.from_numpy(pixels), torch.from_numpy(bunch.target).long()), "digits", 0.25)
    tasks = []
    for pair in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)):
        name = f"{pair[0]} or {pair[1]}"
        train, validation = hold_out(choose_classes(rest, pair), name)
        names = tuple(str(digit) for digit in pair)
        tasks.append(Task(name, train, validation, choose_classes(test, pair), names, dataset="digits"))
    return Scenario("digits", tuple(tasks))
