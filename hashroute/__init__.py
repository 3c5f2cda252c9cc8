"""Continual learning with hash-routed networks."""

from hashroute.learners import Learner, create_learner, load_learner, register_learner
from hashroute.network import HashRoutedNetwork, Routing
from hashroute.scenarios import Scenario, Task, load_scenario, register_scenario
from hashroute.training import Outcome, run
from hashroute.units import UnitSpec

__all__ = [
    "HashRoutedNetwork",
    "Learner",
    "Outcome",
    "Routing",
    "Scenario",
    "Task",
    "UnitSpec",
    "__version__",
    "create_learner",
    "load_learner",
    "load_scenario",
    "register_learner",
    "register_scenario",
    "run",
]
__version__ = "0.1.0"
