"""Points of learners in a plane: small marks for seeds, large ones for their means."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

from hashroute.reporting.figures.picture import Picture
from hashroute.reporting.runs import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Points = dict[str, list[tuple[float, float]]]
"""By learner, a point for each seed."""


def draw_points(picture: Picture, axes: Axes, group: Group, points: Points, label: str) -> None:
    """Draw all points. label: format of the tooltip of a point; it gets the first coordinate."""
    for name, pairs in points.items():
        if not pairs:
            continue
        colour, _, marker = group.styles[name]
        mean = (fmean(x for x, _ in pairs), fmean(y for _, y in pairs))
        marks = [([mean], 8.0, name), *([(pairs, 3.5, None)] if len(pairs) > 1 else [])]
        for some, size, entry in marks:
            look: dict[str, Any] = dict(color=colour, markersize=size, label=entry, alpha=0.85)
            (drawn,) = axes.plot(*zip(*some, strict=True), marker, linestyle="", markeredgewidth=0, **look)
            picture.name_part(drawn, name, labels=[label.format(x) for x, _ in some], values=[y for _, y in some])
    axes.grid()
    axes.margins(0.12)


def marks_caption(group: Group) -> str:
    """What the marks are, where there are several seeds."""
    return " Small marks are seeds, large ones their means." if len(group.seeds) > 1 else ""
