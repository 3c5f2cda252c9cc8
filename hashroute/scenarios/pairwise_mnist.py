"""pairwise-mnist: MNIST digits in five pairs, the paper's first scenario."""

from __future__ import annotations

from hashroute.nn.units import UnitSpec
from hashroute.recipe import SMALL_HEAD, Recipe
from hashroute.scenarios.from_datasets import dataset_task
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario

PUBLISHED_RECIPE = Recipe(
    epochs=(5,),
    batch_size=16,
    backbone=(UnitSpec(16, 5, 3, 2, norm_groups=1), UnitSpec(32, 2, 3, norm_groups=1)),
    features=300,
    head=SMALL_HEAD,
    scaling="data set",
)
"""The paper's settings. The plain encoder gives about as many features as the paper's units."""

PUBLISHED_RESULTS = {
    "vc": ((99.76, 55.84), (98.97, 92.46), (99.89, 96.26), (99.80, 99.60), (98.49, 98.49)),
    "ewc": ((99.53, 71.44), (95.64, 89.81), (87.57, 63.34), (94.66, 94.86), (86.79, 86.79)),
    "ell": ((99.81, 73.43), (99.04, 88.79), (99.50, 99.25), (99.70, 99.60), (98.79, 98.79)),
    "hrn-paper": ((98.49, 93.10), (90.74, 89.37), (95.62, 96.80), (95.67, 95.62), (94.91, 94.91)),
}


@register_scenario(
    "pairwise-mnist",
    epochs=(5,),
    published_recipe=PUBLISHED_RECIPE,
    published_results=PUBLISHED_RESULTS,
    datasets=("mnist",),
)
def pairwise_mnist() -> Scenario:
    """MNIST as five pairs of digits: 0 or 1, 2 or 3, ..., 8 or 9."""
    tasks = [dataset_task("mnist", f"{first} or {first + 1}", (first, first + 1)) for first in range(0, 10, 2)]
    return Scenario("pairwise-mnist", tuple(tasks))
