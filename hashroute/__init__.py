"""Continual learning with hash-routed networks."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hashroute.data.photos import Photos
    from hashroute.images import Images
    from hashroute.learners import create_learner, load_learner, register_learner
    from hashroute.learners.entries import Batch, TaskEntry
    from hashroute.learners.learner import Learner
    from hashroute.learners.objectives import Objective, register_objective
    from hashroute.model.model import Model
    from hashroute.nn.backbones import register_backbone
    from hashroute.nn.growth import Growth
    from hashroute.nn.network import HashRoutedNetwork, Routing
    from hashroute.nn.units import UnitSpec
    from hashroute.recipe import Recipe
    from hashroute.scenarios import load_scenario, register_scenario
    from hashroute.tasks import Scenario, Split, Task
    from hashroute.training.result import Comparison, RunResult
    from hashroute.training.run import run

__all__ = [
    "Batch",
    "Comparison",
    "Growth",
    "HashRoutedNetwork",
    "Images",
    "Learner",
    "Model",
    "Objective",
    "Photos",
    "Recipe",
    "Routing",
    "RunResult",
    "Scenario",
    "Split",
    "Task",
    "TaskEntry",
    "UnitSpec",
    "__version__",
    "create_learner",
    "load_learner",
    "load_scenario",
    "register_backbone",
    "register_learner",
    "register_objective",
    "register_scenario",
    "run",
]
__version__ = "0.1.0"

_MODULES = {
    "data.photos": ("Photos",),
    "images": ("Images",),
    "learners": ("create_learner", "load_learner", "register_learner"),
    "learners.entries": ("Batch", "TaskEntry"),
    "learners.learner": ("Learner",),
    "learners.objectives": ("Objective", "register_objective"),
    "model.model": ("Model",),
    "nn.backbones": ("register_backbone",),
    "nn.growth": ("Growth",),
    "nn.network": ("HashRoutedNetwork", "Routing"),
    "nn.units": ("UnitSpec",),
    "recipe": ("Recipe",),
    "scenarios": ("load_scenario", "register_scenario"),
    "tasks": ("Scenario", "Split", "Task"),
    "training.result": ("Comparison", "RunResult"),
    "training.run": ("run",),
}
"""Where each name comes from. It is imported when it is first used: torch takes seconds."""


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"hashroute.{module}"), name)
    raise AttributeError(f"module 'hashroute' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
