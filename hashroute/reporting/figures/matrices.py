"""Accuracy matrices: a heat map for each learner."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from hashroute.reporting.figures.picture import PAGE, Picture, add_colour_bar, name_ticks, new_figure, plot_settings
from hashroute.reporting.runs import Group
from hashroute.training.run_folder import RunRecord


def draw(group: Group) -> Iterator[Picture]:
    """One figure with a panel for each learner, mean over seeds."""
    count = len(group.tasks)
    matrices = {
        name: mean_matrix(runs, count) for name, runs in group.learners.items() if any(r.accuracy for r in runs)
    }
    known = [value for rows in matrices.values() for row in rows for value in row if math.isfinite(value)]
    if not known:
        return
    with plot_settings():
        across = min(3, len(matrices))
        down = math.ceil(len(matrices) / across)
        height = down * min(2.0, 0.5 + 0.3 * count) + 0.9
        seeds = ", mean over seeds" if len(group.seeds) > 1 else ""
        unit = ", %" if group.score.percent else ""
        caption = (
            f"Rows: after learning a task. Columns: {group.score.name} of each task then "
            f"({group.evaluate_on}{unit}{seeds})."
        )
        figure = new_figure(PAGE, height)
        title = group.score.words("Accuracy matrices")
        picture = Picture("accuracy", "matrices", title, caption, figure, wide=True)
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        low, high = min(known), max(known)
        if group.score.percent:
            low, high = math.floor(low / 10) * 10, max(100, high)
        for axes in panels.flat[len(matrices) :]:
            axes.set_axis_off()
        for axes, (name, rows) in zip(panels.flat, matrices.items(), strict=False):
            look: dict[str, Any] = dict(cmap="viridis", vmin=low, vmax=high, interpolation="none")
            image = axes.imshow(rows, aspect="auto", **look)
            axes.set_title(name)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            after = [f"after {task}" for task in group.tasks]
            picture.name_part(axes, name, rows=after, columns=group.tasks, values=rows)
            if count <= 6:
                _write_values(axes, image, rows, group.score.digits)
        name_ticks(panels[0, 0].yaxis, group.tasks)
        name_ticks(panels[0, 0].xaxis, group.tasks)
        if count > 3 or max(map(len, group.tasks)) > 8:
            for axes in panels[-1]:
                axes.tick_params(axis="x", rotation=90)
        add_colour_bar(picture, image, panels, group.score.label)
        yield picture.settle()


def _write_values(axes: Any, image: Any, rows: Sequence[Sequence[float]], digits: int) -> None:
    for row, values in enumerate(rows):
        for column, value in enumerate(values):
            if math.isfinite(value):
                colour = "#000000" if image.norm(value) > 0.55 else "#ffffff"
                axes.text(column, row, f"{value:.{digits}f}", color=colour, ha="center", va="center", fontsize=7)


def mean_matrix(runs: Sequence[RunRecord], tasks: int) -> list[list[float]]:
    """The mean accuracy matrix of runs; NaN where nothing is known."""
    rows = []
    for row in range(tasks):
        cells = []
        for column in range(tasks):
            values = [run.accuracy[row][column] for run in runs if row < len(run.accuracy)]
            known = [value for value in values if value is not None]
            cells.append(fmean(known) if known else math.nan)
        rows.append(cells)
    return rows
