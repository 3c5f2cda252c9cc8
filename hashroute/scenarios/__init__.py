"""Scenarios: ordered lists of tasks, by name. A file registers its scenarios when it is imported."""

from hashroute.scenarios import digits, folders, mixed, published  # noqa: F401
from hashroute.scenarios.registry import SCENARIOS, load_scenario, register_scenario

__all__ = ["SCENARIOS", "load_scenario", "register_scenario"]
