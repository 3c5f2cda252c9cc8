"""hashroute export: a model as one ONNX file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import CODE, MODEL, UNSET, open_model, say


@dataclass(frozen=True)
class ExportSettings:
    """The model to export."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model."""
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE.onnx")]
    """File to write. Its name ends with .onnx."""
    backbone: Annotated[str | None, UNSET, CODE] = None


def run_export(settings: ExportSettings, console: Console) -> None:
    """Write the file, and say what is in it."""
    model = open_model(settings.model, backbone=settings.backbone)
    model.export(settings.file)
    tasks = model.tasks()
    classes = sum(len(task.classes) for task in tasks)
    size = settings.file.stat().st_size / 1e6
    say(console, f"{settings.file}: {len(tasks)} tasks, {classes} classes, {size:,.1f} MB")
