"""split-cifar100: CIFAR-100 in ten tasks of ten classes."""

from __future__ import annotations

from hashroute.scenarios.from_datasets import cifar_task
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario


@register_scenario("split-cifar100", epochs=(15,), datasets=("cifar-100",))
def split_cifar100() -> Scenario:
    """CIFAR-100 in ten tasks of ten classes, in the order of the labels."""
    return Scenario("split-cifar100", tuple(map(cifar_task, range(10))))
