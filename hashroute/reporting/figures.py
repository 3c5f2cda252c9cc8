"""Figures of a result file. Needs matplotlib: pip install 'hashroute[plots]'."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean
from typing import Any

from hashroute.reporting.tables import continual

STYLES = {
    "hrn": ("#d62728", "-"),
    "hrn-paper": ("#ff7f0e", "-"),
    "vc": ("#7f7f7f", "-"),
    "ewc": ("#1f77b4", "-"),
    "ell": ("#2ca02c", "-"),
    "gpm": ("#9467bd", "-"),
    "hash-only": ("#8c564b", ":"),
    "separate": ("#17becf", ":"),
    "joint": ("#000000", "--"),
}
"""Colour and line of each learner; controls are dotted, the landmark is dashed."""


def accuracy_figure(content: dict[str, Any], path: Path) -> None:
    """Two panels: the first task after each task, as in the paper, and the mean over the tasks learned so far."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    first, mean = figure.subplots(1, 2)
    tasks = content["tasks"]
    places = range(len(tasks))
    for name, entry in content["learners"].items():
        colour, line = STYLES.get(name, (None, "-"))
        style = dict(color=colour, linestyle=line, linewidth=1.8)
        if not continual(entry):
            finals = [matrix[-1] for matrix in entry["accuracy"]]
            first.axhline(fmean(row[0] for row in finals), **style)
            mean.axhline(fmean(fmean(row) for row in finals), label=name, **style)
            continue
        for axes, value in ((first, lambda row: row[0]), (mean, lambda row: fmean(v for v in row if v is not None))):
            curves = [[value(row) for row in matrix] for matrix in entry["accuracy"]]
            middle = [fmean(values) for values in zip(*curves, strict=True)]
            axes.plot(places, middle, marker="o", markersize=3.5, label=name, **style)
            if len(curves) > 1:
                low, high = ([pick(values) for values in zip(*curves, strict=True)] for pick in (min, max))
                axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
    first.set_title(f"the first task, {tasks[0]}", loc="left")
    mean.set_title("mean over the tasks learned so far", loc="left")
    for axes in (first, mean):
        axes.set_xticks(places, tasks, rotation=35 if len(tasks) > 6 else 0, ha="right" if len(tasks) > 6 else "center")
        axes.set_xlabel("after learning")
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    first.set_ylabel("test accuracy, %")
    handles, labels = mean.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110, metadata={"Software": None})
