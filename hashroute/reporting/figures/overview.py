"""The figure of a comparison in the docs: the first task, the mean over tasks, and the cost."""

from __future__ import annotations

from hashroute.reporting.figures.cost import draw_cost
from hashroute.reporting.figures.curves import draw_curves, first_task, mean_so_far
from hashroute.reporting.figures.picture import PAGE, Picture, add_legend, new_figure, plot_settings
from hashroute.reporting.runs import group_of
from hashroute.training.result import Comparison


def overview(comparison: Comparison) -> Picture:
    """Three panels side by side."""
    group = group_of(comparison)
    with plot_settings():
        picture = Picture("accuracy", "overview", "", "", new_figure(PAGE, 3.1))
        first, mean, cost = picture.figure.subplots(1, 3)
        draw_curves(picture, first, group, first_task)
        draw_curves(picture, mean, group, mean_so_far)
        draw_cost(picture, cost, group)
        first.set_title(f"the first task, {group.tasks[0]}")
        mean.set_title("mean over tasks so far")
        cost.set_title(f"final {group.score.name} over storage")
        mean.set_ylabel("")
        cost.set_ylabel("")
        add_legend(picture, mean, columns=5)
    return picture
