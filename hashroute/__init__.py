"""Continual learning with hash-routed networks."""

from hashroute.network import HashRoutedNetwork, Routing
from hashroute.units import UnitSpec

__all__ = ["HashRoutedNetwork", "Routing", "UnitSpec", "__version__"]
__version__ = "0.1.0"
