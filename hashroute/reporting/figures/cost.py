"""Cost: the final accuracy over the bytes that must be stored for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hashroute.reporting.figures.picture import COLUMN, Picture, add_legend, new_figure, plot_settings
from hashroute.reporting.figures.points import Points, draw_points, marks_caption
from hashroute.reporting.runs import Group
from hashroute.training import metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw(group: Group) -> Iterator[Picture]:
    """A point for each learner."""
    if not any(run.result for run in group.runs):
        return
    caption = "Up and to the left is better. Stored are the encoder, the heads and the memories." + marks_caption(group)
    with plot_settings():
        title = group.score.words("Accuracy against storage")
        picture = Picture("accuracy", "cost", title, caption, new_figure(COLUMN, 3.1))
        axes = picture.figure.subplots()
        draw_cost(picture, axes, group)
        add_legend(picture, axes)
        yield picture.settle()


def draw_cost(picture: Picture, axes: Axes, group: Group) -> None:
    """The points and the labels of the axes."""
    points: Points = {
        name: [(sum(run.bytes_kept.values()) / 1e6, metrics.final(run.accuracy)) for run in runs]
        for name, runs in group.comparison().learners.items()
    }
    draw_points(picture, axes, group, points, f"{{:.2f}} MB stored, {group.score.name}")
    axes.set_xlabel("stored, MB")
    axes.set_ylabel(f"final {group.evaluate_on} {group.score.label}")
