"""Figures of runs. A new kind of figure is a file with a function `draw`, and a line in `KINDS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from hashroute.reporting.figures import cost, curves, final, flow, forest, matrices, tradeoff, units
from hashroute.reporting.figures.picture import Picture
from hashroute.reporting.runs import Group

KINDS: tuple[Callable[[Group], Iterator[Picture]], ...] = (
    final.draw,
    curves.draw,
    tradeoff.draw,
    cost.draw,
    matrices.draw,
    units.draw,
    flow.draw,
    forest.draw,
)
"""In the order of the page. Each yields the figures that a group has data for."""


def pictures(group: Group) -> list[Picture]:
    """All figures of a group of runs."""
    return [picture for draw in KINDS for picture in draw(group)]
