"""Figures of runs. Needs matplotlib: pip install 'hashroute[plots]'.

Every figure is drawn once, and saved as PNG and PDF, for papers, and as SVG, for a page. Parts of a figure that belong
to a learner, or that show a value, are named, so that a page can hide them and say the value: see `Picture`.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from hashroute.reporting.gather import Group, Run, group_of
from hashroute.reporting.tables import continual, right_after_mean
from hashroute.training import metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#1c1c21"
"""Of all that has no colour of its own: a page puts its own ink in its place."""
NEW, SHARED = "#D55E00", "#0072B2"

STYLES = {
    "hrn": ("#D55E00", "-", "o"),
    "hrn-paper": ("#E69F00", "-", "s"),
    "vc": ("#8a8a8a", "-", "v"),
    "ewc": ("#0072B2", "-", "^"),
    "ell": ("#009E73", "-", "D"),
    "gpm": ("#CC79A7", "-", "P"),
    "hash-only": ("#56B4E9", ":", "X"),
    "separate": ("#A6761D", ":", "*"),
    "joint": (INK, "--", "h"),
}
"""Colour, line and marker of each learner, told apart by the colour-blind, too; controls dotted, joint dashed."""

COLUMN, PAGE = 3.5, 7.2
"""Inches: the width of a paper's column, and of its page."""

SETTINGS: Any = {
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.titlelocation": "left",
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "grid.alpha": 0.15,
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 7.5,
    "text.parse_math": False,  # a name may have dollars in it
    "svg.fonttype": "none",
    "svg.hashsalt": "hashroute",
    "pdf.fonttype": 42,
}


@dataclass
class Picture:
    """A figure, what to say about it, and what its parts show."""

    kind: str
    name: str
    """Of its files."""
    title: str
    caption: str
    figure: Figure
    wide: bool = False
    """Whether it needs the whole width of a page."""
    values: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By the name of a part (its id in the SVG): the learner, and the labels and values of its points or cells."""

    def name_part(self, artist: Any, learner: str | None = None, **shown: Any) -> None:
        """Give a part a name, and write down what it shows."""
        name = f"part{len(self.values)}"
        artist.set_gid(name)
        self.values[name] = {"learner": learner, **shown}

    def save(self, form: str) -> bytes:
        """The figure as png, pdf or svg."""
        metadata = {"png": {"Software": None}, "pdf": {"CreationDate": None}, "svg": {"Date": None}}[form]
        content = io.BytesIO()
        with _settings():
            background = "none" if form == "svg" else "white"
            self.figure.savefig(content, format=form, dpi=200, facecolor=background, metadata=metadata)
        return content.getvalue()


def style(learner: str) -> tuple[str, str, str]:
    """Colour, line and marker of a learner."""
    if learner in STYLES:
        return STYLES[learner]
    looks, number = list(STYLES.values()), zlib.crc32(learner.encode())
    return looks[number % len(looks)][0], "-.", looks[number // len(looks) % len(looks)][2]


def pictures(group: Group) -> list[Picture]:
    """All figures that there is something to show in."""
    drawn: list[Picture | None] = [
        curves(group, "first", f"The first task, {group.tasks[0]}", _first),
        curves(group, "mean", "Mean over the tasks learned so far", _mean),
        tradeoff(group),
        cost(group),
        heat_maps(group),
    ]
    for runs in group.learners.values():
        run = max(runs, key=lambda run: len(run.records))  # of equal ones the first
        drawn += [usage(run), unit_bars(run), flow(run), forest(run, len(group.recipe.get("backbone", ())) or 1)]
    return [picture for picture in drawn if picture is not None]


def accuracy_figure(content: dict[str, Any], path: Path) -> None:
    """Panels of a result file: the first task after each, as in the paper, the mean over tasks, and what is kept."""
    group = group_of(content)
    with _settings():
        picture = Picture("accuracy", "accuracy", "", "", _figure(PAGE, 3.1))
        first, mean, kept = picture.figure.subplots(1, 3)
        _draw_curves(picture, first, group, _first)
        _draw_curves(picture, mean, group, _mean)
        _draw_cost(picture, kept, group)
        first.set_title(f"the first task, {group.tasks[0]}")
        mean.set_title("mean over tasks so far")
        kept.set_title("at the end, over what is kept")
        mean.set_ylabel("")
        kept.set_ylabel("")
        _legend(picture, mean, "outside lower center", 9)
    path.write_bytes(picture.save("png"))


@contextmanager
def _settings() -> Iterator[None]:
    """Our settings of matplotlib, for a while; a sign that the font lacks is no reason to warn."""
    try:
        import matplotlib
    except ImportError:
        raise ValueError("figures need matplotlib: pip install 'hashroute[plots]'") from None
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(SETTINGS)
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        yield


def _figure(width: float, height: float, layout: Any = "constrained") -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout=layout)
    FigureCanvasAgg(figure)
    return figure


def _short(name: str, length: int = 18) -> str:
    """A name without its middle, where it is too long: its end often tells it from others."""
    tail = length // 3
    return name if len(name) <= length else f"{name[: length - tail - 1]}…{name[-tail:]}"


def _some(count: int, most: int = 11) -> range:
    """Evenly spaced places among so many, no more than can be labelled."""
    return range(0, count, math.ceil(count / most))


def _name_ticks(axis: Any, names: Sequence[str], turn: bool = False) -> None:
    places = _some(len(names))
    labels = [_short(names[place]) for place in places]
    turned = turn and sum(map(len, labels)) > 34
    named = dict(rotation=40, ha="right", rotation_mode="anchor") if turned else {}
    axis.set_ticks(places, labels, **named)


def _legend(picture: Picture, axes: Axes, place: Any, columns: int) -> None:
    """A legend outside of the axes, whose entries belong to their learners."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        legend = picture.figure.legend(handles, labels, loc=place, ncols=columns, handlelength=2.6)
        for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
            picture.name_part(handle, text.get_text())
            picture.name_part(text, text.get_text())


def _colour_bar(picture: Picture, image: Any, axes: Any, label: str) -> None:
    bar: Any = picture.figure.colorbar(image, ax=axes, fraction=0.03, pad=0.02, label=label)
    bar.solids.set_rasterized(True)
    bar.outline.set_visible(False)


def _settle(picture: Picture) -> Picture:
    """Lay the figure out now, not again for each format."""
    engine = picture.figure.get_layout_engine()
    if engine is not None:
        engine.execute(picture.figure)
    picture.figure.set_layout_engine(None)
    return picture


# ---------------------------------------------------------------------- accuracy


def _first(row: Sequence[float | None]) -> float | None:
    return row[0]


def _mean(row: Sequence[float | None]) -> float | None:
    known = [value for value in row if value is not None]
    return fmean(known) if known else None


def curves(group: Group, name: str, title: str, value: Callable[[Sequence[float | None]], float | None]) -> Picture:
    """A value of the accuracy matrix's rows after each task."""
    with _settings():
        caption = (
            "Test accuracy after each task. Lines are means over seeds, bands reach from the lowest to the highest."
        )
        picture = Picture(name, name, title, caption, _figure(COLUMN, 3.1))
        axes = picture.figure.subplots()
        _draw_curves(picture, axes, group, value)
        _legend(picture, axes, "outside lower center", 3)
        return _settle(picture)


def _draw_curves(
    picture: Picture, axes: Axes, group: Group, value: Callable[[Sequence[float | None]], float | None]
) -> None:
    for name, runs in group.learners.items():
        colour, line, marker = style(name)
        look: dict[str, Any] = dict(color=colour, linestyle=line, label=name)
        found = [[value(row) for row in run.accuracy] for run in runs]
        steps = []  # the place, and what the seeds have there
        for place in range(len(group.tasks)):
            there = [values[place] for values in found if place < len(values)]
            known = [each for each in there if each is not None and math.isfinite(each)]
            if known:
                steps.append((place, known))
        if not steps:
            continue
        places, middles = [place for place, _ in steps], [fmean(known) for _, known in steps]
        labels = [f"after {group.tasks[place]}" for place in places]
        if all(values[0] is None for values in found if values) and len(group.tasks) > 1:  # all tasks learned at once
            picture.name_part(axes.axhline(middles[-1], **look), name, labels=["at the end"], values=middles[-1:])
            continue
        (drawn,) = axes.plot(places, middles, marker=marker, markeredgewidth=0, **look)
        picture.name_part(drawn, name, labels=labels, values=middles)
        if any(len(known) > 1 for _, known in steps):
            low, high = ([pick(known) for _, known in steps] for pick in (min, max))
            band = axes.fill_between(places, low, high, color=colour, alpha=0.15, linewidth=0)
            picture.name_part(band, name)
    _name_ticks(axes.xaxis, group.tasks, turn=True)
    axes.set_xlim(-0.4, len(group.tasks) - 0.6)
    axes.set_xlabel("after learning")
    axes.set_ylabel(f"{group.evaluate_on} accuracy, %")
    axes.grid()


def tradeoff(group: Group) -> Picture | None:
    """Stability against plasticity: what is forgotten, over what is reached right after learning."""
    content = group.content()["learners"]
    points = {
        name: [(right_after_mean(rows), metrics.forgetting(rows)) for rows in entry["accuracy"]]
        for name, entry in content.items()
        if len(group.tasks) > 1 and continual(entry)
    }
    points = {name: [pair for pair in pairs if all(map(math.isfinite, pair))] for name, pairs in points.items()}
    if not any(points.values()):
        return None
    with _settings():
        caption = (
            "Up and to the right is better. Small marks are seeds, large ones their means; dotted lines are the "
            "controls, which cannot forget."
        )
        picture = Picture("tradeoff", "tradeoff", "Stability against plasticity", caption, _figure(COLUMN, 3.1))
        axes = picture.figure.subplots()
        for name in ("separate", "hash-only"):
            if points.get(name):
                line = axes.axvline(fmean(x for x, _ in points[name]), color=style(name)[0], linestyle=":", linewidth=1)
                picture.name_part(line, name)
        _draw_points(picture, axes, points, "right after learning {:.2f} %, forgotten")
        axes.invert_yaxis()
        axes.set_xlabel("plasticity: accuracy right after learning, %")
        axes.set_ylabel("stability: forgotten, points")
        _legend(picture, axes, "outside lower center", 3)
        return _settle(picture)


def cost(group: Group) -> Picture | None:
    """What is known at the end, over what is kept for it."""
    with _settings():
        caption = (
            "Up and to the left is better. Kept is all that must be stored: encoder, heads and memories. Small marks "
            "are seeds, large ones their means."
        )
        picture = Picture("cost", "cost", "Accuracy against what is kept", caption, _figure(COLUMN, 3.1))
        axes = picture.figure.subplots()
        _draw_cost(picture, axes, group)
        if not picture.values:
            return None
        _legend(picture, axes, "outside lower center", 3)
        return _settle(picture)


def _draw_cost(picture: Picture, axes: Axes, group: Group) -> None:
    points = {
        name: [
            (sum(kept.values()) / 1e6, metrics.final(rows))
            for rows, kept in zip(entry["accuracy"], entry["bytes_kept"], strict=True)
        ]
        for name, entry in group.content()["learners"].items()
    }
    _draw_points(picture, axes, points, "{:.2f} MB kept, accuracy")
    axes.set_xlabel("kept, MB")
    axes.set_ylabel(f"{group.evaluate_on} accuracy at the end, %")


def _draw_points(picture: Picture, axes: Axes, points: dict[str, list[tuple[float, float]]], said: str) -> None:
    """Of each learner a small mark for each seed, and a large one for their mean; said: with a place for the first."""
    for name, pairs in points.items():
        if not pairs:
            continue
        colour, _, marker = style(name)
        mean = (fmean(x for x, _ in pairs), fmean(y for _, y in pairs))
        marks = [([mean], 8.0, name), *([(pairs, 3.5, None)] if len(pairs) > 1 else [])]
        for some, size, label in marks:
            look: dict[str, Any] = dict(color=colour, markersize=size, label=label, alpha=0.85)
            (drawn,) = axes.plot(*zip(*some, strict=True), marker, linestyle="", markeredgewidth=0, **look)
            picture.name_part(drawn, name, labels=[said.format(x) for x, _ in some], values=[y for _, y in some])
    axes.grid()
    axes.margins(0.12)


def heat_maps(group: Group) -> Picture | None:
    """The accuracy matrix of each learner, mean over seeds."""
    count = len(group.tasks)
    matrices = {
        name: mean_matrix(runs, count) for name, runs in group.learners.items() if any(r.accuracy for r in runs)
    }
    known = [value for rows in matrices.values() for row in rows for value in row if math.isfinite(value)]
    if not known:
        return None
    with _settings():
        across = min(3, len(matrices))
        down = math.ceil(len(matrices) / across)
        height = down * min(2.0, 0.5 + 0.3 * count) + 0.9
        caption = (
            "A row after each task, a column for each: what is known of it then. "
            f"Mean over seeds, {group.evaluate_on} accuracy, %."
        )
        picture = Picture("matrices", "matrices", "Accuracy matrices", caption, _figure(PAGE, height), wide=True)
        panels = picture.figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        low = math.floor(min(known) / 10) * 10
        for place, axes in enumerate(panels.flat):
            if place >= len(matrices):
                axes.set_axis_off()
        for axes, (name, rows) in zip(panels.flat, matrices.items(), strict=False):
            look: dict[str, Any] = dict(cmap="viridis", vmin=low, vmax=max(100, *known), interpolation="none")
            image = axes.imshow(rows, aspect="auto", **look)
            axes.set_title(name)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            after = [f"after {task}" for task in group.tasks]
            picture.name_part(axes, name, rows=after, columns=group.tasks, values=rows)
            if count <= 6:
                for row, values in enumerate(rows):
                    for column, value in enumerate(values):
                        if math.isfinite(value):
                            colour = "#000000" if image.norm(value) > 0.55 else "#ffffff"
                            axes.text(column, row, f"{value:.1f}", color=colour, ha="center", va="center", fontsize=7)
        _name_ticks(panels[0, 0].yaxis, group.tasks)
        _name_ticks(panels[0, 0].xaxis, group.tasks)
        if count > 3 or max(map(len, group.tasks)) > 8:
            for axes in panels[-1]:
                axes.tick_params(axis="x", rotation=90)
        _colour_bar(picture, image, panels, "accuracy, %")
        return _settle(picture)


def mean_matrix(runs: Sequence[Run], tasks: int) -> list[list[float]]:
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


# ---------------------------------------------------------------------- units


def usage(run: Run) -> Picture | None:
    """The share of selections of each unit after every epoch."""
    records = [record for record in run.records if record.get("usage")]
    if not records:
        return None
    units = max(len(record["usage"]) for record in records)
    shares = [[100 * share for share in record["usage"]] for record in records]
    rows = [[some[unit] if unit < len(some) else math.nan for some in shares] for unit in range(units)]
    with _settings():
        title = "Share of use of each unit after every epoch"
        caption = (
            f"{run.said}, validation images of the task being learned. Lines part tasks; "
            "the row of a unit that was added starts where it came."
        )
        height = 1.3 + 0.22 * min(units, 24)
        picture = Picture("usage", f"usage-{run.learner}", title, caption, _figure(PAGE, height), wide=True)
        axes = picture.figure.subplots()
        extent = (0.5, len(records) + 0.5, units - 0.5, -0.5)
        image = axes.imshow(rows, aspect="auto", cmap="viridis", vmin=0, interpolation="none", extent=extent)
        columns = [f"{record.get('task')}, epoch {record.get('epoch')}" for record in records]
        picture.name_part(
            axes, run.learner, rows=[f"unit {unit}" for unit in range(units)], columns=columns, values=rows
        )
        names = [f"{unit}" if unit < len(shares[0]) else f"{unit}, added" for unit in range(units)]
        _name_ticks(axes.yaxis, names) if units > 24 else axes.set_yticks(range(units), names)
        starts = [n for n, r in enumerate(records) if n == 0 or r.get("task_index") != records[n - 1].get("task_index")]
        width = 1.2 if len(starts) <= 20 else 0.4
        for start in starts[1:]:
            axes.axvline(start + 0.5, color="white", linewidth=2.5 * width)  # seen on any colour
            axes.axvline(start + 0.5, color=INK, linewidth=width)
        above = axes.secondary_xaxis("top")
        ends = [*starts[1:], len(records)]
        labelled = [(starts[place], ends[place]) for place in _some(len(starts), 8)]
        named = [_short(str(records[start].get("task")), 10) for start, _ in labelled]
        above.set_xticks([(start + end) / 2 + 0.5 for start, end in labelled], named)
        above.tick_params(length=0)
        above.spines[:].set_visible(False)
        axes.spines[:].set_visible(False)
        axes.set_xlabel("epochs, over all tasks")
        axes.set_ylabel("unit")
        _colour_bar(picture, image, axes, "share, %")
        return _settle(picture)


def unit_bars(run: Run) -> Picture | None:
    """How full the basis of each unit is, and how old it has become."""
    last = next((record for record in reversed(run.records) if record.get("basis_fill")), None)
    if last is None:
        return None
    panels = [("basis_fill", "fill of the basis, %", [100 * value for value in last["basis_fill"]])]
    if last.get("ages"):
        panels.append(("ages", "age", [float(value) for value in last["ages"]]))
    with _settings():
        caption = f"{run.said}, after {last.get('task')}, epoch {last.get('epoch')}."
        if len(panels) == 1:
            caption += " Ages were not written down."
        picture = Picture(
            "units", f"units-{run.learner}", "The units' bases", caption, _figure(COLUMN, 1.5 * len(panels) + 0.3)
        )
        for axes, (part, label, values) in zip(
            picture.figure.subplots(len(panels), 1, sharex=True, squeeze=False).flat, panels, strict=True
        ):
            for unit, bar in enumerate(axes.bar(range(len(values)), values, color=style(run.learner)[0], width=0.7)):
                picture.name_part(
                    bar, run.learner, labels=[f"unit {unit}, {label.rstrip(', %')}"], values=[values[unit]]
                )
            axes.set_ylabel(label)
            axes.set_ylim(0, 100 if part == "basis_fill" else None)
            axes.grid(axis="y")
            _name_ticks(axes.xaxis, [str(unit) for unit in range(len(values))])
        axes.set_xlabel("unit")
        return _settle(picture)


# ---------------------------------------------------------------------- paths


def flow(run: Run) -> Picture | None:
    """The paths of each task's images from level to level at the end; what no earlier task used stands out."""
    last = next((record for record in reversed(run.records) if record.get("flow")), None)
    if last is None:
        return None
    flows = {str(task): [tuple(edge) for edge in edges] for task, edges in last["flow"].items()}
    units = 1 + max((max(edge[1], edge[2]) for edges in flows.values() for edge in edges), default=0)
    levels = 2 + max((edge[0] for edges in flows.values() for edge in edges), default=0)
    with _settings():
        across = min(4 if len(flows) <= 12 else 8, len(flows))
        down = math.ceil(len(flows) / across)
        height = down * (0.6 + 0.16 * min(units, 10)) + 0.7
        title = "How data flows from level to level"
        caption = f"{run.said}, after {last.get('task')}. The wider a line, the more of a task's images go that way."
        picture = Picture("flow", f"flow-{run.learner}", title, caption, _figure(PAGE, height), wide=True)
        panels = picture.figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
        seen: set[tuple[Any, ...]] = set()
        for axes, (task, edges) in zip(panels.flat, flows.items(), strict=False):
            seen = _draw_flow(picture, axes, run, task, edges, seen, room=22 if across <= 4 else 11)
        for axes in panels.flat[len(flows) :]:
            axes.set_axis_off()
        panels[0, 0].set(ylim=(units - 0.4, -0.6), xlim=(-0.3, levels - 0.7))
        panels[0, 0].set_xticks(range(levels), [str(level + 1) for level in range(levels)])
        panels[0, 0].set_yticks(_some(units), [str(unit) for unit in _some(units)])
        picture.figure.supxlabel("level", fontsize=8)
        picture.figure.supylabel("unit", fontsize=8)
        for colour, label in ((SHARED, "shared with an earlier task"), (NEW, "new with this task")):
            panels[0, 0].plot([], [], color=colour, linewidth=3, label=label)
        picture.figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper right", ncols=2)
        return _settle(picture)


def _draw_flow(
    picture: Picture,
    axes: Axes,
    run: Run,
    task: str,
    edges: list[tuple[Any, ...]],
    seen: set[tuple[Any, ...]],
    room: int,
) -> set[tuple[Any, ...]]:
    """One task's paths; returns all units and ways that were used so far."""
    from matplotlib.collections import LineCollection

    shares: dict[tuple[int, int], float] = {}  # of each unit at each level
    for level, unit, then, share in edges:
        shares[level, unit] = shares.get((level, unit), 0) + share
        if then >= 0 and not any(edge[:2] == (level + 1, then) for edge in edges):  # nothing goes on from there
            shares[level + 1, then] = shares.get((level + 1, then), 0) + share
    ways = [edge for edge in edges if edge[2] >= 0]
    lines = LineCollection(
        [[(level, unit), (level + 1, then)] for level, unit, then, _ in ways],
        linewidths=[0.4 + 6 * share for *_, share in ways],
        colors=[SHARED if edge[:3] in seen else NEW for edge in ways],
        alpha=0.75,
        capstyle="round",
    )
    labels = [f"{task}: unit {unit} at level {level + 1} → unit {then}" for level, unit, then, _ in ways]
    picture.name_part(
        axes.add_collection(lines), run.learner, labels=labels, values=[100 * share for *_, share in ways]
    )
    colours = [SHARED if place in seen else NEW for place in shares]
    sizes = [(3 + 4 * min(share, 1)) ** 2 for share in shares.values()]
    axes.scatter([level for level, _ in shares], [unit for _, unit in shares], sizes, colours, linewidths=0)
    axes.set_title(_short(task, room), fontsize=7.5)
    axes.grid(alpha=0.08)
    return seen | {edge[:3] for edge in ways} | set(shares)


@dataclass
class Branch:
    """A path of units in a forest: where it came from, and the decisions of the tasks that take it."""

    parent: int | None
    decisions: list[dict[str, Any]]


def forest_paths(decisions: Sequence[dict[str, Any]]) -> list[Branch]:
    """The paths that a learner's decisions made: fresh units and forks are new ones, what is reused is shared."""
    paths: list[Branch] = []
    taken: dict[str, int] = {}
    for decision in decisions:
        parent = taken.get(decision.get("parent") or "")
        if decision.get("action") == "reuse" and parent is not None:
            taken[decision["task"]] = parent
            paths[parent].decisions.append(decision)
        else:
            taken[decision["task"]] = len(paths)
            paths.append(Branch(parent, [decision]))
    return paths


def forest(run: Run, levels: int) -> Picture | None:
    """The forest of units: a row for each path, forked from the one it hangs on, with the tasks that take it."""
    paths = forest_paths(run.decisions)
    if not paths:
        return None
    rows: list[int] = []

    def put(path: int) -> None:
        rows.append(path)
        for child, other in enumerate(paths):
            if other.parent == path:
                put(child)

    for path, some in enumerate(paths):
        if some.parent is None:
            put(path)
    generations: list[int] = []
    for some in paths:
        generations.append(0 if some.parent is None else generations[some.parent] + 1)
    with _settings():
        title = "The forest of units"
        caption = (
            f"{run.said}. Each row is a path, a unit a level, and hangs on the path it was forked from; beside it the "
            "tasks that take it, how far their data was from what is remembered, and what units of their own gained."
        )
        indent = min(0.3, 2 / max(1, *generations))
        start = indent * max(generations) + 0.3 * levels + 0.1
        texts = [_forest_text(paths[path], int((PAGE - start - 0.3) * 17)) for path in rows]
        tops, height = [], 0.15
        for text in texts:
            tops.append(height)
            height += 0.15 * (1 + text.count("\n")) + 0.12
        picture = Picture(
            "forest", f"forest-{run.learner}", title, caption, _figure(PAGE, height + 0.1, None), wide=True
        )
        axes = picture.figure.add_axes((0.01, 0, 0.98, 1))
        axes.set(xlim=(-0.15, PAGE * 0.98 - 0.15), ylim=(height + 0.1, 0))
        axes.set_axis_off()
        centres = {path: top + 0.07 for path, top in zip(rows, tops, strict=True)}
        colour = style(run.learner)[0]
        for path, text in zip(rows, texts, strict=True):
            left, middle = indent * generations[path], centres[path]
            parent = paths[path].parent
            if parent is not None:
                above = indent * generations[parent]
                axes.plot([above, above, left], [centres[parent], middle, middle], color=INK, linewidth=0.8, zorder=1)
            places = [left + 0.3 * level for level in range(levels)]
            axes.plot(places, [middle] * levels, color=colour, linewidth=1.4, zorder=2)
            (units,) = axes.plot(places, [middle] * levels, "o", color=colour, markersize=6.5, linestyle="")
            said = "; ".join(str(decision.get("said") or decision["task"]) for decision in paths[path].decisions)
            picture.name_part(units, run.learner, labels=[said] * levels, values=[None] * levels)
            axes.text(start, tops[rows.index(path)], text, va="top", fontsize=7.5, linespacing=1.35)
        return picture


def _forest_text(path: Branch, width: int) -> str:
    """What stands beside a path."""
    first, *others = path.decisions
    parts = [str(first["task"]), "fresh units" if path.parent is None else f"forked from {first.get('parent')}"]
    if first.get("distance") is not None:
        like = f"like {first['looks_like']}" if first.get("looks_like") else "like nothing before"
        parts.append(f"{like}, {first['distance']:,.1f} nats away")
    if gain(first) is not None:
        parts.append(f"gained {gain(first):+.1f} points")
    lines = [" · ".join(parts)]
    if others:
        lines.append("also taken by " + ", ".join(str(other["task"]) for other in others))
    wrapped = [part for line in lines for part in textwrap.wrap(line, width)]
    return "\n".join(wrapped[:4] + ["…"] * (len(wrapped) > 4))


def gain(decision: dict[str, Any]) -> float | None:
    """What units of its own gave a task, in points of accuracy on validation images."""
    reused, forked = decision.get("reused"), decision.get("forked")
    return None if reused is None or forked is None else forked - reused
