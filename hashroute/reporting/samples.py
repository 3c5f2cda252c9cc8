"""Sample cards of the page: test images with the learner's answers, their path, and what resembles them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import Any

from hashroute.reporting.html import finite
from hashroute.reporting.runs import Group
from hashroute.training.run_folder import RunRecord

IMAGE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]{1,60000}")
SHOWN = 10
"""Samples of each learner, evenly spaced over all."""
BARS = 8
"""Bars of each sample: the largest."""


def sample_cards(group: Group) -> str:
    """Cards for each learner that has samples."""
    text = ""
    for name, runs in group.learners.items():
        run = next((run for run in runs if run.samples), None)
        if run is not None:
            places = dict.fromkeys(place * len(run.samples) // SHOWN for place in range(SHOWN))
            cards = "".join(_card(group, run, run.samples[place]) for place in places)
            heading = f"<h4>{escape(group.title(run))}</h4>{_bars_meaning(run)}"
            text += f'<div data-learner="{escape(name)}">{heading}<div class="samples">{cards}</div></div>'
    return text


def _card(group: Group, run: RunRecord, sample: dict[str, Any]) -> str:
    source = str(sample.get("image", ""))
    image = f'<img alt="" src="{source}">' if IMAGE.fullmatch(source) else ""
    task, label, answer = (str(sample.get(part)) for part in ("task", "label", "predicted"))
    lines = [f"<div><b>{escape(label)}</b> of {escape(task)}</div>", _answer("task-aware", answer, answer == label)]
    free = sample.get("task_free")
    if isinstance(free, dict):
        found, where = str(free.get("label")), str(free.get("task"))
        right = bool(free.get("correct", found == label and where == task))
        lines.append(_answer("task-free", found if where == task else f"{found} of {where}", right))
    path = sample.get("path") or []
    if path:
        names = [group.unit_name(run, unit) if isinstance(unit, int) else str(unit) for unit in path]
        lines.append(f"<div>units {escape(' → '.join(names))}</div>")
    return f'<div class="sample">{image}<div>{"".join(lines)}{_bars(run, sample, path)}</div></div>'


def _answer(how: str, answer: str, right: bool) -> str:
    mark = '<span class="right">✓</span>' if right else '<span class="wrong">✗</span>'
    return f"<div>{mark} {how}: {escape(answer)}</div>"


def _bars(run: RunRecord, sample: dict[str, Any], path: Sequence[Any]) -> str:
    """A bar for each unit or memory, the longer the more the image resembles it."""
    values = [finite(float(value)) or 0.0 for value in sample.get("projections") or []]
    if not values:
        return ""
    memories = sample.get("known_by") == "memories"
    names = _memory_names(run, len(values)) if memories else [f"unit {unit}" for unit in range(len(values))]
    shown = sorted(sorted(range(len(values)), key=lambda place: -values[place])[:BARS])
    top, low = max(values), min(0.0, *values)
    rows = ""
    for place in shown:
        width = 100 * (values[place] - low) / ((top - low) or 1)
        taken = names[place] == sample.get("task") if memories else place in path
        mark = ' class="taken"' if taken else ""
        rows += f'<span>{escape(names[place])}</span><i{mark}><u style="width:{width:.1f}%"></u></i>'
        rows += f"<span>{round(values[place], 2) + 0.0:.2f}</span>"
    rest = f"<p>and {len(values) - BARS} less alike</p>" if len(values) > BARS else ""
    return f'<div class="bars">{rows}</div>{rest}'


def _bars_meaning(run: RunRecord) -> str:
    """What the bars of a run's samples show."""
    known_by = {sample.get("known_by") for sample in run.samples if sample.get("projections")}
    if known_by == {"memories"}:
        text = (
            "Bars: how well the image fits the remembered data of each task, in standard deviations from the usual "
            "fit. The bar of the image's own task is coloured."
        )
    elif known_by == {"units"}:
        text = "Bars: projection of the image's hash on the basis of each unit. Units on its path are coloured."
    else:
        return ""
    return f'<p class="soft">{text}</p>'


def _memory_names(run: RunRecord, count: int) -> list[str]:
    """The task that each memory was made from: those whose decision added one."""
    tasks = [str(decision.get("task")) for decision in run.decisions if decision.get("bytes_added")]
    return tasks if len(tasks) == count else [f"memory {place}" for place in range(count)]
