"""What commands share: checks of their options, and lines for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
from rich.console import Console
from rich.table import Table

from hashroute.learners import learner_summaries
from hashroute.scenarios import scenario_summaries

if TYPE_CHECKING:
    from hashroute.model.model import Model
    from hashroute.tasks import Scenario

UNSET = tyro.conf.arg(help_behavior_hint="")
"""Marks an option without a default value: its help then shows none."""

MODEL = tyro.conf.arg(metavar="MODEL")
"""Marks the folder of a model."""

UNBOUNDED = 100_000
"""Width of a table that nobody looks at in a terminal."""

CODE = tyro.conf.arg(
    metavar="FILE.py:FUNCTION",
    help="The model's backbone, if that is your own code. Code never runs only because a model names it.",
)
"""Marks the option that names the code of a model's backbone."""


def check_counts(**counts: int | None) -> None:
    """Raise an error unless each of these options, by name, is at least 1."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {count}: expected at least 1")


def check_fraction(fraction: float) -> None:
    """Raise an error unless a fraction is above 0 and at most 1."""
    if not 0 < fraction <= 1:
        raise ValueError(f"--fraction is {fraction}: expected a number above 0, up to 1")


def check_folder(scenario: str, folder: Path | None, size: int | None) -> None:
    """Raise an error unless a folder of images is given for the scenario `folders`, and for no other."""
    if scenario != "folders" and (folder or size):
        raise ValueError(f"--folder and --size belong to the scenario folders: leave them out for {scenario}")
    if scenario == "folders" and folder is None:
        raise ValueError("the scenario folders has no folder: add --folder FOLDER, with your images as TASK/CLASS/*")


def scenario_name(scenario: str, folder: Path | None) -> str:
    """What files about a scenario are named after: for images of a folder, also after the folder."""
    return scenario if folder is None else f"{scenario}-{folder.resolve().name}"


@lru_cache(maxsize=1)  # a worker process does several runs of one scenario
def load_tasks(name: str, folder: Path | None, size: int | None, fraction: float = 1.0) -> Scenario:
    """The scenario that a command names, with a share of its images."""
    from hashroute.scenarios import load_scenario

    given = {"folder": folder, "size": size}
    return load_scenario(name, fraction, **{name: value for name, value in given.items() if value is not None})


def parse_option(flag: str, text: str, learners: Sequence[str]) -> tuple[str, str, str]:
    """Learner, option and value of LEARNER.OPTION=VALUE, for one of these learners."""
    place, equals, value = text.partition("=")
    learner, _, name = place.partition(".")
    if not (name and equals):
        raise ValueError(f"{flag} has {text!r}: expected LEARNER.OPTION=VALUE, for example gpm.threshold=0.9")
    if learner not in learners:
        raise ValueError(f"{flag} has {text!r}, for a learner that is not used: expected one of {', '.join(learners)}")
    return learner, name, value


def parse_value(text: str) -> Any:
    """A value as JSON, or else as a word."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def open_model(path: Path, device: str = "cpu", backbone: str | None = None) -> Model:
    """The model in a folder; an error if there is none. backbone: the user's own code, if the model needs any."""
    from hashroute.model.model import Model
    from hashroute.model.records import SMALL

    if not path.exists():
        raise ValueError(f"there is no model {path}: make one with hashroute learn {path} FOLDER")
    return Model(path, device=device, backbone=backbone or SMALL)


def print_table(console: Console, table: Table) -> None:
    """Print a table. In a pipe or a file, its lines are never broken."""
    if not console.is_terminal:
        console.width = UNBOUNDED
    console.print(table)


def confirmed(console: Console, question: str) -> bool:
    """Ask a question on the terminal; whether the answer is yes."""
    say(console, f"{question} [y/N]")
    if sys.stdin.readline().strip().lower() in ("y", "yes"):
        return True
    say(console, "nothing was changed")
    return False


def say(console: Console, line: str) -> None:
    """Print one line as it is."""
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def learner_help() -> str:
    """The help of an option for learners."""
    return "Learners to compare:\n" + listed(learner_summaries())


def scenario_help() -> str:
    """The help of the argument for a scenario."""
    return "Scenario to learn:\n" + listed(scenario_summaries())


def listed(summaries: Mapping[str, str]) -> str:
    """Names with their summaries, as a list in a help."""
    return "\n".join(f"- {name}: {summary}" for name, summary in summaries.items())
