"""Options of learners: one dataclass for each kind of learner, plain values in files."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, is_dataclass
from importlib import resources
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class NoOptions:
    """Options of a learner that has none."""


def options_to_dict(options: Any) -> dict[str, Any]:
    """Options as plain values, for JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(options)))
    return plain


def options_from_dict(kind: type, values: dict[str, Any]) -> Any:
    """Options of a learner from plain values; an unknown name is an error that lists the known ones."""
    if not is_dataclass(kind):
        raise TypeError(f"{kind} is not a dataclass")
    known = {item.name: item for item in fields(kind)}
    for name in values:
        if name not in known:
            expected = f"one of {', '.join(known)}" if known else "none"
            raise ValueError(f"{kind.__name__} has no option {name!r}: expected {expected}")
    convert = getattr(kind, "from_plain", lambda plain: plain)
    return kind(**convert(dict(values)))


def tuned_options(name: str, path: Path | None = None) -> dict[str, dict[str, Any]]:
    """Options by learner that `hashroute search` chose: from its file, or those that come with hashroute for a name.

    name: of a scenario, with "-paper" for its published recipe. The files are tuned/NAME.json, and
    tuned/NAME.LEARNER.json where a learner had a search of its own.
    """
    if path is not None:
        return _chosen(path.read_text(), path)
    files = sorted(resources.files("hashroute").joinpath("learners", "tuned").iterdir(), key=lambda file: file.name)
    found: dict[str, dict[str, Any]] = {}
    for file in files:
        if file.name.startswith(f"{name}."):
            found |= _chosen(file.read_text(), file)
    return found


def _chosen(text: str, file: object) -> dict[str, dict[str, Any]]:
    try:
        chosen: dict[str, dict[str, Any]] = json.loads(text)["chosen"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{file} is not a file that hashroute search writes: give the file that it named") from None
    return chosen
