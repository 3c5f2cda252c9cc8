"""How learners are presented: their order in tables, a sentence about each, and their look in figures."""

from __future__ import annotations

import zlib

from hashroute.learners import find_learner, learner_names
from hashroute.learners.learner import Style
from hashroute.learners.registry import BUILT_IN, learner_summaries

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


def style(name: str) -> Style:
    """The look of a learner. A variant, or a learner without a look, gets one that depends on its name."""
    own = find_learner(name).style if name in learner_names() else None
    if own is not None:
        return own
    looks = [look for look in (find_learner(each).style for each in BUILT_IN) if look is not None]
    number = zlib.crc32(name.encode())
    return Style(looks[number % len(looks)].colour, "-.", looks[number // len(looks) % len(looks)].marker)
