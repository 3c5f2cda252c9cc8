"""upl-mnist: MNIST without labels, two digits a phase, in the protocol of STAM."""

from __future__ import annotations

from hashroute.scenarios.from_datasets import digit_phases
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario

PUBLISHED = {
    "STAM": {"classified": (97.6, 97.4, 96.2, 95.0, 91.2), "purity": (99.6, 97.9, 95.6, 92.7, 85.3)},
}
"""After each phase, in percent: Smith, Taylor, Baer and Dovrolis, Unsupervised Progressive Learning and the STAM
Architecture, IJCAI 2021, as the authors' repository lists it; three streams, five draws of images each."""


@register_scenario("upl-mnist", epochs=(1,), datasets=("mnist",), probe_labels=10)
def upl_mnist() -> Scenario:
    """MNIST as five phases of two digits, 10,000 images each where there are as many, seen once."""
    return Scenario("upl-mnist", digit_phases("mnist"))
