"""The process that learns a task for a server: an order on standard input, JSON lines on standard output.

Learning has a process of its own: the server keeps answering, and can end it at any moment. The model is then the one
before the change or the one after it.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

SECONDS_BETWEEN = 0.1
"""Progress is told at most this often."""
PROBES = 16
"""Images that old tasks are asked about before and after."""


@dataclass(frozen=True)
class Order:
    """What is to be learned."""

    model: str
    backbone: str
    device: str
    task: str
    files: list[str]
    labels: list[str]
    private: bool
    epochs: int | None
    root: str


def main() -> int:
    """Learn what standard input asks for, and tell how far it is; returns the exit code."""
    order = Order(**json.loads(sys.stdin.read()))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print does not come between our lines

    def tell(**event: Any) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    try:
        try:
            tell(report=_learn(order, tell))
        except BrokenPipeError:
            raise
        except (ValueError, OSError) as error:
            tell(error=" ".join(str(error).replace(order.model, "the model").split()))
    except BrokenPipeError:  # the server was killed: nobody else removes the images
        shutil.rmtree(order.root, ignore_errors=True)
        os._exit(1)
    return 0


def _learn(order: Order, tell: Any) -> dict[str, Any]:
    from hashroute.model.lessons import Progress
    from hashroute.model.model import Model
    from hashroute.model.sources import Source
    from hashroute.reporting.decisions import describe

    model = Model(order.model, backbone=order.backbone, device=order.device)
    others = [each.name for each in model.tasks() if each.name != order.task]
    probes = order.files[:: max(1, len(order.files) // PROBES)][:PROBES]
    before = _answers(model, probes, others)
    start = told = time.monotonic()

    def progress(done: Progress) -> None:
        nonlocal told
        now = time.monotonic()
        if now - told >= SECONDS_BETWEEN or done.images == done.total:
            told = now
            tell(progress={**done._asdict(), "seconds": now - start})

    classes = list(dict.fromkeys(order.labels))
    source = Source(order.task, order.files, order.labels, classes, root=order.root)
    report = model.learn(source, order.task, private=order.private, epochs=order.epochs, progress=progress)
    after = _answers(model, probes, others)
    plain = asdict(report)
    facts = ("task", "classes", "images", "held_out", "accuracy", "epochs", "seconds", "new_classes", "notes")
    return {
        **{name: plain[name] for name in facts},
        "decision": describe(report.decision) if report.decision else None,
        "old_tasks": len(others),
        "old_answers": len(before),
        "old_answers_changed": sum(one != other for one, other in zip(before, after, strict=True)),
    }


def _answers(model: Any, files: Sequence[str], tasks: Sequence[str]) -> list[Any]:
    """The answers of tasks to images: every class with its probability, to the last bit."""
    return [each.top for task in tasks for each in model.predict(files, task, top=1_000_000)]


if __name__ == "__main__":
    raise SystemExit(main())
