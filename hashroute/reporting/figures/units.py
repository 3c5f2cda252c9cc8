"""Units of a network whose images choose their own path: share of use, and how full and old each basis is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from hashroute.reporting.figures.picture import (
    COLUMN,
    PAGE,
    Picture,
    add_colour_bar,
    name_ticks,
    new_figure,
    plot_settings,
    shorten,
    spaced,
)
from hashroute.reporting.learners import INK
from hashroute.reporting.runs import Group, longest
from hashroute.training.run_folder import RunRecord


def draw(group: Group) -> Iterator[Picture]:
    """Two figures for each learner that records its units."""
    for run in longest(group):
        used = [record for record in run.epochs if record.get("usage")]
        if used:
            yield _usage(group.title(run), run.settings.name, used)
        last = next((record for record in reversed(run.epochs) if record.get("basis_fill")), None)
        if last is not None:
            yield _bases(group, run, last)


def _usage(title: str, name: str, records: list[dict[str, Any]]) -> Picture:
    """The share of selections of each unit after every epoch."""
    units = max(len(record["usage"]) for record in records)
    shares = [[100 * share for share in record["usage"]] for record in records]
    rows = [[some[unit] if unit < len(some) else math.nan for some in shares] for unit in range(units)]
    with plot_settings():
        caption = (
            f"{title}, validation images of the task being learned. Vertical lines separate tasks; "
            "the row of an added unit starts where it was added."
        )
        figure = new_figure(PAGE, 1.3 + 0.22 * min(units, 24))
        heading = "Share of use of each unit after every epoch"
        picture = Picture("units", f"usage-{name}", heading, caption, figure, wide=True)
        axes = figure.subplots()
        extent = (0.5, len(records) + 0.5, units - 0.5, -0.5)
        image = axes.imshow(rows, aspect="auto", cmap="viridis", vmin=0, interpolation="none", extent=extent)
        columns = [f"{record.get('task')}, epoch {record.get('epoch')}" for record in records]
        picture.name_part(axes, name, rows=[f"unit {unit}" for unit in range(units)], columns=columns, values=rows)
        names = [f"{unit}" if unit < len(shares[0]) else f"{unit}, added" for unit in range(units)]
        name_ticks(axes.yaxis, names) if units > 24 else axes.set_yticks(range(units), names)
        _separate_tasks(axes, records)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("epochs, over all tasks")
        axes.set_ylabel("unit")
        add_colour_bar(picture, image, axes, "share, %")
        return picture.settle()


def _separate_tasks(axes: Any, records: list[dict[str, Any]]) -> None:
    """Lines between tasks, and their names above."""
    tasks = [record.get("task_index") for record in records]
    starts = [place for place, task in enumerate(tasks) if place == 0 or task != tasks[place - 1]]
    width = 1.2 if len(starts) <= 20 else 0.4
    for start in starts[1:]:
        axes.axvline(start + 0.5, color="white", linewidth=2.5 * width)  # visible on any colour
        axes.axvline(start + 0.5, color=INK, linewidth=width)
    ends = [*starts[1:], len(records)]
    labelled = [(starts[place], ends[place]) for place in spaced(len(starts), 8)]
    names = [shorten(str(records[start].get("task")), 10) for start, _ in labelled]
    above = axes.secondary_xaxis("top")
    above.set_xticks([(start + end) / 2 + 0.5 for start, end in labelled], names)
    above.tick_params(length=0)
    above.spines[:].set_visible(False)


def _bases(group: Group, run: RunRecord, last: dict[str, Any]) -> Picture:
    """How full the basis of each unit is, and its age."""
    panels = [("basis_fill", "fill of the basis, %", [100 * value for value in last["basis_fill"]])]
    if last.get("ages"):
        panels.append(("ages", "age", [float(value) for value in last["ages"]]))
    name = run.settings.name
    colour = group.styles[name].colour
    with plot_settings():
        caption = f"{group.title(run)}, after {last.get('task')}, epoch {last.get('epoch')}."
        figure = new_figure(COLUMN, 1.5 * len(panels) + 0.3)
        picture = Picture("units", f"units-{name}", "The units' bases", caption, figure)
        drawn = figure.subplots(len(panels), 1, sharex=True, squeeze=False).flat
        for axes, (part, label, values) in zip(drawn, panels, strict=True):
            for unit, bar in enumerate(axes.bar(range(len(values)), values, color=colour, width=0.7)):
                picture.name_part(bar, name, labels=[f"unit {unit}, {label.rstrip(', %')}"], values=[values[unit]])
            axes.set_ylabel(label)
            axes.set_ylim(0, 100 if part == "basis_fill" else None)
            axes.grid(axis="y")
            name_ticks(axes.xaxis, [str(unit) for unit in range(len(values))])
        axes.set_xlabel("unit")
        return picture.settle()
