"""Continual learning with hash-routed networks."""

from hashroute.learners import create_learner, load_learner, register_learner
from hashroute.learners.learner import Learner
from hashroute.learners.objectives import Objective, register_objective
from hashroute.nn.backbones import register_backbone
from hashroute.nn.network import HashRoutedNetwork, Routing
from hashroute.nn.units import UnitSpec
from hashroute.scenarios import load_scenario, register_scenario
from hashroute.tasks import Scenario, Task
from hashroute.training.result import RunResult
from hashroute.training.run import run

__all__ = [
    "HashRoutedNetwork",
    "Learner",
    "Objective",
    "Routing",
    "RunResult",
    "Scenario",
    "Task",
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
