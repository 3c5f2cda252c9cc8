"""Flow: the paths of each task's images from level to level, where images take different paths."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from hashroute.reporting.figures.picture import PAGE, Picture, new_figure, plot_settings, shorten, spaced
from hashroute.reporting.runs import Group, longest
from hashroute.training.run_folder import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEW, SHARED = "#D55E00", "#0072B2"

Edge = tuple[int, int, int, float]
"""A level, a unit there, a unit of the next level or -1 for a stop, and the share of images that go this way."""


def draw(group: Group) -> Iterator[Picture]:
    """A figure for each learner whose images take different paths."""
    for run in longest(group):
        last = next((record for record in reversed(run.epochs) if record.get("flow")), None)
        if last is not None:
            flows: dict[str, list[Any]] = {
                str(task): [tuple(edge) for edge in edges] for task, edges in last["flow"].items()
            }
            if any(differing(edges) for edges in flows.values()):
                yield _draw(group, run, flows, str(last.get("task")))


def differing(edges: list[Edge]) -> bool:
    """Whether the images of one task take different paths."""
    return max(Counter(level for level, *_ in edges).values(), default=0) > 1


def _draw(group: Group, run: RunRecord, flows: dict[str, list[Edge]], after: str) -> Picture:
    units = 1 + max((max(edge[1], edge[2]) for edges in flows.values() for edge in edges), default=0)
    levels = 2 + max((edge[0] for edges in flows.values() for edge in edges), default=0)
    name = run.settings.name
    with plot_settings():
        across = min(4 if len(flows) <= 12 else 8, len(flows))
        down = math.ceil(len(flows) / across)
        figure = new_figure(PAGE, down * (0.6 + 0.16 * min(units, 10)) + 0.7)
        caption = f"{group.title(run)}, after {after}. The wider a line, the more images of the task take it."
        heading = "Paths of images from level to level"
        picture = Picture("paths", f"flow-{name}", heading, caption, figure, wide=True)
        panels = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        seen: set[tuple[int, ...]] = set()
        for axes, (task, edges) in zip(panels.flat, flows.items(), strict=False):
            seen |= _draw_task(picture, axes, name, task, edges, seen)
            axes.set_title(shorten(task, 22 if across <= 4 else 11), fontsize=7.5)
        for axes in panels.flat[len(flows) :]:
            axes.set_axis_off()
        panels[0, 0].set(ylim=(units - 0.4, -0.6), xlim=(-0.3, levels - 0.7))
        panels[0, 0].set_xticks(range(levels), [str(level + 1) for level in range(levels)])
        panels[0, 0].set_yticks(spaced(units), [group.unit_name(run, unit) for unit in spaced(units)])
        figure.supxlabel("level", fontsize=8)
        figure.supylabel("unit", fontsize=8)
        for colour, label in ((SHARED, "shared with an earlier task"), (NEW, "new with this task")):
            panels[0, 0].plot([], [], color=colour, linewidth=3, label=label)
        figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
        return picture.settle()


def _draw_task(
    picture: Picture, axes: Axes, learner: str, task: str, edges: list[Edge], seen: set[tuple[int, ...]]
) -> set[tuple[int, ...]]:
    """Draw the paths of one task; returns the units and steps that it uses."""
    from matplotlib.collections import LineCollection

    shares: dict[tuple[int, int], float] = {}  # of each unit at each level
    for level, unit, then, share in edges:
        shares[level, unit] = shares.get((level, unit), 0) + share
        if then >= 0 and not any(edge[:2] == (level + 1, then) for edge in edges):  # nothing continues from there
            shares[level + 1, then] = shares.get((level + 1, then), 0) + share
    steps = [edge for edge in edges if edge[2] >= 0]
    lines = LineCollection(
        [[(level, unit), (level + 1, then)] for level, unit, then, _ in steps],
        linewidths=[0.4 + 6 * share for *_, share in steps],
        colors=[SHARED if edge[:3] in seen else NEW for edge in steps],
        alpha=0.75,
        capstyle="round",
    )
    labels = [f"{task}: unit {unit} at level {level + 1} → unit {then}" for level, unit, then, _ in steps]
    picture.name_part(axes.add_collection(lines), learner, labels=labels, values=[100 * share for *_, share in steps])
    colours = [SHARED if place in seen else NEW for place in shares]
    sizes = [(3 + 4 * min(share, 1)) ** 2 for share in shares.values()]
    axes.scatter([level for level, _ in shares], [unit for _, unit in shares], sizes, colours, linewidths=0)
    axes.grid(alpha=0.08)
    return {edge[:3] for edge in steps} | set(shares)
