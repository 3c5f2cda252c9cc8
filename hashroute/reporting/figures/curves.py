"""Curves: the accuracy of the first task, and the mean over tasks, after each task."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hashroute.reporting.figures.picture import COLUMN, Picture, add_legend, name_ticks, new_figure, plot_settings
from hashroute.reporting.runs import Group

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Measure = Callable[[Sequence[float | None]], float | None]
"""Of a row of the accuracy matrix."""


def first_task(row: Sequence[float | None]) -> float | None:
    """Accuracy of the first task."""
    return row[0]


def mean_so_far(row: Sequence[float | None]) -> float | None:
    """Mean over the tasks learned so far."""
    known = [value for value in row if value is not None]
    return fmean(known) if known else None


def draw(group: Group) -> Iterator[Picture]:
    """Two figures, with bands from the lowest seed to the highest."""
    if not any(run.accuracy for run in group.runs):
        return
    caption = f"Task-aware {group.evaluate_on} {group.score.name} after each task."
    if len(group.seeds) > 1:
        caption += " Lines are means over seeds, bands reach from the lowest seed to the highest."
    titles = [("mean", "Mean over the tasks learned so far", mean_so_far)]
    titles.append(("first", f"The first task, {group.tasks[0]}", first_task))
    for name, title, measure in titles:
        with plot_settings():
            picture = Picture("accuracy", name, title, caption, new_figure(COLUMN, 3.1))
            axes = picture.figure.subplots()
            draw_curves(picture, axes, group, measure)
            add_legend(picture, axes)
            yield picture.settle()


def draw_curves(picture: Picture, axes: Axes, group: Group, measure: Measure) -> None:
    """A curve for each learner; a line across for learners of all tasks at once."""
    for name, runs in group.learners.items():
        colour, line, marker = group.styles[name]
        look: dict[str, Any] = dict(color=colour, linestyle=line, label=name)
        found = [[measure(row) for row in run.accuracy] for run in runs]
        steps = []  # a place, and the values of all seeds there
        for place in range(len(group.tasks)):
            there = [values[place] for values in found if place < len(values)]
            known = [each for each in there if each is not None and math.isfinite(each)]
            if known:
                steps.append((place, known))
        if not steps:
            continue
        places, means = [place for place, _ in steps], [fmean(known) for _, known in steps]
        labels = [f"after {group.tasks[place]}" for place in places]
        if any(run.settings.at_once for run in runs) and len(group.tasks) > 1:
            picture.name_part(axes.axhline(means[-1], **look), name, labels=["at the end"], values=means[-1:])
            continue
        (drawn,) = axes.plot(places, means, marker=marker, markeredgewidth=0, **look)
        picture.name_part(drawn, name, labels=labels, values=means)
        if any(len(known) > 1 for _, known in steps):
            low, high = ([pick(known) for _, known in steps] for pick in (min, max))
            band = axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
            picture.name_part(band, name)
    name_ticks(axes.xaxis, group.tasks, turn=True)
    axes.set_xlim(-0.4, len(group.tasks) - 0.6)
    axes.set_xlabel("after learning")
    axes.set_ylabel(f"{group.evaluate_on} {group.score.label}")
    axes.grid()
