"""The registry of scenarios."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hashroute.tasks import Scenario

SCENARIOS: dict[str, Callable[..., Scenario]] = {}
"""Functions that make a scenario, by name."""


def register_scenario(name: str) -> Callable[[Callable[..., Scenario]], Callable[..., Scenario]]:
    """Decorate a function that makes a scenario, so that `load_scenario` finds it by this name."""

    def register(make: Callable[..., Scenario]) -> Callable[..., Scenario]:
        if name in SCENARIOS:
            raise ValueError(f"there is a scenario {name!r} already: choose another name")
        SCENARIOS[name] = make
        return make

    return register


def load_scenario(name: str, fraction: float = 1.0, **options: Any) -> Scenario:
    """Make a scenario by name; `fraction` takes a part of every task's images, for a quick look."""
    if name not in SCENARIOS:
        raise ValueError(f"there is no scenario {name!r}: expected one of {', '.join(SCENARIOS)}")
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction is {fraction}: expected a number above 0, up to 1")
    try:
        inspect.signature(SCENARIOS[name]).bind(**options)
    except TypeError as error:
        raise ValueError(f"scenario {name!r} cannot be made with {options or 'no options'}: {error}") from None
    scenario = SCENARIOS[name](**options)
    if fraction == 1:
        return scenario
    return Scenario(scenario.name, tuple(task.part(fraction) for task in scenario.tasks))
