"""When the hash-routed network adds a unit by itself; the paper adds units by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hashroute.nn.units import UnitSpec


@dataclass(frozen=True)
class Growth:
    """A unit is added after `patience` training batches in a row in which more than a share of hash vectors is unknown.

    A hash vector is unknown if it would have initialised an empty unit, but none was left: its longest projection on a
    free unit is below `tau_empty`. So the network does not grow while it has an empty unit.
    """

    units: tuple[UnitSpec, ...]
    """The specs of new units, taken in turn: unit k becomes a copy of number k modulo their count."""
    most: int
    """Units that the network has at most; units that are added by hand are not limited."""
    share: float = 0.05
    """The share of a batch's hash vectors, over all levels, that must be exceeded."""
    patience: int = 10

    def __post_init__(self) -> None:
        object.__setattr__(self, "units", tuple(self.units))
        if not self.units or not all(isinstance(spec, UnitSpec) for spec in self.units):
            raise ValueError(f"units of a Growth is {self.units!r:.80}: expected one UnitSpec or more")
        for name in ("most", "patience"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} of a Growth is {value!r}: expected a whole number of at least 1")
        if not 0 <= self.share < 1:
            raise ValueError(f"share of a Growth is {self.share!r}: expected a number from 0 to below 1")

    def to_dict(self) -> dict[str, Any]:
        """The rule as plain values, for JSON."""
        return {**vars(self), "units": [spec.to_dict() for spec in self.units]}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Growth:
        """The rule that `to_dict` described."""
        return cls(**{**values, "units": tuple(map(UnitSpec.from_dict, values["units"]))})
