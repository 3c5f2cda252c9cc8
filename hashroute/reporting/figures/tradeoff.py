"""Stability against plasticity: how much is forgotten, over the accuracy right after learning."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean

from hashroute.reporting.figures.picture import COLUMN, Picture, add_legend, new_figure, plot_settings
from hashroute.reporting.figures.points import Points, draw_points, marks_caption
from hashroute.reporting.results import right_after_mean
from hashroute.reporting.runs import Group
from hashroute.training import metrics

LANDMARKS = ("separate", "hash-only")


def draw(group: Group) -> Iterator[Picture]:
    """A point for each learner that learns tasks one after the other."""
    points: Points = {}
    for name, runs in group.comparison().learners.items():
        if len(group.tasks) > 1 and not any(run.at_once for run in runs):
            pairs = [(right_after_mean(run.accuracy), metrics.forgetting(run.accuracy)) for run in runs]
            points[name] = [pair for pair in pairs if all(map(math.isfinite, pair))]
    if not any(points.values()):
        return
    caption = "Up and to the right is better." + marks_caption(group)
    shown = [name for name in LANDMARKS if points.get(name)]
    if shown:
        caption += f" Dotted lines: {' and '.join(shown)}, which cannot forget."
    with plot_settings():
        picture = Picture("accuracy", "tradeoff", "Stability against plasticity", caption, new_figure(COLUMN, 3.1))
        axes = picture.figure.subplots()
        for name in shown:
            colour = group.styles[name].colour
            line = axes.axvline(fmean(x for x, _ in points[name]), color=colour, linestyle=":", linewidth=1)
            picture.name_part(line, name)
        unit = " %" if group.score.percent else ""
        draw_points(picture, axes, group, points, f"{{:.2f}}{unit} right after learning, forgetting")
        axes.invert_yaxis()
        axes.set_xlabel(group.score.words("plasticity: accuracy right after learning, %"))
        axes.set_ylabel("stability: forgetting" + (", points" if group.score.percent else ""))
        add_legend(picture, axes)
        yield picture.settle()
