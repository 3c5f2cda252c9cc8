"""The registry of scenarios: what belongs to each of them, by name.

A built-in scenario is imported when it is first needed, so names and summaries are available without importing torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from hashroute.registry import BuiltIn, Registry

if TYPE_CHECKING:
    from hashroute.recipe import Profile, Recipe
    from hashroute.tasks import Scenario

SUMMARIES = {
    "digits": "scikit-learn's handwritten digits in five pairs; 8 x 8 pixels, no download",
    "pairwise-mnist": "MNIST digits in five pairs",
    "fashion-mnist": "ten garments of Fashion-MNIST, then ten digits of MNIST",
    "svhn-cifar100": "house numbers of SVHN, then CIFAR-100 in ten tasks of ten classes",
    "split-cifar100": "CIFAR-100 in ten tasks of ten classes",
    "mixed": "ten tasks from SVHN, CIFAR-100, MNIST and Fashion-MNIST; some data sets come back",
    "upl-mnist": "MNIST without labels: two digits a phase, each image seen once",
    "upl-svhn": "grey SVHN without labels: two digits a phase, each image seen once",
    "upl-cifar100": "CIFAR-100 without labels: ten classes a phase, each image seen once",
    "folders": "your own images: one folder per task, with one folder per class inside",
}
"""What the scenarios that come with hashroute are. Each is registered by the module of the same name."""

PublishedResults = Mapping[str, tuple[tuple[float, float], ...]]
"""By learner, for each task: accuracy right after learning it, and at the end, in percent."""


@dataclass(frozen=True)
class ScenarioSpec:
    """Everything that belongs to a scenario."""

    name: str
    summary: str
    make: Callable[..., Scenario]
    epochs: tuple[int, ...] = (10,)
    """Of the default recipe, task by task; the last number is used for all later tasks."""
    published_recipe: Recipe | None = None
    published_results: PublishedResults = field(default_factory=dict)
    datasets: tuple[str, ...] = ()
    """The data sets that its images come from; none if they come from elsewhere."""
    probe_labels: int = 100
    """Labelled training images of each class by which features are judged, if nothing is learned from labels."""

    def recipe(self, image_shape: tuple[int, ...], classes: int, profile: Profile = "default") -> Recipe:
        """The recipe for images of this shape and tasks of at most `classes` classes."""
        from hashroute.recipe import recipe_for

        if profile == "default":
            return replace(recipe_for(image_shape, classes), epochs=self.epochs)
        if self.published_recipe is None:
            known = ", ".join(name for name in scenario_names() if find_scenario(name).published_recipe is not None)
            raise ValueError(f"scenario {self.name!r} has no published recipe: expected one of {known}")
        return self.published_recipe


SCENARIOS: Registry[ScenarioSpec] = Registry(
    "a scenario",
    {name: BuiltIn(f"{__package__}.{name.replace('-', '_')}", summary) for name, summary in SUMMARIES.items()},
)


def register_scenario(
    name: str,
    *,
    epochs: tuple[int, ...] = (10,),
    published_recipe: Recipe | None = None,
    published_results: PublishedResults | None = None,
    datasets: tuple[str, ...] = (),
    probe_labels: int = 100,
) -> Callable[[Callable[..., Scenario]], Callable[..., Scenario]]:
    """Decorate a function that makes a scenario: `load_scenario` and the commands then find it by this name.

    The first line of the function's docstring is its summary. `epochs` changes the default recipe. What is published
    about the scenario is compared with its results. `probe_labels`: labelled images of each class that judge features.
    """

    def register(make: Callable[..., Scenario]) -> Callable[..., Scenario]:
        summary = SUMMARIES.get(name) or (inspect.getdoc(make) or "").partition("\n")[0]
        spec = ScenarioSpec(
            name, summary, make, epochs, published_recipe, published_results or {}, datasets, probe_labels
        )
        SCENARIOS.add(name, spec, make.__module__)
        return make

    return register


def scenario_names() -> list[str]:
    """The names of all scenarios."""
    return SCENARIOS.names


def scenario_summaries() -> dict[str, str]:
    """One line about each scenario, by name."""
    return {**SUMMARIES, **{name: spec.summary for name, spec in SCENARIOS.items()}}


def find_scenario(name: str) -> ScenarioSpec:
    """Everything that belongs to the scenario with this name."""
    return SCENARIOS.find(name)


def load_scenario(name: str, fraction: float = 1.0, **options: Any) -> Scenario:
    """Make a scenario by name. `fraction` takes a part of every task's images, for a quick look."""
    if not isinstance(name, str):
        raise ValueError(
            f"the scenario is a {type(name).__name__}: expected a name, one of {', '.join(scenario_names())}"
        )
    spec = find_scenario(name)
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction is {fraction}: expected a number above 0, up to 1")
    try:
        inspect.signature(spec.make).bind(**options)
    except TypeError as error:
        raise ValueError(f"scenario {name!r} cannot be made with {options or 'no options'}: {error}") from None
    scenario = spec.make(**options)
    return scenario if fraction == 1 else scenario.part(fraction)


def scenario_recipe(scenario: Scenario, profile: Profile = "default") -> Recipe:
    """The recipe of a scenario. One that is not registered has the default recipe for its images."""
    known = scenario.name in scenario_names()
    spec = find_scenario(scenario.name) if known else ScenarioSpec(scenario.name, "", lambda: scenario)
    return spec.recipe(scenario.image_shape, max(task.classes for task in scenario.tasks), profile)


def has_published_images(scenario: Scenario, fraction: float = 1.0) -> bool:
    """Whether a scenario is the registered one of this name, made of data sets whose files are those published."""
    from hashroute.data import differing_files

    datasets = find_scenario(scenario.name).datasets if scenario.name in scenario_names() else ()
    if not datasets or any(map(differing_files, datasets)):
        return False
    return load_scenario(scenario.name, fraction).digest == scenario.digest


def published_results(name: str) -> PublishedResults:
    """The results that were published for the scenario with this name; none for an unknown scenario."""
    return find_scenario(name).published_results if name in scenario_names() else {}


def probe_labels(name: str) -> int:
    """Labelled images of each class that judge features in the scenario with this name."""
    return find_scenario(name).probe_labels if name in scenario_names() else 100
