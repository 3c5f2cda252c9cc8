"""Continual learning with hash-routed networks."""

from hashroute.network import HashRoutedNetwork, Routing
from hashroute.scenarios import Scenario, Task, load_scenario
from hashroute.units import UnitSpec

__all__ = ["HashRoutedNetwork", "Routing", "Scenario", "Task", "UnitSpec", "__version__", "load_scenario"]
__version__ = "0.1.0"
