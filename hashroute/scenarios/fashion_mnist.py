"""fashion-mnist: Fashion-MNIST, then MNIST, the paper's second scenario."""

from __future__ import annotations

from hashroute.nn.units import UnitSpec
from hashroute.recipe import SMALL_HEAD, Recipe
from hashroute.scenarios.from_datasets import dataset_task
from hashroute.scenarios.registry import register_scenario
from hashroute.tasks import Scenario

PUBLISHED_RECIPE = Recipe(
    epochs=(20, 10),
    batch_size=32,
    backbone=(UnitSpec(32, 5, 2, 2, max_pool=2), UnitSpec(32, 3, 1, 1)),
    pool=3,
    features=300,
    head=SMALL_HEAD,
    scaling="data set",
)
"""The paper's settings. The plain encoder gives about as many features as the paper's units."""

PUBLISHED_RESULTS = {
    "vc": ((88.79, 61.53), (98.00, 98.00)),
    "ewc": ((82.51, 72.27), (80.00, 80.00)),
    "ell": ((88.66, 49.71), (90.70, 90.70)),
    "hrn-paper": ((86.00, 84.00), (95.00, 95.00)),
}


@register_scenario(
    "fashion-mnist",
    epochs=(10, 5),
    published_recipe=PUBLISHED_RECIPE,
    published_results=PUBLISHED_RESULTS,
    datasets=("fashion-mnist", "mnist"),
)
def fashion_mnist() -> Scenario:
    """Ten garments, then ten digits."""
    return Scenario("fashion-mnist", (dataset_task("fashion-mnist", "Fashion"), dataset_task("mnist", "MNIST")))
