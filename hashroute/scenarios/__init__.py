"""Scenarios: ordered lists of tasks, by name. A file registers its scenarios when it is imported."""

from hashroute.scenarios import digits, folders, mixed, published  # noqa: F401
from hashroute.scenarios.base import SCENARIOS, Scenario, Task, load_scenario, register_scenario

__all__ = ["SCENARIOS", "Scenario", "Task", "load_scenario", "register_scenario"]
