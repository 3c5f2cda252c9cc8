"""Tables of a result file."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev
from typing import Any, Literal

from rich.table import Table

from hashroute.scenarios import published_results
from hashroute.training import metrics


def spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean, and with several values their standard deviation."""
    said = f"{fmean(values):.{digits}f}"
    if len(values) == 1 or not all(map(math.isfinite, values)):  # stdev fails on what is no number
        return said
    return f"{said} ± {stdev(values):.{digits}f}"


def continual(entry: dict[str, Any]) -> bool:
    """Whether a learner learned task after task, so that there is something to forget."""
    return entry["accuracy"][0][0][0] is not None


def over_seeds(entry: dict[str, Any], measure: Callable[[metrics.Matrix], float], digits: int = 1) -> str:
    """A measure of an accuracy matrix over a learner's seeds; nothing where tasks were learned at once."""
    return spread([measure(matrix) for matrix in entry["accuracy"]], digits) if continual(entry) else ""


def best_mean(matrix: metrics.Matrix) -> float:
    """Best-ever accuracy, mean over tasks."""
    return fmean(metrics.best_ever(matrix))


def right_after_mean(matrix: metrics.Matrix) -> float:
    """Accuracy right after learning, mean over tasks."""
    return fmean(metrics.right_after(matrix))


def summary(content: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headers, and a row for each learner: accuracies in percent, means over tasks with the spread over seeds."""
    headers = ["learner", "seeds", "final", "right after", "best-ever", "forgetting", "backward transfer"]
    headers += ["intransigence", "no task given", "data set found", "images/s", "encoder", "heads", "kept, kB"]
    separate = content["learners"].get("separate")
    rows = []
    for name, entry in content["learners"].items():
        rows.append(
            [
                name,
                str(len(entry["seeds"])),
                spread([metrics.final(matrix) for matrix in entry["accuracy"]]),
                over_seeds(entry, right_after_mean),
                over_seeds(entry, best_mean),
                over_seeds(entry, metrics.forgetting),
                over_seeds(entry, metrics.backward_transfer),
                _intransigence(entry, separate),
                spread([found["all_classes"] for found in entry["task_free"]]),
                spread([found["dataset"] for found in entry["task_free"]]),
                f"{median(entry['images_per_second']):,.0f}",
                f"{fmean(found['encoder'] for found in entry['parameters']):,.0f}",
                f"{fmean(found['heads'] for found in entry['parameters']):,.0f}",
                f"{fmean(sum(found.values()) for found in entry['bytes_kept']) / 1000:,.0f}",
            ]
        )
    return headers, rows


def _intransigence(entry: dict[str, Any], separate: dict[str, Any] | None) -> str:
    """Against separate networks of the same seeds, where there are any."""
    if separate is None or not continual(entry):
        return ""
    theirs = dict(zip(separate["seeds"], separate["accuracy"], strict=True))
    pairs = [
        (ours, theirs[seed]) for seed, ours in zip(entry["seeds"], entry["accuracy"], strict=True) if seed in theirs
    ]
    return spread([metrics.intransigence(ours, other) for ours, other in pairs]) if pairs else ""


def lead_rows(
    content: dict[str, Any], who: str = "hrn", when: Literal["right", "right_after"] = "right"
) -> tuple[list[str], list[list[str]]]:
    """Headers, and a row for each other learner: how far one is ahead of it in accuracy, with the interval.

    when: at the end, or when each task had just been learned, which tasks learned at once never had.
    """
    headers = [f"{who} against", "ahead by", "95 % interval", "seeds"]
    ours = _answers(content["learners"].get(who, {}), when)
    rows = []
    for name, entry in content["learners"].items():
        theirs = _answers(entry, when) if when == "right" or continual(entry) else {}
        seeds = sorted(ours.keys() & theirs.keys())
        if name != who and seeds:
            mean, low, high = metrics.ahead([ours[seed] for seed in seeds], [theirs[seed] for seed in seeds])
            rows.append([name, f"{mean:+.2f}", f"{low:+.2f} to {high:+.2f}", str(len(seeds))])
    return headers, rows


def _answers(entry: dict[str, Any], when: str) -> dict[int, list[str]]:
    """By seed, which test images were answered right; older files do not say so."""
    pairs = zip(entry["seeds"], entry[when], strict=True) if when in entry else ()
    return {seed: right for seed, right in pairs if right}


def summary_table(content: dict[str, Any]) -> Table:
    """The summary for a terminal: what matters most."""
    headers, rows = summary(content)
    kept = [
        headers.index(name) for name in ("learner", "final", "best-ever", "forgetting", "no task given", "images/s")
    ]
    table = Table(
        title=f"{content['scenario']}: test accuracy, %, mean over tasks", title_justify="left", header_style=""
    )
    for place in kept:
        table.add_column(headers[place], justify="left" if place == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[place] for place in kept))
    return table


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, numbers to the right."""
    lines = ["| " + " | ".join(headers) + " |", "|" + "|".join(["---"] + ["---:"] * (len(headers) - 1)) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def task_rows(content: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Headers, and for each learner a row of its tasks: accuracy right after learning / at the end, ours and theirs."""
    headers = ["learner", *content["tasks"], "mean"]
    published = published_results(content["scenario"])
    rows = []
    for name, entry in content["learners"].items():
        rows.append([name, *_cells(_mean_pairs(entry))])
        if name in published:
            rows.append([f"*{name}, paper*", *(f"*{cell}*" for cell in _cells(published[name]))])
    return headers, rows


def _mean_pairs(entry: dict[str, Any]) -> list[tuple[float | None, float]]:
    """Means over seeds: right after learning each task, None where all were learned at once, and at the end."""
    ends = [fmean(values) for values in zip(*map(metrics.at_the_end, entry["accuracy"]), strict=True)]
    if not continual(entry):
        return [(None, end) for end in ends]
    firsts = [fmean(values) for values in zip(*map(metrics.right_after, entry["accuracy"]), strict=True)]
    return list(zip(firsts, ends, strict=True))


def _cells(pairs: Sequence[tuple[float | None, float]]) -> list[str]:
    cells = [f"{end:.1f}" if first is None else f"{first:.1f} / {end:.1f}" for first, end in pairs]
    end = fmean(end for _, end in pairs)
    known = [first for first, _ in pairs if first is not None]
    return [*cells, f"{fmean(known):.1f} / {end:.1f}" if known else f"{end:.1f}"]
