"""How learners are presented: their order in tables, a sentence about each, and their look in figures."""

from __future__ import annotations

from collections.abc import Sequence

from hashroute.learners import find_learner, learner_names, learner_summaries
from hashroute.learners.learner import Style

INK = "#1c1c21"
"""The colour of text and of lines without a colour of their own. The page replaces it by its own ink."""


def learner_of(name: str) -> str:
    """The learner behind the name of a row, such as `hrn(max_units=6)`."""
    return name.partition("(")[0]


def place(name: str) -> int:
    """The place of a learner in tables; one that is not registered comes last."""
    names = learner_names()
    return names.index(learner_of(name)) if learner_of(name) in names else len(names)


def sentence(learner: str) -> str:
    """What a learner is; empty for one that is not registered."""
    words = learner_summaries().get(learner, "")
    return f"{words[:1].upper()}{words[1:].rstrip('.')}." if words else ""


SPARE = ("#7b3fb5", "#5f8a00", "#c2185b", "#00796b", "#3949ab", "#8d5a4a", "#b8a200", "#e57373")
"""Colours that no built-in learner has."""
MARKERS = "odps<>8H"


def styles(names: Sequence[str]) -> dict[str, Style]:
    """The look of each row of a table. Variants, and learners without a look, get spare colours in order."""
    own = {name: find_learner(name).style for name in names if name in learner_names()}
    found: dict[str, Style] = {name: look for name, look in own.items() if look is not None}
    taken = {look.colour for look in found.values()}
    spare = [colour for colour in SPARE if colour not in taken]
    for number, name in enumerate(name for name in names if name not in found):
        turn, place = divmod(number, len(spare))
        found[name] = Style(spare[place], ("-.", "--", ":", "-")[turn % 4], MARKERS[(place + turn) % len(MARKERS)])
    return found
