"""upl-svhn: house numbers without labels, two digits a phase, in the protocol of STAM."""

from __future__ import annotations

import torch

from hashroute.scenarios.from_datasets import digit_phases
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario, Split

PUBLISHED = {
    "STAM": {"classified": (88.0, 81.0, 78.6, 76.6, 72.4), "purity": (88.8, 74.7, 68.1, 65.1, 56.7)},
}
"""After each phase, in percent; see `upl_mnist`. STAM's stream also has 10,000 images of the set `extra`."""

LUMINANCE = (0.2125, 0.7154, 0.0721)
"""Weights of red, green and blue in grey."""


@register_scenario("upl-svhn", epochs=(1,), datasets=("svhn",), probe_labels=100)
def upl_svhn() -> Scenario:
    """Grey SVHN as five phases of two digits, 10,000 images each where there are as many, seen once."""
    return Scenario("upl-svhn", digit_phases("svhn", _in_grey))


def _in_grey(split: Split) -> Split:
    """Images of one channel."""
    grey = torch.tensordot(split.images[:].float(), torch.tensor(LUMINANCE), ([1], [0]))
    return Split(grey.round().to(torch.uint8)[:, None], split.labels)
