"""Options of learners: one dataclass for each kind of learner, plain values in files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

from hashroute.schema import read_json

if TYPE_CHECKING:
    from hashroute.learners.learner import Learner


@dataclass(frozen=True)
class NoOptions:
    """Options of a learner that has none."""


@dataclass(frozen=True)
class Span:
    """All values of an option from `low` to `high`. If both are whole numbers, so are the values."""

    low: float
    high: float
    log: bool = False
    """Whether small values are as interesting as large ones: 1 to 10 is as wide as 10 to 100."""

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            least = "above 0 " if self.log else ""
            raise ValueError(f"the span is {self.low} to {self.high}: expected a lower number {least}first")


Space = dict[str, Span | tuple[Any, ...]]
"""By option, the values among which a search chooses: a span, or each of some values."""


def options_to_dict(options: Any) -> dict[str, Any]:
    """Options as plain values, for JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(options)))
    return plain


def options_from_dict(kind: type[Learner], values: dict[str, Any]) -> Any:
    """Options of a kind of learner from plain values; an unknown name is an error that lists the known ones."""
    known = [item.name for item in fields(kind.Options)]
    for name in values:
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "none"
            raise ValueError(f"{kind.name} has no option {name!r}: expected {expected}")
    convert = getattr(kind.Options, "from_plain", lambda plain: plain)
    return kind.Options(**convert(dict(values)))


def searched_options(path: Path) -> dict[str, dict[str, Any]]:
    """The options, by learner, in a file that `hashroute search` wrote."""
    found = read_json(path, _Searched, advice="give a file that hashroute search wrote")
    chosen: dict[str, dict[str, Any]] = found["chosen"]
    return chosen


class _Searched(TypedDict):
    """The part of such a file that is needed."""

    chosen: dict[str, dict[str, Any]]
