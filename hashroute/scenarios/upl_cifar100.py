"""upl-cifar100: the ten tasks of split-cifar100 without labels."""

from __future__ import annotations

from hashroute.scenarios.from_datasets import cifar_task
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario


@register_scenario("upl-cifar100", epochs=(1,), datasets=("cifar-100",), probe_labels=100)
def upl_cifar100() -> Scenario:
    """CIFAR-100 as ten phases of ten classes, each image seen once."""
    return Scenario("upl-cifar100", tuple(map(cifar_task, range(10))))
