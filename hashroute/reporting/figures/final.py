"""Final accuracy: task-aware beside task-free, where learners differ most."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import fmean
from typing import Any

from hashroute.reporting.figures.picture import COLUMN, Picture, new_figure, plot_settings, shorten
from hashroute.reporting.learners import INK
from hashroute.reporting.runs import Group
from hashroute.training import metrics


def draw(group: Group) -> Iterator[Picture]:
    """Two figures of bars, side by side where there is room."""
    learners = group.comparison().learners
    aware = {name: [metrics.final(run.accuracy) for run in runs] for name, runs in learners.items()}
    free = {
        name: [run.task_free["all_classes"] for run in runs if "all_classes" in run.task_free]
        for name, runs in learners.items()
    }
    caption = f"{group.evaluate_on.capitalize()} {group.score.name} after the last task, mean over tasks."
    if len(group.seeds) > 1:
        caption += " Lines reach from the lowest seed to the highest."
    for kind, title, bars in (
        ("task-aware", "Task-aware: the task of each image is given", aware),
        ("task-free", "Task-free: the task is not given", free),
    ):
        if any(math.isfinite(value) for values in bars.values() for value in values):
            yield _draw(group, kind, title, caption, bars)


def _draw(group: Group, kind: str, title: str, caption: str, bars: dict[str, list[float]]) -> Picture:
    with plot_settings():
        figure = new_figure(COLUMN, 0.45 + 0.19 * len(bars))
        picture = Picture("top", kind, title, caption, figure)
        axes = figure.subplots()
        for place, (name, values) in enumerate(bars.items()):
            if values and all(map(math.isfinite, values)):
                _draw_bar(picture, axes, group, place, name, values, kind)
        if group.score.percent:
            axes.set_xlim(0, 112)
            axes.set_xticks(range(0, 101, 20))
        else:
            axes.margins(x=0.15)
        axes.set_yticks(range(len(bars)), [shorten(name, 24) for name in bars])
        axes.set_ylim(len(bars) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        axes.grid(axis="x")
        axes.set_xlabel(group.score.label)
        return picture.settle()


def _draw_bar(
    picture: Picture, axes: Any, group: Group, place: int, name: str, values: list[float], label: str
) -> None:
    mean = fmean(values)
    (bar,) = axes.barh([place], [mean], height=0.68, color=group.styles[name].colour)
    picture.name_part(bar, name, labels=[label], values=[mean])
    if len(values) > 1:
        (line,) = axes.plot([min(values), max(values)], [place, place], color=INK, linewidth=1.1)
        picture.name_part(line, name)
    gap = 1.2 if group.score.percent else 0
    shown = f"{mean:.{group.score.digits}f}"
    text = axes.text(max(values) + gap, place, shown, va="center", fontsize=7)
    picture.name_part(text, name)
