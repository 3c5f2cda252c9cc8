"""hashroute inspect: what is in the folder of a model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hashroute.learners import load_learner
from hashroute.learners.registry import import_plugins
from hashroute.reporting.page import ReportSettings, run_report
from hashroute.training import metrics


@dataclass(frozen=True)
class InspectSettings:
    """What to look at."""

    model: tyro.conf.Positional[Path]
    """Folder of a run, or one that a learner was saved in."""
    json: bool = False
    """Print one JSON object for programs, and nothing else."""
    html: Path | None = None
    """Folder for a page about it, as `hashroute report` writes it."""
    plugins: tuple[str, ...] = ()
    """Python modules to import first, which register learners of your own."""


def run_inspect(settings: InspectSettings, command: str, console: Console) -> None:
    """Show what is known about a model."""
    import_plugins(settings.plugins)
    found = inspect_model(settings.model)
    if settings.html is not None:
        run_report(ReportSettings((settings.model,), settings.html), command, Console(stderr=True))
    if settings.json:
        print(json.dumps(found))
    else:
        show(found, console)


def inspect_model(folder: str | Path) -> dict[str, Any]:
    """What is known about the model in a folder: from the model itself, and from what a run wrote down beside it."""
    folder = Path(folder)
    learner = load_learner(folder)
    settings = _read(folder / "settings.json") or {}
    result = _read(folder / "result.json") or {}
    epochs = [_parse(folder / "epochs.jsonl", line) for line in _lines(folder / "epochs.jsonl")]
    matrix = result.get("accuracy") or [record["accuracy"] for record in epochs if "accuracy" in record]
    rows = matrix if isinstance(matrix, list) else [None]
    if any(not isinstance(row, list) or len(row) != len(learner.tasks) for row in rows):
        raise ValueError(f"{folder} holds accuracies of other tasks than its model knows: they are of another run")
    one_by_one = len(matrix) == len(learner.tasks) and matrix[0][0] is not None  # else all were learned at once
    tasks = [
        {
            "name": task.name,
            "classes": list(task.class_names),
            "right_after": matrix[number][number] if one_by_one else None,
            "final": matrix[-1][number] if matrix else None,
        }
        for number, task in enumerate(learner.tasks)
    ]
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.is_file()}
    return {
        "folder": str(folder),
        "learner": learner.name,
        "seed": learner.seed,
        "image_shape": list(learner.image_shape),
        "scenario": settings.get("scenario"),
        "command": settings.get("command"),
        "versions": settings.get("versions"),
        "epochs": len(epochs),
        "seconds": result.get("seconds"),
        "tasks": tasks,
        "accuracy": metrics.final(matrix) if matrix else None,
        "task_free": result.get("task_free"),
        "units": learner.unit_facts(),
        "parameters": learner.parameter_counts(),
        "bytes_kept": learner.bytes_kept(),
        "bytes_on_disk": {
            "model": sizes["learner.json"] + sizes["model.safetensors"],
            "folder": sum(sizes.values()),
        },
        "decisions": learner.decisions,
    }


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _read(path: Path) -> dict[str, Any] | None:
    return _parse(path, path.read_text()) if path.exists() else None


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged: remove it to see what the model itself says")
    return values


# -------------------------------------------------------------------- for people


def show(found: dict[str, Any], console: Console) -> None:
    """All of it, on a terminal."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    where = "" if found["scenario"] is None else f" on {found['scenario']}"
    shape = " x ".join(map(str, found["image_shape"]))
    said = f"{found['learner']}{where}, seed {found['seed']}: {len(found['tasks'])} tasks, images of {shape}"
    said += f", {found['epochs']} epochs" if found["epochs"] else ""
    say(said + ("" if found["seconds"] is None else f" in {found['seconds']:,.0f} s"))
    tasks = Table("task", "classes", title="tasks known, accuracy in %", title_justify="left", header_style="")
    for header in ("right after", "at the end"):
        tasks.add_column(header, justify="right")
    for task in found["tasks"]:
        cells = [_number(task[part]) for part in ("right_after", "final")]
        tasks.add_row(Text(task["name"]), Text(_few(task["classes"])), *cells)
    console.print(tasks)
    if found["units"]:
        console.print(_unit_table(found["units"]))
    if found["accuracy"] is not None:
        free = found["task_free"]
        rest = "" if not free else f"; with no task given {free['all_classes']:.1f} %, data set {free['dataset']:.1f} %"
        say(f"accuracy: {found['accuracy']:.1f} % over all tasks{rest}")
    say("weights: {encoder:,} in the encoder, {heads:,} in heads".format(**found["parameters"]))
    kept, disk = found["bytes_kept"], found["bytes_on_disk"]
    say(f"kept between tasks: {_size(kept['weights'])} of weights, {_size(kept['memory'])} of memory")
    say(f"on disk: {_size(disk['model'])}, with all that the folder holds {_size(disk['folder'])}")
    for decision in found["decisions"]:
        say(f"decided {decision['said']}")
    if found["command"]:
        say(f"repeat it: {found['command']}")


def _unit_table(units: list[dict[str, Any]]) -> Table:
    """A row for each unit, a column for each thing that there is to say."""
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
    """All names, or the first ones and how many more there are."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _size(count: int) -> str:
    return f"{count / 1000:,.0f} kB"
