"""The forest of units: which path was forked from which, and the tasks that use it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hashroute.reporting.decisions import describe, gain
from hashroute.reporting.figures.picture import PAGE, Picture, new_figure, plot_settings
from hashroute.reporting.learners import INK
from hashroute.reporting.runs import Group, longest
from hashroute.training.run_folder import RunRecord


@dataclass
class Path:
    """A path of units: the path that it was forked from, and the decisions of the tasks that use it."""

    parent: int | None
    decisions: list[dict[str, Any]]


def draw(group: Group) -> Iterator[Picture]:
    """A figure for each learner that decides about paths."""
    for run in longest(group):
        paths = forest_paths(run.decisions)
        if paths:
            yield _draw(group, run, paths)


def forest_paths(decisions: Sequence[dict[str, Any]]) -> list[Path]:
    """The paths that decisions made: new units and forks add one, reuse shares one."""
    paths: list[Path] = []
    taken: dict[str, int] = {}
    for decision in decisions:
        parent = taken.get(decision.get("parent") or "")
        if decision.get("action") == "reuse" and parent is not None:
            taken[decision["task"]] = parent
            paths[parent].decisions.append(decision)
        else:
            taken[decision["task"]] = len(paths)
            paths.append(Path(parent, [decision]))
    return paths


def _tree_order(paths: Sequence[Path]) -> list[int]:
    """Every path after the one it was forked from, and before the next of the same parent."""
    order: list[int] = []
    waiting = [place for place, path in enumerate(paths) if path.parent is None][::-1]
    while waiting:
        place = waiting.pop()
        order.append(place)
        waiting += [child for child, path in enumerate(paths) if path.parent == place][::-1]
    return order


def _draw(group: Group, run: RunRecord, paths: list[Path]) -> Picture:
    rows, levels, name = _tree_order(paths), group.levels(run), run.settings.name
    generations: list[int] = []
    for path in paths:
        generations.append(0 if path.parent is None else generations[path.parent] + 1)
    caption = (
        f"{group.title(run)}. A row is a path with one unit per level. It is joined to the path it was forked from. "
        "Beside it: the tasks that use it, how far their data was from remembered data, and what the fork gained on "
        "validation images."
    )
    with plot_settings():
        indent = min(0.3, 2 / max(1, *generations))
        start = indent * max(generations) + 0.3 * levels + 0.1
        texts = [_text(place, paths[place], int((PAGE - start - 0.3) * 17)) for place in rows]
        tops, height = [], 0.15
        for text in texts:
            tops.append(height)
            height += 0.15 * (1 + text.count("\n")) + 0.12
        figure = new_figure(PAGE, height + 0.1, None)
        picture = Picture("paths", f"forest-{name}", "The forest of units", caption, figure, wide=True)
        axes = figure.add_axes((0.01, 0, 0.98, 1))
        axes.set(xlim=(-0.15, PAGE * 0.98 - 0.15), ylim=(height + 0.1, 0))
        axes.set_axis_off()
        centres = {place: top + 0.07 for place, top in zip(rows, tops, strict=True)}
        colour = group.styles[name].colour
        for place, top, text in zip(rows, tops, texts, strict=True):
            left, middle = indent * generations[place], centres[place]
            parent = paths[place].parent
            if parent is not None:
                above = indent * generations[parent]
                axes.plot([above, above, left], [centres[parent], middle, middle], color=INK, linewidth=0.8, zorder=1)
            spots = [left + 0.3 * level for level in range(levels)]
            axes.plot(spots, [middle] * levels, color=colour, linewidth=1.4, zorder=2)
            (units,) = axes.plot(spots, [middle] * levels, "o", color=colour, markersize=6.5, linestyle="")
            sentences = "; ".join(describe(decision, group.score) for decision in paths[place].decisions)
            labels = [f"unit {place}.{level}: {sentences}" for level in range(levels)]
            picture.name_part(units, name, labels=labels, values=[None] * levels)
            axes.text(start, top, text, va="top", fontsize=7.5, linespacing=1.35)
        return picture


def _text(place: int, path: Path, width: int) -> str:
    """What stands beside a path."""
    first, *others = path.decisions
    origin = "new units" if path.parent is None else f"forked from {first.get('parent')}"
    parts = [f"path {place}: {first['task']}", origin]
    if first.get("distance") is not None:
        like = f"resembles {first['looks_like']}" if first.get("looks_like") else "resembles no earlier task"
        parts.append(f"{like} ({first['distance']:,.1f} nats)")
    gained = gain(first)
    if gained is not None:
        parts.append(f"fork gained {gained:+.1f} points")
    lines = [" · ".join(parts)]
    if others:
        lines.append("also used by " + ", ".join(str(other["task"]) for other in others))
    wrapped = [part for line in lines for part in textwrap.wrap(line, width)]
    return "\n".join(wrapped[:4] + ["…"] * (len(wrapped) > 4))
