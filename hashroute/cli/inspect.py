"""hashroute inspect: the content of a model's folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hashroute.cli.options import UNSET, say


@dataclass(frozen=True)
class InspectSettings:
    """The model to inspect."""

    model: tyro.conf.Positional[Path]
    """Folder of a run, or folder in which a learner was saved."""
    json: bool = False
    """Print one JSON object and nothing else."""
    html: Annotated[Path | None, UNSET] = None
    """Folder for a page about the run, as `hashroute report` writes it."""
    plugins: Annotated[tuple[str, ...], UNSET] = ()
    """Python modules to import first. They register your own learners or backbones."""


def run_inspect(settings: InspectSettings, command: str, console: Console) -> None:
    """Show what is known about a model."""
    from hashroute.cli.report import ReportSettings, run_report
    from hashroute.learners.registry import import_plugins

    import_plugins(settings.plugins)
    found = inspect_model(settings.model)
    if settings.html is not None:
        run_report(ReportSettings((settings.model,), settings.html), command, Console(stderr=True))
    if settings.json:
        print(json.dumps(found))
    else:
        show(found, console)


def inspect_model(folder: Path) -> dict[str, Any]:
    """What is known about the model in a folder: from the model itself, and from the files of its run."""
    from hashroute.learners import load_learner
    from hashroute.learners.files import read_description
    from hashroute.training import metrics
    from hashroute.training.run_folder import RunFolder

    if (folder / "manifest.json").exists():
        raise ValueError(f"{folder} is a model of hashroute learn: list what it knows with hashroute tasks {folder}")
    learner = load_learner(folder)
    record = RunFolder(folder).read() if RunFolder(folder).begun else None
    if record is not None and record.notes:
        raise ValueError(f"{folder} is damaged, {record.notes[0]}: remove the file to inspect the model alone")
    matrix = [] if record is None else record.accuracy
    if any(len(row) != len(learner.tasks) for row in matrix):
        raise ValueError(f"{folder} holds accuracies of other tasks than its model knows: they belong to another run")
    result = None if record is None else record.result
    one_by_one = len(matrix) == len(learner.tasks) and not learner.at_once
    tasks = [
        {
            "name": task.name,
            "classes": list(task.class_names),
            "right_after": matrix[index][index] if one_by_one else None,
            "final": matrix[-1][index] if matrix else None,
        }
        for index, task in enumerate(learner.tasks)
    ]
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    return {
        "folder": str(folder),
        "learner": learner.name,
        "seed": learner.seed,
        "image_shape": list(learner.image_shape),
        "scenario": None if record is None else record.settings.scenario,
        "command": None if record is None else record.command,
        "versions": None if record is None else record.versions,
        "epochs": 0 if record is None else len(record.epochs),
        "seconds": None if result is None else result.seconds,
        "tasks": tasks,
        "score": [learner.objective.score_name, learner.objective.score_factor == 100],
        "accuracy": metrics.final(matrix) if matrix else None,
        "task_free": None if result is None else result.task_free,
        "units": learner.unit_facts(),
        "parameters": learner.parameter_counts(),
        "bytes_kept": learner.bytes_kept(),
        "bytes_on_disk": {
            "model": sizes["learner.json"] + sizes[read_description(folder)[1].name],
            "folder": sum(sizes.values()),
        },
        "decisions": [decision.to_dict() for decision in learner.decisions],
    }


# -------------------------------------------------------------------- for people


def show(found: dict[str, Any], console: Console) -> None:
    """Print all of it."""
    from hashroute.reporting.decisions import describe
    from hashroute.training.result import Score

    score = Score(*found["score"])
    where = "" if found["scenario"] is None else f" on {found['scenario']}"
    shape = " x ".join(map(str, found["image_shape"]))
    text = f"{found['learner']}{where}, seed {found['seed']}: {len(found['tasks'])} tasks, images of {shape}"
    text += f", {found['epochs']} epochs" if found["epochs"] else ""
    say(console, text + ("" if found["seconds"] is None else f" in {found['seconds']:,.0f} s"))
    tasks = Table("task", "classes", title=f"tasks, {score.label}", title_justify="left", header_style="")
    for header in ("right after", "at the end"):
        tasks.add_column(header, justify="right")
    for task in found["tasks"]:
        cells = ["" if task[part] is None else f"{task[part]:.{score.digits}f}" for part in ("right_after", "final")]
        tasks.add_row(Text(task["name"]), Text(_few(task["classes"])), *cells)
    console.print(tasks)
    if found["units"]:
        console.print(_unit_table(found["units"]))
    if found["accuracy"] is not None:
        free = found["task_free"]
        rest = "" if not free else f"; task-free {free['all_classes']:.1f} %, data set found {free['dataset']:.1f} %"
        say(console, f"{score.name}: task-aware {score.text(found['accuracy'])}{rest}")
    say(console, "weights: {encoder:,} in the encoder, {heads:,} in heads".format(**found["parameters"]))
    kept, disk = found["bytes_kept"], found["bytes_on_disk"]
    say(console, f"kept between tasks: {_size(kept['weights'])} of weights, {_size(kept['memory'])} of memory")
    say(console, f"on disk: {_size(disk['model'])}, all files of the folder {_size(disk['folder'])}")
    for decision in found["decisions"]:
        say(console, f"decision: {describe(decision, score)}")
    if found["command"]:
        say(console, f"repeat it: {found['command']}")


def _unit_table(units: list[dict[str, Any]]) -> Table:
    """A row for each unit, a column for each of its facts."""
    table = Table(title="units", title_justify="left", header_style="")
    for name in units[0]:
        table.add_column(name.replace("_", " "), justify="left" if isinstance(units[0][name], list) else "right")
    for unit in units:
        table.add_row(*(Text(_cell(value)) for value in unit.values()))
    return table


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{100 * value:.0f} %"
    if isinstance(value, list):
        return _few(value)
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


def _few(names: list[str], most: int = 6) -> str:
    """All names, or the first ones and the number of others."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _size(count: int) -> str:
    return f"{count / 1000:,.0f} kB"
