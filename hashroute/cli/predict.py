"""hashroute predict: the class of image files."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hashroute.cli.options import CODE, MODEL, UNSET, check_counts, open_model, print_table

if TYPE_CHECKING:
    from hashroute.model.answers import Answer
    from hashroute.model.model import Model

AT_ONCE = 512
"""Files that are answered together."""
UNFAMILIAR = "no: unlike anything known"


@dataclass(frozen=True)
class PredictSettings:
    """Images to answer."""

    model: Annotated[tyro.conf.Positional[Path], MODEL]
    """Folder of the model."""
    images: Annotated[tyro.conf.Positional[tuple[str, ...]], UNSET, tyro.conf.arg(metavar="IMAGE ...")]
    """Image files, folders with image files, or - for a list of files on standard input."""
    task: Annotated[str | None, UNSET, tyro.conf.arg(metavar="TASK")] = None
    """Task that the images belong to; by default every task may answer."""
    top: Annotated[int, tyro.conf.arg(metavar="NUMBER")] = 1
    """How many possible answers to list for each image."""
    format: Literal["table", "json", "csv"] = "table"
    """table: for people. json: one object per line. csv: one line for each possible answer."""
    backbone: Annotated[str | None, UNSET, CODE] = None
    device: Annotated[str, tyro.conf.arg(metavar="DEVICE")] = "auto"
    """Device to compute on: cpu, cuda, cuda:1, mps; auto takes an accelerator if there is one."""


def run_predict(settings: PredictSettings, console: Console) -> int:
    """Answer all images; returns how many files could not be read."""
    check_counts(top=settings.top)
    model = open_model(settings.model, settings.device, settings.backbone)
    from hashroute.model.sources import files_of

    model.image_shape  # noqa: B018  a model that cannot answer is an error before files are looked for
    files = files_of([Path(name) for name in _given(settings.images)])
    if not files:
        raise ValueError("no images were given: expected image files, folders with image files, or -")
    problems: list[str] = []
    answers = _answers(model, files, settings.task, settings.top, problems)
    {"table": _table, "json": _json, "csv": _csv}[settings.format](answers, console)
    for problem in problems:
        print(f"hashroute: {problem}", file=sys.stderr)
    return len(problems)


def _given(names: Sequence[str]) -> Iterator[str]:
    """Names of files and folders; - stands for those on standard input."""
    for name in names:
        if name == "-":
            yield from (line.rstrip("\r\n") for line in sys.stdin if line.strip())
        else:
            yield name


def _answers(
    model: Model, files: Sequence[Path], task: str | None, top: int, problems: list[str]
) -> Iterator[tuple[Path, Answer]]:
    """Each file that can be read, with its answer."""
    import torch

    from hashroute.data.photos import check_photos
    from hashroute.model.pixels import open_files

    for start in range(0, len(files), AT_ONCE):
        part = files[start : start + AT_ONCE]
        read, wrong = check_photos(open_files(part, model.image_shape), torch.arange(len(part)), in_memory=True)
        problems += wrong
        if len(read):
            found = model.predict(read.images, task, top)
            yield from zip((part[row] for row in read.labels.tolist()), found, strict=True)


def _table(answers: Iterator[tuple[Path, Answer]], console: Console) -> None:
    table = Table(header_style="", box=None, pad_edge=False)
    for name in ("image", "class", "task"):
        table.add_column(name, overflow="fold")
    table.add_column("probability", justify="right")
    table.add_column("familiar")
    for file, answer in answers:
        for place, each in enumerate(answer.top):
            first = place == 0
            note = ("yes" if answer.familiar else UNFAMILIAR) if first else ""
            cells = (str(file) if first else "", each.class_name, each.task, f"{100 * each.probability:.1f} %", note)
            table.add_row(*map(Text, cells))
    if table.rows:
        print_table(console, table)


def _json(answers: Iterator[tuple[Path, Answer]], console: Console) -> None:  # noqa: ARG001
    for file, answer in answers:
        line = {
            "image": str(file),
            "class": answer.class_name,
            "task": answer.task,
            "probability": answer.probability,
            "familiar": answer.familiar,
            "top": [{"class": c.class_name, "task": c.task, "probability": c.probability} for c in answer.top],
        }
        print(json.dumps(line, ensure_ascii=False))


def _csv(answers: Iterator[tuple[Path, Answer]], console: Console) -> None:  # noqa: ARG001
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("image", "place", "class", "task", "probability", "familiar"))
    for file, answer in answers:
        for place, each in enumerate(answer.top, 1):
            known = "yes" if answer.familiar else "no"
            writer.writerow((file, place, each.class_name, each.task, f"{each.probability:.6f}", known))
