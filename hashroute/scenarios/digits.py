"""digits: scikit-learn's handwritten digits in five pairs."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario, Split, Task, choose_classes, hold_out

FILE = "datasets/data/digits.csv.gz"
"""The file in scikit-learn's folder."""


@register_scenario("digits")
def digits() -> Scenario:
    """0 or 1, 2 or 3, ..., 8 or 9. A quarter of the images is for testing."""
    rows = _rows()
    pixels = np.round(rows[:, :64].reshape(-1, 1, 8, 8) / 16 * 255).astype(np.uint8)
    rest, test = hold_out(Split(torch.from_numpy(pixels), torch.from_numpy(rows[:, 64]).long()), "digits", 0.25)
    tasks = []
    for pair in ((0, 1), (2, 3), (4, 5), (6, 7), (8, 9)):
        name = f"{pair[0]} or {pair[1]}"
        train, validation = hold_out(choose_classes(rest, pair), name)
        names = tuple(str(digit) for digit in pair)
        tasks.append(Task(name, train, validation, choose_classes(test, pair), names, dataset="digits"))
    return Scenario("digits", tuple(tasks))


def _rows() -> NDArray[np.uint8]:
    """64 pixels from 0 to 16 and the digit of each image: (n, 65). Importing scikit-learn would be slower."""
    package = find_spec("sklearn")
    if package is not None and package.origin is not None:
        file = Path(package.origin).parent / FILE
        if file.is_file():
            return np.loadtxt(file, np.uint8, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target]).astype(np.uint8)
