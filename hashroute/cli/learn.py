"""hashroute learn: a model learns tasks from folders and lists of images."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.console import Console

from hashroute.cli.options import MODEL, UNSET, check_counts, say

if TYPE_CHECKING:
    from hashroute.model.lessons import LearnReport

NAMED = 5
"""Classes of a task that are named."""


@dataclass(frozen=True)
class LearnSettings:
    """What a model learns."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model. It is made if it does not exist."""
    sources: Annotated[tyro.conf.Positional[tuple[Path, ...]], UNSET, tyro.conf.arg(metavar="SOURCE ...")]
    """What to learn, one task after the other: folders of class folders, or lists of files (CSV, JSON lines or Parquet
    with the columns path and label, and perhaps split). A new model can also start from a folder that Learner.save
    wrote."""
    task: Annotated[str | None, UNSET, tyro.conf.arg(metavar="NAME")] = None
    """Name of the task; by default that of the folder or list. A task that exists gets more images or new classes."""
    size: Annotated[int | None, UNSET, tyro.conf.arg(metavar="PIXELS")] = None
    """Side in pixels to which the images of a new model are resized; by default that of a pre-trained backbone,
    otherwise that of the images, at most 64."""
    epochs: Annotated[int | None, UNSET, tyro.conf.arg(metavar="NUMBER")] = None
    """Passes over the images; by default 10 to 60, more for fewer images."""
    backbone: Annotated[str, tyro.conf.arg(metavar="NAME")] = "small"
    """Encoder of a new model: small; resnet18x0.25, with any factor of its width; or a pre-trained one that stays
    frozen: efficientnet-lite0, timm:NAME, or FILE.py:FUNCTION of your own."""
    private: bool = False
    """No other task may learn from this one: `hashroute forget` then removes every trace of it."""
    seed: Annotated[int, tyro.conf.arg(metavar="NUMBER")] = 0
    """Seed of a new model."""
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto"
    """Device to compute on: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one."""


def run_learn(settings: LearnSettings, console: Console) -> None:
    """Learn all sources, and say what was decided."""
    check_counts(epochs=settings.epochs)
    if not settings.sources:
        raise ValueError("nothing to learn was given: expected a folder of class folders, or a list of files")
    if settings.task is not None and len(settings.sources) > 1:
        raise ValueError(f"--task names one task, but there are {len(settings.sources)} sources: give them one by one")
    from hashroute import distributed
    from hashroute.model.model import Model

    with distributed.joined(settings.device) as device:
        console.quiet |= not distributed.is_first()
        model = Model(
            settings.model,
            size=settings.size,
            backbone=settings.backbone,
            seed=settings.seed,
            device=device,
        )
        for source in settings.sources:
            report = model.learn(source, settings.task, private=settings.private, epochs=settings.epochs)
            show(report, console)


def show(report: LearnReport, console: Console) -> None:
    """What was learned, and what was decided, in plain words."""
    from hashroute.reporting.decisions import describe

    for note in report.notes:
        say(console, f"{report.task}: {note}")
    if report.epochs:
        say(console, f"{report.task}: {_learned(report)}")
    if report.decision:
        say(console, describe(report.decision))
    if report.unreadable:
        files = _count(report.unreadable, "file", "files")
        say(console, f"{files} could not be read: see {report.unreadable_list}")


def _learned(report: LearnReport) -> str:
    names = ", ".join([*report.classes[:NAMED], *(["..."] if len(report.classes) > NAMED else [])])
    new, since = "", ""
    if report.new_classes:
        new = f"new {'class' if len(report.new_classes) == 1 else 'classes'} {', '.join(report.new_classes)}; "
    if report.resumed_at:
        since = f"continued after {report.resumed_at} of {report.epochs} epochs, "
    classes, epochs = _count(len(report.classes), "class", "classes"), _count(report.epochs, "epoch", "epochs")
    right = f"{100 * (report.accuracy or 0):.1f} % of {report.held_out} held-out images are right"
    if len(report.classes) == 1:
        right = "one class, so there is nothing to tell apart within the task"
    return f"{new}{classes} ({names}), {report.images:,} images, {epochs}, {since}{report.seconds:.0f} s; {right}"


def _count(number: int, one: str, several: str) -> str:
    return f"{number:,} {one if number == 1 else several}"
