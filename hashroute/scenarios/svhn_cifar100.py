"""svhn-cifar100: SVHN, then CIFAR-100 in ten tasks, the paper's third scenario."""

from __future__ import annotations

from hashroute.nn.units import UnitSpec
from hashroute.recipe import LARGE_HEAD, Recipe
from hashroute.scenarios.from_datasets import cifar_task, dataset_task
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario

PUBLISHED_RECIPE = Recipe(
    epochs=(8, 15),
    batch_size=16,
    backbone=(UnitSpec(36, 3, 2, 2), UnitSpec(99, 2, 1, 1)),
    pool=4,
    features=2800,
    head=LARGE_HEAD,
    scaling="data set",
)
"""The paper's settings. The plain encoder gives about as many features as the paper's units."""

PUBLISHED_RESULTS = {
    "vc": (
        *((88.34, 20.46), (61.70, 43.10), (59.60, 51.40), (67.80, 60.30), (59.10, 51.60), (66.10, 61.00)),
        *((66.70, 60.30), (67.70, 64.60), (63.70, 60.90), (66.20, 62.40), (70.10, 70.10)),
    ),
    "ewc": (
        *((81.75, 14.17), (48.60, 54.70), (43.80, 7.10), (50.40, 8.20), (41.00, 5.30), (44.60, 7.80)),
        *((45.30, 12.40), (55.70, 25.90), (49.80, 21.60), (45.70, 22.50), (48.20, 48.20)),
    ),
    "ell": (
        *((87.52, 47.13), (60.50, 54.70), (57.70, 48.10), (67.60, 63.70), (59.60, 52.90), (63.90, 57.90)),
        *((65.20, 63.00), (67.80, 66.40), (61.80, 61.60), (62.80, 62.60), (70.20, 70.20)),
    ),
    "hrn-paper": (
        *((75.08, 74.55), (55.10, 48.10), (50.10, 48.10), (57.90, 55.90), (51.70, 51.90), (55.80, 56.30)),
        *((55.50, 55.90), (55.90, 55.80), (54.10, 54.60), (50.00, 50.00), (59.00, 59.00)),
    ),
}


@register_scenario(
    "svhn-cifar100",
    epochs=(5, 10),
    published_recipe=PUBLISHED_RECIPE,
    published_results=PUBLISHED_RESULTS,
    datasets=("svhn", "cifar-100"),
)
def svhn_cifar100() -> Scenario:
    """House numbers, then CIFAR-100 in ten tasks of ten classes."""
    return Scenario("svhn-cifar100", (dataset_task("svhn", "SVHN"), *map(cifar_task, range(10))))
