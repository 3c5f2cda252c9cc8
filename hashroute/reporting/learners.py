"""How learners are presented: their order in tables, a sentence about each, and their look in figures."""

from __future__ import annotations

import inspect
import zlib
from typing import NamedTuple

from hashroute.learners import LEARNERS

INK = "#1c1c21"
"""The colour of text and lines without a colour of their own. The page replaces it by its own ink."""


class Style(NamedTuple):
    """How a learner looks in figures."""

    colour: str
    line: str = "-"
    marker: str = "o"


STYLES = {
    "hrn": Style("#D55E00", "-", "o"),
    "hrn-paper": Style("#E69F00", "-", "s"),
    "vc": Style("#8a8a8a", "-", "v"),
    "ewc": Style("#0072B2", "-", "^"),
    "ell": Style("#009E73", "-", "D"),
    "gpm": Style("#CC79A7", "-", "P"),
    "hash-only": Style("#56B4E9", ":", "X"),
    "separate": Style("#A6761D", ":", "*"),
    "joint": Style(INK, "--", "h"),
}
"""Colour-blind readers can tell these apart. Controls are dotted, joint is dashed."""


def learner_of(name: str) -> str:
    """The learner behind the name of a row, such as `hrn(max_units=6)`."""
    return name.partition("(")[0]


def place(name: str) -> int:
    """The place of a learner in tables: that of its registration, after all registered ones if it is unknown."""
    names = list(LEARNERS)
    return names.index(learner_of(name)) if learner_of(name) in names else len(names)


def sentence(name: str) -> str:
    """What a learner is: its title and the first line of its docstring; empty for a learner that is not registered."""
    kind = LEARNERS.get(learner_of(name))
    if kind is None:
        return ""
    title = getattr(kind, "title", "")
    first = (inspect.getdoc(kind) or "").partition("\n")[0]
    return f"{title[:1].upper()}{title[1:]}. {first}" if title else first


def style(name: str) -> Style:
    """The look of a learner; one that has none, or is a variant of another, gets one that depends on its name."""
    if name in STYLES:
        return STYLES[name]
    looks, number = list(STYLES.values()), zlib.crc32(name.encode())
    return Style(looks[number % len(looks)].colour, "-.", looks[number // len(looks) % len(looks)].marker)
