"""hashroute report: one page about runs, that opens from the disk, and its figures for papers."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import fmean
from string import Template
from typing import Any

import tyro
from rich.console import Console

from hashroute.reporting.figures import INK, Picture, gain, pictures, style
from hashroute.reporting.gather import Group, Run, gather
from hashroute.reporting.tables import spread, summary, task_rows
from hashroute.storage import replace_file
from hashroute.training import metrics

SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
IMAGE = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]{1,60000}")
HIGHEST = {"final", "right after", "best-ever", "backward transfer", "no task given", "data set found", "images/s"}
LOWEST = {"forgetting", "intransigence", "kept, kB"}
SAMPLES = 10
"""Shown of each learner, at most: evenly spread over those that there are."""


@dataclass(frozen=True)
class ReportSettings:
    """Settings of a report."""

    runs: tyro.conf.Positional[tuple[Path, ...]]
    """Runs' folders, folders of them, or result files; runs may still be going."""
    output: Path = Path("report")
    """Folder for report.html, and for its figures as PNG and PDF."""


def run_report(settings: ReportSettings, command: str, console: Console) -> Path:
    """Write the page and its figures; returns the page's path."""
    if not settings.runs:
        raise ValueError("give what to report on: a run's folder, a folder of them, or a result file")
    groups, left_out = gather(settings.runs)
    drawn = [pictures(group) for group in groups]
    taken: list[str] = []
    names = [_unique(group.scenario, taken) for group in groups]
    folder = settings.output / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    written = set()
    for name, some in zip(names, drawn, strict=True):
        for picture in some:
            picture.name = _unique(f"{name}-{picture.name}", taken)
            for form in ("png", "pdf"):
                written.add(folder / f"{picture.name}.{form}")
                _write(folder / f"{picture.name}.{form}", picture.save(form))
    for old in {*folder.glob("*.png"), *folder.glob("*.pdf")} - written:  # of an earlier report
        old.unlink()
    page = settings.output / "report.html"
    _write(page, render(groups, names, drawn, left_out, command).encode())
    console.print(f"report in {page}", markup=False, highlight=False, soft_wrap=True)
    return page


def _write(path: Path, content: bytes) -> None:
    replace_file(path, lambda file: file.write_bytes(content))


def render(
    groups: Sequence[Group], names: Sequence[str], drawn: Sequence[Sequence[Picture]], left_out: list[str], command: str
) -> str:
    """The page."""
    values: dict[str, Any] = {}
    several = len(groups) > 1
    sections = [_section(*each, several, values) for each in zip(groups, names, drawn, strict=True)]
    head = [f"<h1>{escape(' · '.join(dict.fromkeys(group.scenario for group in groups)))}</h1>"]
    head += [f'<p class="lead">{_lead(group, several)}</p>' for group in groups]
    head.append(f"<nav>{''.join(f'<div>{links}</div>' for links, _ in sections)}</nav></header>")
    if left_out:
        head.append(_missing(left_out))
    body = "\n".join([*head, *(text for _, text in sections)])
    body += f'\n<footer><h3>This page</h3><div class="command"><pre>{escape(command)}</pre>{_COPY}</div></footer>'
    here = Path(__file__).parent
    return Template((here / "page.html").read_text(encoding="utf-8")).substitute(
        title=escape(f"{groups[0].scenario}: hashroute report"),
        style=(here / "page.css").read_text(encoding="utf-8"),
        script=(here / "page.js").read_text(encoding="utf-8"),
        values=json.dumps(_finite(values), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        body=body,
    )


_WORDS = ' class="words"'
_COPY = '<button type="button" class="copy">copy</button>'


def _unique(name: str, taken: list[str]) -> str:
    """A name that is good in files and links, and that no other has; it is taken then."""
    plain = re.sub(r"[^A-Za-z0-9.-]+", "-", name).strip("-.") or "runs"
    plain = plain[:100]
    while plain in taken:
        plain += "-2"
    taken.append(plain)
    return plain


def _finite(value: Any) -> Any:
    """The same for JSON, which knows no NaN."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


# ---------------------------------------------------------------------- sections


def _lead(group: Group, named: bool) -> str:
    """What was compared, and what came out, in a line."""
    seeds, tasks = len({run.seed for run in group.runs}), len(group.tasks)
    counts = [(len(group.learners), "learner"), (tasks, "task"), (seeds, "seed")]
    said = ", ".join(f"{count} {name}{'s' if count > 1 else ''}" for count, name in counts)
    said = (f"{group.scenario}: " if named else "") + said + "."
    finals = {
        name: [metrics.final(m) for m in entry["accuracy"]] for name, entry in group.content()["learners"].items()
    }
    finals = {name: values for name, values in finals.items() if all(map(math.isfinite, values))}
    if not finals:
        return escape(said + " No run has come to its end yet with numbers to compare.")
    order = sorted(finals, key=lambda name: -fmean(finals[name]))
    ranked = [f"{name} {spread(finals[name])} %" for name in order]
    said += " Mean accuracy after the last task: " + ", ".join(ranked[:3])
    said += f"; last {ranked[-1]}." if len(ranked) > 3 else "."
    return escape(said)


def _section(group: Group, name: str, drawn: Sequence[Picture], named: bool, values: dict[str, Any]) -> tuple[str, str]:
    """Links to a group's parts, and its part of the page."""
    figures: dict[str, list[str]] = {}
    for number, picture in enumerate(drawn):
        figures.setdefault(picture.kind, []).append(_figure(picture, f"{name}-{number}-", values))

    def some(*kinds: str) -> str:
        found = [text for kind in kinds for text in figures.get(kind, [])]
        return f'<div class="figures">{"".join(found)}</div>' if found else ""

    parts = {
        "Accuracy": _accuracy(group) + some("first", "mean", "tradeoff", "cost", "matrices"),
        "Units": some("usage", "units") or _absent("No run wrote down how its units were used."),
        "Paths": (some("flow", "forest") or _absent("No run wrote down the paths of its images.")) + _decisions(group),
        "Samples": _samples(group) or _absent("There is no samples.json in the folders of these runs."),
        "Settings": _settings(group),
    }
    links = [f'<a href="#{name}">{escape(group.scenario)}</a>'] if named else []
    heading = f"<h2>{escape(group.scenario)}</h2>" if named else ""
    text = [f'<section id="{name}">{heading}', _subtitle(group), _switches(group)]
    if group.missing():
        text.append(_missing(group.missing()))
    for title, part in parts.items():
        links.append(f'<a href="#{name}-{title.lower()}">{title}</a>')
        text.append(f'<h3 id="{name}-{title.lower()}">{title}</h3>{part}')
    return "".join(links), "\n".join([*text, "</section>"])


def _subtitle(group: Group) -> str:
    said = f"{len(group.tasks)} task{'s' if len(group.tasks) > 1 else ''}: {', '.join(group.tasks[:12])}"
    said += ", …" if len(group.tasks) > 12 else ""
    said += f". {100 * group.fraction:g} % of the images." if group.fraction != 1 else "."
    return f'<p class="soft">{escape(said)}</p>'


def _switches(group: Group) -> str:
    buttons = []
    lines = {"-": "solid", ":": "dotted", "--": "dashed", "-.": "dashed"}
    for name in group.learners:
        colour, line, _ = style(name)
        colour = "currentColor" if colour == INK else colour
        swatch = f'<i style="border-color:{colour};border-top-style:{lines[line]}"></i>'
        buttons.append(
            f'<button type="button" aria-pressed="true" data-name="{escape(name)}">{swatch}{escape(name)}</button>'
        )
    return f'<div class="learners">{"".join(buttons)}</div>'


def _missing(said: Sequence[str]) -> str:
    points = "".join(f"<li>{escape(each)}</li>" for each in said)
    return f'<div class="missing"><b>What is missing</b><ul>{points}</ul></div>'


def _absent(said: str) -> str:
    return f'<p class="note">{escape(said)}</p>'


def _accuracy(group: Group) -> str:
    content = group.content()
    text = ""
    rows: list[list[str]] = []
    headers = ["learner", *group.tasks, "mean"]
    if content["learners"]:
        headers, rows = task_rows(content)
    for name, runs in group.learners.items():
        if name not in content["learners"] and any(run.accuracy for run in runs):
            rows.append([name, *_so_far(runs, len(group.tasks)), ""])
    order = list(group.learners)
    rows.sort(key=lambda row: order.index(_owner(row)))
    if rows:
        title = "Right after learning / after the last task, %"
        text += _table(title, headers, rows, highest=set(headers[1:]))
    if content["learners"]:
        headers, rows = summary(content)
        text += _table("In short: means over tasks, ± standard deviation over seeds", headers, rows, HIGHEST, LOWEST)
    return text or _absent("No task was learned yet.")


def _so_far(runs: Sequence[Run], tasks: int) -> list[str]:
    """Accuracy right after learning, of runs that are not at their end."""
    cells = []
    for task in range(tasks):
        found = [run.accuracy[task][task] for run in runs if task < len(run.accuracy)]
        known = [value for value in found if value is not None]
        cells.append(f"{fmean(known):.1f} / …" if known else "")
    return cells


def _decisions(group: Group) -> str:
    text = ""
    headers = ["task", "action", "from", "looks like", "nats away", "reused, %", "own units, %", "gain", "units", "kB"]
    for name, runs in group.learners.items():
        run = max(runs, key=lambda run: len(run.decisions))
        rows = [
            [
                str(decision["task"]),
                *(str(decision.get(part) or "") for part in ("action", "parent", "looks_like")),
                *(_number(decision.get(part)) for part in ("distance", "reused", "forked")),
                _number(gain(decision)),
                str(decision.get("units_added", "")),
                _number(decision.get("bytes_added", 0) / 1000),
            ]
            for decision in run.decisions
        ]
        if rows:
            text += _table(f"What {run.said}, decided", headers, rows, learner=name, words=4)
    return text


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


def _samples(group: Group) -> str:
    text = ""
    for name, runs in group.learners.items():
        run = next((run for run in runs if run.samples), None)
        if run is not None:
            count = len(run.samples)
            places = dict.fromkeys(place * count // SAMPLES for place in range(SAMPLES))
            cards = [_sample(run.samples[place]) for place in places]
            heading = f"<h4>{escape(run.said)}</h4>"
            text += f'<div data-learner="{escape(name)}">{heading}<div class="samples">{"".join(cards)}</div></div>'
    return text


def _sample(sample: dict[str, Any]) -> str:
    """A test image: its path, its projection on every unit, and what it was taken for."""
    source = str(sample.get("image", ""))
    image = f'<img alt="" src="{source}">' if IMAGE.fullmatch(source) else ""
    right = sample.get("label") == sample.get("predicted")
    lines = [f"<b>{escape(str(sample.get('task')))}</b>"]
    lines.append(
        f"{escape(str(sample.get('label')))}, predicted {escape(str(sample.get('predicted')))} {'✓' if right else '✗'}"
    )
    free = sample.get("task_free")
    if isinstance(free, dict):
        lines.append(f"no task given: {escape(str(free.get('label')))} of {escape(str(free.get('task')))}")
    path = sample.get("path") or []
    if path:
        lines.append(f"path {escape(' → '.join(map(str, path)))}")
    projections = [_finite(float(value)) or 0.0 for value in sample.get("projections") or []]
    bars = ""
    if projections:
        measure = "likeness to memories" if sample.get("known_by") == "memories" else "projection on units"
        lines.append(f'<span class="soft">{measure}</span>')
        top, low = max(projections), min(0.0, *projections)
        for number, value in enumerate(projections):
            height = 100 * (value - low) / ((top - low) or 1)
            taken = ' class="taken"' if sample.get("known_by") == "units" and number in path else ""
            bars += f'<i{taken} style="height:{height:.1f}%" title="{number}: {value:.3f}"></i>'
        bars = f'<div class="bars">{bars}</div>'
    return f'<div class="sample">{image}<div>{"<br>".join(lines)}{bars}</div></div>'


def _settings(group: Group) -> str:
    """What was run, how, how long it took, and how to get it again."""
    commands = escape("\n".join(group.commands))
    again = f'<div class="command"><pre>{commands}</pre>{_COPY}</div>'
    if not commands:
        again = _absent("The command was not written down with these runs.")
    text = f"<h4>To get these runs again</h4>{again}"
    headers = ["learner", "seed", "tasks", "minutes", "images/s", "on disk, kB", "versions", "from"]
    rows = []
    for run in group.runs:
        outcome = run.outcome or {}
        seconds = outcome.get("seconds") or sum(record.get("seconds", 0) for record in run.records)
        versions = ", ".join(f"{name} {version}" for name, version in run.versions.items())
        speed = outcome.get("images_per_second")
        done = f"{len(run.accuracy)}/{len(group.tasks)}"
        row = [run.learner, str(run.seed), done, f"{seconds / 60:,.1f}", "" if speed is None else f"{speed:,.0f}"]
        row.append("" if run.size is None else f"{run.size / 1000:,.0f}")
        rows.append([*row, versions or "not written down", run.source])
    text += _table("Runs", headers, rows)
    pairs = [[str(name), _said(value)] for name, value in group.recipe.items()]
    if pairs:
        table = _table("", ["setting", "value"], pairs, words=2)
        text += f"<details><summary>Settings of all learners</summary>{table}</details>"
    options = [
        [name, str(option), _said(value)]
        for name, runs in group.learners.items()
        for option, value in runs[0].options.items()
    ]
    if options:
        table = _table("", ["learner", "option", "value"], options, words=3)
        text += f"<details><summary>Options of each learner</summary>{table}</details>"
    return text


def _said(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# ---------------------------------------------------------------------- tables and figures


def _table(
    title: str,
    headers: Sequence[str],
    rows: Sequence[Sequence[str]],
    highest: set[str] | None = None,
    lowest: set[str] | None = None,
    learner: str | None = None,
    words: int = 1,
) -> str:
    """A table that can be sorted and copied; rows belong to the learner in their first cell, or to the one given."""
    ours = [row for row in rows if not _of_paper(row)]
    best: dict[int, list[float | None]] = {}
    for column, header in enumerate(headers):
        if header in (highest or set()) | (lowest or set()):
            pick = min if header in (lowest or set()) else max
            parts = [[_value(part) for part in row[column].split(" / ")] for row in ours if row[column]]
            known = [[part[-1] for part in parts], [part[0] for part in parts if len(part) == 2]]
            best[column] = [pick([value for value in some if value is not None], default=None) for some in known]
    text = []
    for row in rows:
        paper = _of_paper(row)
        owner = learner or _owner(row)
        cells = []
        for column, cell in enumerate(row):
            cell = cell.strip("*") if paper else cell
            number = _value(cell.split(" / ")[-1])
            attribute = f' data-number="{number}"' if number is not None and column >= words else ""
            attribute += _WORDS if column < words else ""
            shown = escape(cell) if paper or column not in best else _bold(cell, best[column])
            cells.append(f"<td{attribute}>{shown}</td>")
        kind = ' class="paper"' if paper else ""
        text.append(f'<tr{kind} data-learner="{escape(owner)}">{"".join(cells)}</tr>')
    head = "".join(
        f'<th scope="col"{_WORDS if column < words else ""}><button type="button">{escape(header)}</button></th>'
        for column, header in enumerate(headers)
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(text)}</tbody></table>"
    return f'<div class="table"><div><h4>{escape(title)}</h4>{_COPY}</div><div class="scroll">{table}</div></div>'


def _of_paper(row: Sequence[str]) -> bool:
    """Whether a row holds what the paper says: its cells stand in asterisks."""
    return row[0].startswith("*") and row[0].endswith(", paper*")


def _owner(row: Sequence[str]) -> str:
    """The learner that a row speaks of."""
    return row[0][1:].removesuffix(", paper*") if _of_paper(row) else row[0]


def _value(cell: str) -> float | None:
    """The number that a cell is sorted by."""
    try:
        number = float(cell.split("±")[0].replace(",", ""))
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _bold(cell: str, best: Sequence[float | None]) -> str:
    """A cell with what is best in its column in bold: its last part, and its first."""
    parts = cell.split(" / ")
    marks = [best[1], best[0]] if len(parts) == 2 else [best[0]]
    shown = []
    for part, mark in zip(parts, marks, strict=False):
        value = _value(part)
        shown.append(f"<b>{escape(part)}</b>" if value is not None and value == mark else escape(part))
    return " / ".join(shown)


def _figure(picture: Picture, prefix: str, values: dict[str, Any]) -> str:
    """A figure for the page; what its parts show goes into values."""
    values |= {prefix + part: shown for part, shown in picture.values.items()}
    links = ", ".join(f'<a href="figures/{picture.name}.{form}">{form.upper()}</a>' for form in ("png", "pdf"))
    kind = ' class="wide"' if picture.wide else ""
    heading = f"<h4>{escape(picture.title)}</h4>"
    caption = f"<figcaption>{escape(picture.caption)} {links}</figcaption>"
    return f'<figure{kind}>{heading}<div class="scroll">{_inline(picture, prefix)}</div>{caption}</figure>'


def _inline(picture: Picture, prefix: str) -> str:
    """A figure's SVG as part of a page: ids of its own, the page's ink, and its parts marked."""
    ET.register_namespace("", SVG)
    ET.register_namespace("xlink", XLINK)
    root = ET.fromstring(picture.save("svg"))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{{{SVG}}}metadata", f"{{{SVG}}}style"):
                parent.remove(child)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == f"{{{XLINK}}}href" and value.startswith("#"):
                element.set(name, f"#{prefix}{value[1:]}")
            elif name in ("style", "clip-path"):
                element.set(name, value.replace("url(#", f"url(#{prefix}").replace(INK, "currentColor"))
        found = element.get("id")
        if found is not None:
            element.set("id", prefix + found)
            part = picture.values.get(found)
            if part is not None:
                if part["learner"] is not None:
                    element.set("data-learner", part["learner"])
                if "values" in part:
                    element.set("data-part", "")
    root.set("role", "img")
    root.set("aria-label", picture.title)
    return ET.tostring(root, encoding="unicode")
