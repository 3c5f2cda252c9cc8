"""Scenarios: ordered lists of tasks, by name. Each has a file of its own, with its recipe and its published results."""

from hashroute.scenarios.registry import (
    ScenarioSpec,
    find_scenario,
    has_published_images,
    load_scenario,
    probe_labels,
    published_results,
    register_scenario,
    scenario_names,
    scenario_recipe,
    scenario_summaries,
)

__all__ = [
    "ScenarioSpec",
    "find_scenario",
    "has_published_images",
    "load_scenario",
    "probe_labels",
    "published_results",
    "register_scenario",
    "scenario_names",
    "scenario_recipe",
    "scenario_summaries",
]
