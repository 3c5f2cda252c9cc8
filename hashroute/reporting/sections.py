"""The parts of the page about one group of runs."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from html import escape
from statistics import fmean
from typing import Any

from hashroute.reporting import learners, results
from hashroute.reporting.decisions import gain
from hashroute.reporting.figures.picture import Picture, Section
from hashroute.reporting.html import Page, command_box, missing_box, plural
from hashroute.reporting.runs import Group
from hashroute.reporting.samples import sample_cards
from hashroute.reporting.table import Cell, Column, Number, Row, Table
from hashroute.scenarios import published_results, scenario_summaries
from hashroute.training.run_folder import RunRecord


def section(group: Group, name: str, drawn: Sequence[Picture], titled: bool, page: Page) -> tuple[str, str]:
    """Links to the parts, and the parts; with a heading of its own where the page has several groups."""

    def figures(part: Section) -> str:
        return page.figures([picture for picture in drawn if picture.section == part])

    parts = {
        "Results": _results(group) + figures("top") + _summary(group, name, page),
        group.score.words("Accuracy"): _tasks(group, name, page) + figures("accuracy"),
        "Units": figures("units"),
        "Paths": figures("paths") + _decisions(group, name, page),
        "Samples": sample_cards(group),
        "Settings": _settings(group, page),
    }
    heading = f"<h2>{escape(group.heading)}</h2>{introduction(group)}" if titled else ""
    links = [f'<a href="#{name}">{escape(group.heading)}</a>'] if titled else []
    text = [f'<section id="{name}">{heading}', _switches(group), missing_box(group.missing())]
    for title, part in parts.items():
        if part:
            links.append(f'<a href="#{name}-{title.lower()}">{title}</a>')
            text.append(f'<h3 id="{name}-{title.lower()}">{title}</h3>{part}')
    return "".join(links), "\n".join([*text, "</section>"])


def introduction(group: Group) -> str:
    """What was asked: the scenario in words, the counts, and the command."""
    words = scenario_summaries().get(group.scenario, "")
    seeds = f", {len(group.seeds)} seeds" if len(group.seeds) > 1 else ""
    order = f"{plural(len(group.learners), 'learner')}, {plural(len(group.tasks), 'task')}{seeds}."
    tasks = ", ".join(group.tasks[:12]) + (", …" if len(group.tasks) > 12 else "")
    part = f" {100 * group.fraction:g} % of the images were used." if group.fraction != 1 else ""
    text = f'<p class="lead">{escape(words[:1].upper() + words[1:].rstrip("."))}.</p>' if words else ""
    text += f"<p>{escape(order)} Tasks in order: {escape(tasks)}.{escape(part)}</p>"
    if group.commands:
        text += command_box("\n".join(group.commands))
    return text


def _switches(group: Group) -> str:
    """A button for each learner that hides it."""
    buttons = []
    for name in group.learners:
        buttons.append(
            f'<button type="button" aria-pressed="true" data-name="{escape(name)}">'
            f"{_swatch(group, name)}{escape(name)}</button>"
        )
    return f'<div class="learners" aria-label="Show or hide learners">{"".join(buttons)}</div>'


def _swatch(group: Group, name: str) -> str:
    """A piece of the learner's line."""
    lines = {"-": "solid", ":": "dotted", "--": "dashed", "-.": "dashed"}
    look = group.styles[name]
    colour = "currentColor" if look.colour == learners.INK else look.colour
    return f'<i style="border-color:{colour};border-top-style:{lines[look.line]}"></i>'


def _results(group: Group) -> str:
    """The best learners in a sentence, and the legend."""
    comparison = group.comparison()
    if not comparison.runs:
        return f"<p>No run is finished yet, so there is nothing to compare.</p>{_legend(group)}"
    table, score = results.headline(comparison), group.score
    at_once = {run.name for run in comparison.runs if run.at_once}
    sentences = []
    for what, meaning in (("task-aware", "the task of each image is given"), ("task-free", "the task is not given")):
        found = zip(table.rows, table.column(what), strict=True)
        known = [(row.learner, cell.value) for row, cell in found if isinstance(cell, Number)]
        ranked = sorted(((value, name) for name, value in known if name not in at_once and math.isfinite(value)))[::-1]
        if ranked:
            best = (f"{name} {score.text(value)}".replace(" %", "\N{NO-BREAK SPACE}%") for value, name in ranked[:3])
            sentences.append(f"Highest {what} {score.name} ({meaning}): {', '.join(best)}.")
    text = "".join(f"<li>{escape(each)}</li>" for each in sentences)
    if at_once:
        text += f"<li>{escape(', '.join(sorted(at_once)))} learns all tasks at once and is not ranked.</li>"
    return f"<ul>{text}</ul>{_legend(group)}"


def _summary(group: Group, name: str, page: Page) -> str:
    """All measures; without columns that say nothing here."""
    table = results.summary(group.comparison(), _source(group))
    several = len(group.seeds) > 1
    trivial = {"seeds": not several, "data set found": all(map(_is_all, table.column("data set found")))}
    table = table.pick(*(column.name for column in table.columns if not trivial.get(column.name)))
    heading = "Summary: means over tasks" + (", ± standard deviation over seeds" if several else "")
    without_labels = results.features(group.comparison(), _source(group))
    more = page.table(without_labels, "Features, judged with few labels", f"{name}-features") if without_labels else ""
    return page.table(table, heading, f"{name}-summary") + more


def _is_all(cell: Cell) -> bool:
    """Whether a share is 100 %, as it is wherever there is one data set."""
    return isinstance(cell, Number) and cell.value == 100


def _legend(group: Group) -> str:
    """A sentence about each learner."""
    entries = ""
    for name, runs in group.learners.items():
        words = learners.sentence(runs[0].settings.learner)
        if words:
            entries += f'<div data-learner="{escape(name)}"><dt>{_swatch(group, name)}{escape(name)}</dt>'
            entries += f"<dd>{escape(words)}</dd></div>"
    return f'<dl class="legend">{entries}</dl>' if entries else ""


def _source(group: Group) -> str:
    """Where the numbers come from, if that is one place."""
    sources = {str(run.folder) if run.folder.is_file() else str(run.folder.parent) for run in group.runs}
    return sources.pop() if len(sources) == 1 else ""


def _tasks(group: Group, name: str, page: Page) -> str:
    """The accuracy of each task; runs that are not finished show what is known so far."""
    comparison = group.comparison()
    table = results.per_task(comparison, published_results(group.scenario), _source(group))
    for learner, runs in group.learners.items():
        if learner not in comparison.learners and any(run.accuracy for run in runs):
            cells = [_so_far(runs, task) for task in range(len(group.tasks))]
            table.rows.append(Row((learner, *cells, None), learner))
    order = list(group.learners)
    table.rows.sort(key=lambda row: order.index(row.learner or ""))
    heading = group.score.words("Task-aware accuracy right after learning / after the last task, %")
    return page.table(table, heading, f"{name}-tasks")


def _so_far(runs: Sequence[RunRecord], task: int) -> Cell:
    values = [run.accuracy[task][task] for run in runs if task < len(run.accuracy)]
    known = [value for value in values if value is not None]
    return (Number(fmean(known), None, len(known)), None) if known else None


DECISIONS = [
    Column("task", "The task that was decided about, in the order of learning.", words=True),
    Column("action", "fresh: first units. fork: a trained copy of units. reuse: frozen units as they are.", words=True),
    Column("units of", "The task whose units were forked or reused.", words=True),
    Column("resembles", "The earlier task whose data is close enough to count as the same kind.", words=True),
    Column("distance, nats", "Distance of the task's data from the nearest remembered data."),
    Column("frozen units, %", "Validation accuracy of a head on frozen units."),
    Column("fork, %", "Validation accuracy with the fork."),
    Column("gain", "Accuracy with the fork less that with frozen units, in points."),
    Column("units added", "Units that the task added.", digits=0),
    Column("kB added", "Storage that the task added, its head not counted."),
]


def _decisions(group: Group, name: str, page: Page) -> str:
    """What each learner decided about each task."""
    text = ""
    for learner, runs in group.learners.items():
        run = max(runs, key=lambda run: len(run.decisions))
        rows = []
        for made in run.decisions:
            numbers = [made.get(part) for part in ("distance", "reused", "forked")] + [gain(made)]
            added = made.get("bytes_added")
            numbers += [made.get("units_added"), None if added is None else added / 1000]
            words = [str(made.get(part) or "") for part in ("task", "action", "parent", "looks_like")]
            cells = [*words, *(None if value is None else Number(float(value)) for value in numbers)]
            rows.append(Row(tuple(cells), learner))
        columns = results.worded(DECISIONS, group.score)
        table = Table(f"{group.scenario}: decisions of {group.title(run)}", columns, rows)
        text += page.table(table, f"Decisions of {group.title(run)}", f"{name}-decisions-{learner}")
    return text


RUNS = [
    results.LEARNER,
    Column("seed", "Seed of weights, batches and hash functions.", digits=0),
    Column("tasks learned", "Tasks that the run has learned so far.", digits=0),
    Column("training, s", "Seconds of training without evaluation.", digits=0),
    Column("images/s", "Training images a second.", digits=0),
    Column("on disk, kB", "Size of the run's folder.", digits=0),
    Column("versions", "Versions of the software that the run used.", words=True),
    Column("from", "Where the run was read from.", words=True),
]

SETTING = Column("setting", "A field of the recipe.", words=True)
OPTION = Column("option", "An option of this learner.", words=True)
VALUE = Column("value", "The value that was used, as JSON.", words=True)


def _settings(group: Group, page: Page) -> str:
    """How long runs took, where they are, and all settings."""
    table = Table("Runs", RUNS, [_run_row(run) for run in group.runs])
    if len(group.seeds) == 1:
        table = table.pick(*(column.name for column in RUNS if column.name != "seed"))
    text = page.table(table, "Runs")
    recipe = [Row((name, _plain(value))) for name, value in group.recipe.items()]
    options = [
        Row((name, option, _plain(value)), name)
        for name, runs in group.learners.items()
        for option, value in runs[0].settings.options.items()
    ]
    for title, columns, rows in (
        ("Recipe: the training settings of all learners", [SETTING, VALUE], recipe),
        ("Options of each learner", [results.LEARNER, OPTION, VALUE], options),
    ):
        if rows:
            shown = page.table(Table("", columns, rows))
            text += f"<details><summary>{title}</summary>{shown}</details>"
    return text


def _run_row(run: RunRecord) -> Row:
    result = run.result
    seconds = result.seconds if result is not None else sum(record.get("seconds", 0) for record in run.epochs)
    cells: list[Cell] = [
        run.settings.name,
        Number(run.settings.seed),
        Number(len(run.accuracy)),
        Number(seconds),
        None if result is None else Number(result.images_per_second),
        Number(run.size / 1000) if run.size else None,
        ", ".join(f"{name} {version}" for name, version in run.versions.items()),
        str(run.folder),
    ]
    return Row(tuple(cells), run.settings.name)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
